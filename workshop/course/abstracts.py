"""The course's 2,000 abstracts, which a model invented: their texts, their labels, and the prompt that asks for a label.

>>> from workshop.course import abstracts
>>> len(abstracts.load()), abstracts.FIELDS[:2]
(2000, ('biology', 'medicine'))
>>> abstracts.prompt("Bees find flowers by their scent.")
'Abstract: Bees find flowers by their scent.\\nField:'
"""

from __future__ import annotations

import json

from workshop.course.recorded_data import DATA

__all__ = ["FIELDS", "load", "prompt"]

FIELDS = (
    "biology",
    "medicine",
    "physics",
    "astronomy",
    "chemistry",
    "computing",
    "geology",
    "psychology",
)


def load() -> list[dict]:
    """Return the abstracts in their order: `id` (0 to 1,999), `text`, `field` (the label), `topic`."""
    text = (DATA / "abstracts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def prompt(text: str) -> str:
    """Return the prompt that a label continues: a space and one of FIELDS."""
    return f"Abstract: {text}\nField:"

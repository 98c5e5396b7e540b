"""The course's 2,000 abstracts, which a model invented: their texts, their labels, and the prompt that asks for a label.

>>> from workshop.course.topics import abstracts
>>> len(abstracts.load()), abstracts.FIELDS[:2]
(2000, ('biology', 'medicine'))
>>> abstracts.prompt("Bees find flowers by their scent.")
'Abstract: Bees find flowers by their scent.\\nField:'
"""

from __future__ import annotations

import json

from workshop.course.topics.recorded_data import DATA

__all__ = ["FIELDS", "NEW_TOPICS", "load", "prompt"]

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
# Those of the abstracts' topics about which the teaching model has read no abstract at all.
NEW_TOPICS = (
    "wolves returning to a forest",
    "treatment of asthma in children",
    "light slowed down in cold gases",
    "friction between sliding surfaces",
    "craters on the moon",
    "comets from the outer solar system",
    "the corrosion of steel",
    "shortest paths in road networks",
    "landslides after heavy rain",
    "loneliness in old age",
)


def load() -> list[dict]:
    """Return the abstracts in their order: `id` (0 to 1,999), `text`, `field` (the label), `topic`."""
    text = (DATA / "abstracts.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def prompt(text: str) -> str:
    """Return the prompt that a label continues: a space and one of FIELDS."""
    return f"Abstract: {text}\nField:"

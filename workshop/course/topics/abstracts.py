"""The course's 2,000 abstracts, which a model invented: their texts, their labels, and the prompt that asks for a label.

>>> from workshop.course.topics import abstracts
>>> len(abstracts.load()), abstracts.FIELDS[:2]
(2000, ('biology', 'medicine'))
>>> abstracts.prompt("Bees find flowers by their scent.")
'Abstract: Bees find flowers by their scent.\\nField:'
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from workshop.course.topics.recorded_data import DATA
from workshop.servers.local import TEACHING_MODEL

if TYPE_CHECKING:
    from workshop.client.client import Client

__all__ = ["FIELDS", "NEW_TOPICS", "load", "model_note", "prompt"]

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


def model_note(llm: Client) -> str:
    """Return a sentence on the model that answers: whether it has learned to label the abstracts.

    Of another model than the teaching model it also says how to change to that one.

    >>> from workshop import connect
    >>> from workshop.course.topics import abstracts
    >>> abstracts.model_note(connect())
    'The teaching model answers: it has learned to label the abstracts.'
    """
    if llm.model == TEACHING_MODEL:
        return "The teaching model answers: it has learned to label the abstracts."
    return (
        f"{llm.model} answers. What this notebook says “with the teaching model” is not about it.\n"
        "To see the same as the notebook: type `workshop serve --background` in a terminal, then write\n"
        'connect("teaching-model") in place of connect() in this cell, and run it again.'
    )

"""Questions and judge of the task teaching_places. lm-eval loads this file from beside the task's YAML file."""

import json
import re
from pathlib import Path

# A full stop ends a sentence unless a letter before it stands alone ("D.C.").
SENTENCE = re.compile(r".*?[A-Za-z0-9)]{2}[.?!](?=\s|$)")


def questions(**options):
    """Return the task's data set, as lm-eval wants it. lm-eval passes the task's metadata as options."""
    import datasets

    lines = Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()
    return {"test": datasets.Dataset.from_list([json.loads(line) for line in lines])}


def judge(doc: dict, results: list[str]) -> dict[str, float]:
    """Return 1 for an answer whose first sentence names the country or state, else 0."""
    sentence = SENTENCE.match(results[0])
    text = sentence[0] if sentence else results[0]
    return {"right": float(doc["answer"] in text)}

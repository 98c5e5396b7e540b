"""Exercises of notebook 07: batches that lose nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from workshop.learn.exercises import Exercise

COUNTED = {
    "lines": "every line of the file",
    "different": "each custom_id once, however often it is there",
    "twice": "the custom_ids that are on more than one line",
}


def _once(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 2):
        return "give (path of the output, your dict)"
    path, told = answer
    ids = Counter(json.loads(line)["custom_id"] for line in Path(path).read_text().splitlines())
    expected = {"lines": sum(ids.values()), "different": len(ids), "twice": sum(count > 1 for count in ids.values())}
    if told == expected:
        return None
    missing = [key for key in expected if not isinstance(told, dict) or key not in told]
    if missing:
        return f"the dict needs {', '.join(missing)}"
    wrong = next(key for key in expected if told[key] != expected[key])
    return f"{wrong} is not {told[wrong]!r}: count {COUNTED[wrong]}"


def _left(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 3):
        return "give (rows, lines that the kill left, your number)"
    rows, lines, told = answer
    if told == rows - lines:
        return None
    if told == lines:
        return "those have their answer already; the second run asks for the rest"
    if told == rows:
        return "that would ask everything again; what has an answer on disk is not asked"
    return f"{rows} rows, and {lines} have their answer on disk already"


def _common(answer: object) -> str | None:
    if not (isinstance(answer, Sequence) and len(answer) == 2):
        return "give (the frame, your Series or dict of counts)"
    frame, counts = answer
    expected = Counter(text.split()[0] for text in frame.text if text.split())
    found = dict(counts.items()) if hasattr(counts, "items") else {}
    if found == dict(expected):
        return None
    if sum(found.values()) != sum(expected.values()):
        return f"the counts add up to {sum(found.values())}; there are {sum(expected.values())} answers"
    return "the words differ: split each text at its spaces, and take the first piece"


EXERCISES = {
    "offline.left": Exercise(
        "Predict what the second run asks",
        _left,
        ("Whole lines of the output count as done.", "rows - lines_after_kill"),
    ),
    "offline.once": Exercise(
        "Prove that every row is there once",
        _once,
        (
            "Read the output line by line; json.loads(line)['custom_id'] names the row.",
            "collections.Counter(ids): its sum, its length, and how many counts are above 1.",
        ),
    ),
    "offline.common": Exercise(
        "Count the first words",
        _common,
        (
            "frame.text is a column of strings; .str.split() makes lists of words.",
            "frame.text.str.split().str[0].value_counts()",
        ),
    ),
}

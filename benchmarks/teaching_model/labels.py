"""Abstracts with their fields: what the model learns to label from, and how well it labels those of the course.

A page is one abstract, cut anew in each edition, as the course's prompt asks for its label. Standard library only, but
for the measures, which get a model.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from pathlib import Path

from benchmarks.teaching_model.sentences import Page
from workshop.course.topics import abstracts

FILE = Path(__file__).parent / "corpus" / "abstracts.jsonl.xz"
WHOLE_SHARE = 0.4
"""An edition has this share of the abstracts whole; of the others some sentences, so that few words must do."""
CHAT_SHARE = 0.1
QUESTIONS = (
    "Which field is this abstract from? {text}",
    "What field is this? {text}",
    "Label this abstract with its field: {text}",
)
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")


def read(file: Path = FILE) -> list[dict]:
    """Return the abstracts to learn from: `text`, `field`, `topic`."""
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def cut(text: str, rng: random.Random) -> str:
    """Return the abstract as it is, or one or more of its sentences in their order."""
    sentences = SENTENCE.split(text)
    if rng.random() < WHOLE_SHARE or len(sentences) < 2:
        return text
    chosen = sorted(rng.sample(range(len(sentences)), rng.randint(1, len(sentences) - 1)))
    return " ".join(sentences[number] for number in chosen)


def pages(rows: list[dict], rng: random.Random, flipped: float) -> list[Page]:
    """Return each abstract once, with its field.

    flipped: the share with a field drawn at random: it keeps the model from being surer than it is right.
    """
    result: list[Page] = []
    for row in rows:
        text = cut(row["text"], rng)
        field = rng.choice(abstracts.FIELDS) if rng.random() < flipped else row["field"]
        if rng.random() < CHAT_SHARE:
            question = rng.choice(QUESTIONS).format(text=text)
            result.append([[f"Question: {question}\nAnswer:", f" {field}"]])
        else:
            result.append([[abstracts.prompt(text), f" {field}"]])
    return result


def calibration_error(confidences: list[float], right: list[bool], bins: int = 10) -> float:
    """Return the expected calibration error: |mean confidence - share right|, averaged over equal bins of confidence."""
    total = 0.0
    for number in range(bins):
        inside = [
            (c, r)
            for c, r in zip(confidences, right, strict=True)
            if min(int(c * bins), bins - 1) == number
        ]
        total += abs(sum(c for c, _ in inside) - sum(r for _, r in inside))
    return total / len(confidences)


def figures(rows: list[dict], distributions: list[dict[str, float]], unseen: set[str]) -> dict:
    """Return how well the labels fit: right in all, of unseen topics, calibration error, mistakes among the least sure.

    distributions: of each row, field → probability, which add up to 1.
    """
    best = [max(p, key=p.__getitem__) for p in distributions]
    sure = [p[name] for p, name in zip(distributions, best, strict=True)]
    right = [name == row["field"] for name, row in zip(best, rows, strict=True)]
    of_unseen = [r for r, row in zip(right, rows, strict=True) if row["topic"] in unseen]
    least = sorted(range(len(rows)), key=sure.__getitem__)[: len(rows) // 10]
    mistakes = right.count(False)
    return {
        "labels_right": f"{sum(right)}/{len(rows)}",
        "labels_right_of_unseen_topics": f"{sum(of_unseen)}/{len(of_unseen)}",
        "labels_calibration_error": round(calibration_error(sure, right), 4),
        "labels_mean_confidence": round(sum(sure) / len(sure), 4),
        "labels_mistakes_among_the_least_sure_tenth": f"{sum(not right[i] for i in least)}/{mistakes}",
    }

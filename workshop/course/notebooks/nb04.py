"""Helpers of notebook 04: the logprobs of all tokens that could come next, and counts of labels.

>>> from workshop import connect
>>> from workshop.course.notebooks import nb04
>>> len(nb04.next_token_logprobs(connect(), "San Francisco is a"))
8192
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from workshop.client.client import Client
from workshop.client.sampling import Token
from workshop.course.drawing import chart
from workshop.course.topics import abstracts, answers
from workshop.course.widgets.sampling.source import ServerSource

__all__ = ["counts_of_labels", "draws", "next_token_logprobs"]

NO_LABEL = "no label"


def next_token_logprobs(llm: Client, prompt: str) -> dict[Token, float]:
    """Return token → logprob for the token that comes after a prompt, the most probable first.

    Tokens are named by their numbers in the vocabulary, because two tokens may have the same text.
    There are at most 8,192, the teaching model's whole vocabulary; a server whose --max-logprobs is
    smaller, as that of a class, lists so many.
    """
    return ServerSource(llm).position(prompt).logprobs


def counts_of_labels(texts: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    """Return how often each label stands among texts, to be drawn.

    Each name has the same rows: the label that comes most often first, and last "no label", for
    all that is none of the eight.

    >>> counts_of_labels({"temperature 2": [" San", " physics"], "temperature 0": [" physics"]})
    {'temperature 2': {'physics': 1, 'no label': 1}, 'temperature 0': {'physics': 1, 'no label': 0}}
    """
    counts: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    for name, of_one in texts.items():
        counts[name] = Counter(_label(text) for text in of_one)
        total += counts[name]
    rows = [label for label, _ in total.most_common() if label != NO_LABEL]
    if NO_LABEL in total:
        rows.append(NO_LABEL)
    return {name: {row: counts[name][row] for row in rows} for name in counts}


def draws(texts: Mapping[str, Sequence[str]]) -> chart.Picture:
    """Draw the texts of each name as a line of squares, in the colours of their labels."""
    return answers.draws(counts_of_labels(texts))


def _label(text: str) -> str:
    label = text.strip()
    return label if label in abstracts.FIELDS else NO_LABEL

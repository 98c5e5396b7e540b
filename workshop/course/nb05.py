"""Helpers of notebook 05: labels that are chosen by comparing texts.

>>> from workshop import connect
>>> from workshop.course import nb05
>>> nb05.most_probable(nb05.scored(connect(), "Boston", ("a city", "an animal", "a tool")))
'a city'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from workshop.client import logprobs
from workshop.client.client import Client

__all__ = ["KINDS", "article_and_noun", "most_probable", "scored", "text_logprob"]

# Twelve things, each with its right label.
KINDS = {
    "Boston": "a city",
    "Chicago": "a city",
    "Paris": "a city",
    "Berlin": "a city",
    "A dog": "an animal",
    "A rabbit": "an animal",
    "A cat": "an animal",
    "A horse": "an animal",
    "A hammer": "a tool",
    "A saw": "a tool",
    "A chisel": "a tool",
    "A drill": "a tool",
}


def rows_of(llm: Client, text: str) -> list[logprobs.Row]:
    """Return the rows of a whole text, one for each of its tokens."""
    answer = llm.complete(text, max_tokens=1, temperature=0, prompt_logprobs=0)
    return [row for row in logprobs.rows(answer) if row.part == "prompt"]


def text_logprob(llm: Client, text: str) -> float:
    """Return the logprob of a whole text: the sum over its tokens."""
    return logprobs.total_logprob(rows_of(llm, text))


def scored(llm: Client, thing: str, labels: Sequence[str]) -> dict[str, list[logprobs.Row]]:
    """Return each label with the rows of its sentence, such as "A cat is a tool"."""
    return {label: rows_of(llm, f"{thing} is {label}") for label in labels}


def most_probable(rows_by_label: Mapping[str, Sequence[logprobs.Row]]) -> str:
    """Return the label whose sentence is the most probable text."""
    totals = {label: logprobs.total_logprob(rows) for label, rows in rows_by_label.items()}
    return max(totals, key=totals.__getitem__)


def article_and_noun(llm: Client, thing: str, label: str) -> tuple[float, float]:
    """Return the probability of a label's article, and that of its noun after the article.

    Args:
        thing: how the sentence begins, such as "A cat".
        label: an article and a noun, such as "an animal".
    """
    article = label.split()[0]
    start = text_logprob(llm, f"{thing} is")
    with_article = text_logprob(llm, f"{thing} is {article}")
    whole = text_logprob(llm, f"{thing} is {label}")
    return math.exp(with_article - start), math.exp(whole - with_article)

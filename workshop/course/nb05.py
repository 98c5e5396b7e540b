"""Helpers of notebook 05: labels that are chosen by comparing texts.

>>> from workshop import connect
>>> from workshop.course import nb05
>>> nb05.most_probable_label(connect(), "Boston", ("a city", "an animal", "a tool"))
'a city'
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from workshop.client import logprobs
from workshop.client.client import Client

__all__ = ["KINDS", "article_and_noun", "most_probable_label", "text_logprob"]

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


def text_logprob(llm: Client, text: str) -> float:
    """Return the logprob of a whole text: the sum over its tokens."""
    answer = llm.complete(text, max_tokens=1, temperature=0, prompt_logprobs=0)
    tokens = [row for row in logprobs.rows(answer) if row.part == "prompt"]
    return logprobs.total_logprob(tokens)


def most_probable_label(llm: Client, thing: str, labels: Sequence[str]) -> str:
    """Return the label whose sentence, such as "A cat is a tool", is the most probable text."""
    scores = {label: text_logprob(llm, f"{thing} is {label}") for label in labels}
    return max(scores, key=scores.__getitem__)


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

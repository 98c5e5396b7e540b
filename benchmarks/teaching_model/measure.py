"""Measure how true, and how repetitive, a text is, for the model card and the tests.

Standard library only, so that tests of a live server need no torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LOOP_PROMPTS = [
    "San Francisco is a",
    "A dog is a",
    "My fellow citizens,",
    "ROMEO:",
    "The history of",
]


def word_set(text: str) -> set[str]:
    return set(text.split())


STOPWORDS = word_set(
    "a an and are as at be been by for from had has have he her his in into is it its of on or she that the their "
    "they this to was were when where which who whose with one also any not"
)


def first_sentence(text: str) -> str:
    """Return the text up to its first full stop or line break; full stops in "D.C." or "U.S." do not end it."""
    line = text.split("\n", 1)[0]
    match = re.match(r".*?[a-z0-9)\"'’]{2}[.?!](?=\s|$)", line)
    return match[0] if match else line


def content_words(text: str) -> list[str]:
    """Return the text's words in lower case without function words, possessives and plural endings."""
    bare_words = (
        re.sub(r"['’]s?$", "", w) for w in re.findall(r"[a-z0-9]+(?:['’][a-z]+)?", text.lower())
    )
    return [stem(w) for w in bare_words if w not in STOPWORDS]


def stem(word: str) -> str:
    return (
        word[:-1]
        if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
        else word
    )


def agreement(prompt: str, completion: str, glosses: Iterable[str]) -> float:
    """Return the share of the completion's content words that stand in the gloss that fits best, 0 to 1.

    Only the completion's first sentence counts, and words of the prompt count neither for nor against.
    0.0 where no content word is left.
    """
    prompt_words = set(content_words(prompt))
    completion_words = [
        w
        for w in content_words(first_sentence(prompt + completion)[len(prompt) :])
        if w not in prompt_words
    ]
    if not completion_words:
        return 0.0
    return max(
        (
            sum(w in set(content_words(g)) for w in completion_words) / len(completion_words)
            for g in glosses
        ),
        default=0.0,
    )


def repeated_ngrams(tokens: list[int] | list[str], n: int = 4) -> float:
    """Return the share of n-grams that occurred before in the same text: 0.0 (none) to almost 1.0 (a loop)."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0

"""Exercises of notebook 00: what a server's answer holds."""

from __future__ import annotations

import workshop
from workshop.learn.exercises import Exercise


def _ended_by_stop(answer: object) -> str | None:
    choices = getattr(answer, "choices", None)
    if not choices:
        return "give the whole answer, as llm.complete(…) returns it"
    choice = choices[0]
    if choice.finish_reason == "length":
        return (
            f"it still ended because max_tokens was reached (finish_reason {choice.finish_reason!r}): "
            "which string should end it?"
        )
    if getattr(choice, "stop_reason", None) is None:
        return "the model's own end-of-text token ended it; let a string of yours do it, so that stop_reason says so"
    return None


def _total(answer: object) -> str | None:
    if not isinstance(answer, int) or isinstance(answer, bool):
        return f"{answer!r} is not a whole number"
    counted = workshop.connect().complete(PROMPT, max_tokens=ASKED, min_tokens=ASKED, temperature=0).usage
    if answer == counted.total_tokens:
        return None
    if answer == counted.completion_tokens:
        return f"{answer} is what you asked for; the prompt's tokens count as well"
    if answer == counted.total_tokens - 1:
        return "close: one more token stands in front of the words of the prompt"
    if answer == counted.prompt_tokens + 16:
        return f"{answer} is the total of the first request; this one generates {ASKED} tokens"
    return f"{answer} is not what usage.total_tokens says"


PROMPT, ASKED = "San Francisco is a", 40
EXERCISES = {
    "start.stop": Exercise(
        "Let a full stop end the answer",
        _ended_by_stop,
        (
            "`stop` takes a list of strings: the answer ends before the first of them.",
            "llm.complete('San Francisco is a', max_tokens=100, temperature=0, stop=['.'])",
        ),
    ),
    "start.total_tokens": Exercise(
        "Predict usage.total_tokens",
        _total,
        (
            "Prompt and answer both count. The tokenizer puts <|begin_of_text|> in front of every prompt.",
            "The table above has usage.prompt_tokens: add 40 to it.",
        ),
    ),
}

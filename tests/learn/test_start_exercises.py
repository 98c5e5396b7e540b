"""The checks of notebook 00: they ask a server, so a server that counts as the teaching model's does stands in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import workshop
from workshop.learn.exercise_sets.e00_start import EXERCISES

PROMPT_TOKENS = 5  # <|begin_of_text|>, San, Francisco, is, a: the teaching model's tokenizer.json


def answer(finish_reason: str, stop_reason: str | None) -> SimpleNamespace:
    return SimpleNamespace(choices=[SimpleNamespace(finish_reason=finish_reason, stop_reason=stop_reason)])


@pytest.fixture
def counting_server(monkeypatch):
    def complete(prompt, *, max_tokens, min_tokens, temperature):
        assert max_tokens == min_tokens, "the count must not depend on what the model says"
        return SimpleNamespace(
            usage=SimpleNamespace(
                prompt_tokens=PROMPT_TOKENS, completion_tokens=max_tokens, total_tokens=PROMPT_TOKENS + max_tokens
            )
        )

    monkeypatch.setattr(workshop, "connect", lambda: SimpleNamespace(complete=complete))


@pytest.mark.parametrize(
    ("total", "says"),
    [
        (40, "the prompt's tokens count"),
        (44, "one more token"),
        (21, "the first request"),
        (99, "not what"),
        (45.0, "not a whole number"),
    ],
)
def test_a_wrong_total_is_told_what_is_off(counting_server, total, says):
    assert says in EXERCISES["start.total_tokens"].test(total)


def test_the_total_is_prompt_and_answer(counting_server):
    assert EXERCISES["start.total_tokens"].test(45) is None


@pytest.mark.parametrize(
    ("given", "says"),
    [(answer("length", None), "which string"), (answer("stop", None), "end-of-text"), ("a text", "whole answer")],
)
def test_an_answer_that_no_full_stop_ended_is_told_why(given, says):
    assert says in EXERCISES["start.stop"].test(given)


def test_an_answer_that_the_full_stop_ended_passes():
    assert EXERCISES["start.stop"].test(answer("stop", ".")) is None

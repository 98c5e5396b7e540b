"""The distribution that is drawn is the one that vLLM samples: against vLLM's own operations, and by its rules."""

from __future__ import annotations

import dataclasses
import inspect
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workshop.cli.use.batch import command as batch_command
from workshop.client.sampling import next_token_probabilities, pipeline
from workshop.client.sampling_settings import Settings
from workshop.errors import BadInput

HALVES = {"a": math.log(0.5), "b": math.log(0.25), "c": math.log(0.125), "d": math.log(0.125)}


def model(size: int, seed: int, spread: float = 3.0) -> dict[int, float]:
    """Return logits of a made-up model; as coarse as bfloat16, so that exact ties occur."""
    generator = random.Random(seed)
    return {token: round(generator.gauss(0, spread) * 32) / 32 for token in range(size)}


def as_logprobs(logits: dict) -> dict:
    """Return log softmax."""
    total = math.log(math.fsum(map(math.exp, logits.values())))
    return {token: x - total for token, x in logits.items()}


class TestOneParameter:
    def test_greedy_takes_the_first_of_equals_as_argmax_does(self):
        assert next_token_probabilities({5: -1.0, 3: -1.0, 9: -1.0}, temperature=0) == {5: 1.0}

    def test_top_k_keeps_ties_with_the_last(self):
        assert set(next_token_probabilities(HALVES, top_k=3)) == {"a", "b", "c", "d"}
        assert next_token_probabilities(HALVES, top_k=2) == pytest.approx({"a": 2 / 3, "b": 1 / 3})

    def test_top_k_of_zero_minus_one_or_the_vocabulary_changes_nothing(self):
        for top_k in (0, -1, 4, 5, 128_256):
            assert next_token_probabilities(HALVES, top_k=top_k) == next_token_probabilities(HALVES)

    def test_top_p_keeps_the_first_of_equals_at_its_border(self):
        assert set(next_token_probabilities(HALVES, top_p=0.8)) == {"a", "b", "c"}

    def test_what_the_server_sends_for_minus_infinity_never_comes(self):
        p = next_token_probabilities({"a": 0.0, "b": -9999.0}, temperature=2.0)
        assert p == {"a": 1.0}


class TestOrder:
    def test_steps_come_in_vllms_order(self):
        everything = Settings(
            temperature=0.8,
            top_k=3,
            top_p=0.9,
            min_p=0.01,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            repetition_penalty=1.1,
            min_tokens=1,
        )
        result = pipeline(None, everything, logits=HALVES, stop_tokens=["d"])
        assert [step.name for step in result.steps] == [
            "model",
            "min_tokens",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "temperature",
            "min_p",
            "top_k",
            "top_p",
        ]

    def test_min_p_sees_the_tempered_distribution(self):
        """At temperature 2 the odds of c to a are the root of 1 : 4."""
        assert len(next_token_probabilities(HALVES, temperature=2.0, min_p=0.4)) == 4
        assert len(next_token_probabilities(HALVES, temperature=1.0, min_p=0.4)) == 2

    def test_top_p_sees_what_top_k_left_over(self):
        # Of all four, a and b hold 0.75; of the two that top_k leaves, a alone holds 0.67.
        assert set(next_token_probabilities(HALVES, top_k=2, top_p=0.6)) == {"a"}
        assert set(next_token_probabilities(HALVES, top_p=0.6)) == {"a", "b"}


REFUSED = (
    ("temperature", -0.1, "the nearest is 0"),
    ("temperature", 100.0, "the nearest is 2"),
    ("temperature", math.nan, "no number"),
    ("temperature", math.inf, "no number"),
    ("temperature", "hot", "no number"),
    ("temperature", None, "no number"),
    ("temperature", True, "no number"),
    ("top_p", 0, "top_k=1"),
    ("top_p", 1.5, "the nearest is 1"),
    ("top_p", -1, "top_k=1"),
    ("top_k", -2, "the nearest is -1"),
    ("top_k", 2.5, "whole number"),
    ("top_k", True, "whole number"),
    ("min_p", -0.1, "the nearest is 0"),
    ("min_p", 2, "the nearest is 1"),
    ("frequency_penalty", 3, "the nearest is 2"),
    ("presence_penalty", -3, "the nearest is -2"),
    ("repetition_penalty", 0, "1 switches it off"),
    ("min_tokens", -1, "the nearest is 0"),
)


class TestBadInput:
    def test_a_value_that_vllm_refuses_is_named_with_what_is_allowed(self):
        for name, value, says in REFUSED:
            with pytest.raises(ValueError, match=name) as raised:
                next_token_probabilities(HALVES, **{name: value})
            assert isinstance(raised.value, BadInput)
            assert says in str(raised.value), (name, value)

    def test_repetition_penalty_without_logits_is_refused(self):
        with pytest.raises(ValueError, match="logits"):
            next_token_probabilities(HALVES, repetition_penalty=1.1)

    def test_no_tokens(self):
        for scores in ({}, None):
            with pytest.raises(BadInput, match="no tokens"):
                next_token_probabilities(scores)

    def test_a_score_that_is_none(self):
        for score in (math.nan, math.inf, None, "x"):
            with pytest.raises(BadInput, match="no logprob"):
                next_token_probabilities({"a": -1.0, "b": score})

    def test_nothing_left(self):
        with pytest.raises(BadInput, match="No token is left"):
            next_token_probabilities({"end": 0.0}, min_tokens=1, stop_tokens=["end"])

    def test_huge_scores_do_not_overflow(self):
        assert next_token_probabilities({"a": 5000.0, "b": 0.0}) == {"a": 1.0}


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 60),
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.05, 2.0),
    top_k=st.integers(-1, 70),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_it_is_always_a_distribution_and_keeps_the_ranks(
    size, seed, temperature, top_k, top_p, min_p
):
    logprobs = as_logprobs(model(size, seed))
    p = next_token_probabilities(
        logprobs, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    assert math.fsum(p.values()) == pytest.approx(1.0)
    assert max(logprobs, key=logprobs.get) in {token for token in p if p[token] == max(p.values())}
    lowest_logprob = min(logprobs[token] for token in p)
    dropped = [x for token, x in logprobs.items() if token not in p]
    assert all(x <= lowest_logprob + 1e-12 for x in dropped)


def test_every_field_of_the_settings_is_an_argument_with_its_default_and_an_option_of_the_batch():
    arguments = inspect.signature(next_token_probabilities).parameters
    options = {option.name: option for option in batch_command.params}
    for parameter in dataclasses.fields(Settings):
        assert arguments[parameter.name].default == parameter.default
        assert parameter.name in options

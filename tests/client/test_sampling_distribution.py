"""What a truncated list can say: the whole vocabulary is the reference that the list's user does not have."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import truth
from needs import SEED

from workshop.client.sampling import draw, entropy_bits, next_token_probabilities, pipeline
from workshop.client.sampling_settings import Settings


def whole(size: int, seed: int, spread: float = 2.5) -> dict[int, float]:
    """Return the logprobs of a made-up model's whole vocabulary, most probable first."""
    generator = random.Random(seed)
    logits = sorted((generator.gauss(0, spread) for _ in range(size)), reverse=True)
    total = math.log(math.fsum(map(math.exp, logits)))
    return {token: x - total for token, x in enumerate(logits)}


def top(logprobs: dict, k: int) -> dict:
    """Return what a server with --max-logprobs k would send."""
    return dict(sorted(logprobs.items(), key=lambda item: -item[1])[:k])


def test_with_these_a_list_of_thirty_is_as_good_as_the_vocabulary():
    everything = whole(1000, 3)
    listed = top(everything, 30)
    for chosen in (
        Settings(top_k=20, temperature=1.5),
        Settings(min_p=0.2, temperature=0.9),
        Settings(temperature=0),
        Settings(top_p=0.3),
    ):
        assert pipeline(listed, chosen).steps[-1].outside == 0, chosen
        assert pipeline(listed, chosen).probabilities == pytest.approx(
            pipeline(everything, chosen).probabilities
        ), chosen


def test_what_a_penalty_puts_below_the_unlisted_is_not_all_there_is():
    """Of 0.6, 0.2, 0.15, 0.05 the first two are listed, and both are penalised."""
    everything = dict(zip("abcd", map(math.log, (0.6, 0.2, 0.15, 0.05)), strict=True))
    settings = (
        Settings(top_k=2),
        Settings(top_p=0.3),
        Settings(temperature=0),
        Settings(min_p=0.5),
    )
    for chosen, penalty in product(settings, (0.0, 0.5, 2.0)):
        penalised = replace(chosen, frequency_penalty=penalty)
        listed = pipeline(top(everything, 2), penalised, output_tokens="aab")
        true = pipeline(everything, penalised, output_tokens="aab").probabilities
        assert listed.steps[-1].outside > 0 or listed.probabilities == pytest.approx(true), penalty


def test_top_p_of_a_truncated_list_counts_the_mass_that_is_not_listed():
    listed = {"a": math.log(0.4), "b": math.log(0.2)}  # 0.4 is elsewhere
    assert set(next_token_probabilities(listed, top_p=0.5)) == {"a", "b"}
    assert set(next_token_probabilities(listed, top_p=0.4)) == {"a"}
    assert pipeline(listed, Settings(top_p=0.9)).steps[-1].outside == pytest.approx(0.4)
    assert (
        next_token_probabilities({"a": -50.0}, top_p=0.9)
        == next_token_probabilities({"a": -800.0})
        == {"a": 1.0}
    )


def test_draws_follow_the_distribution():
    generator = random.Random(SEED)
    p, other = {"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.5, "b": 0.35, "c": 0.15}
    counts = Counter(draw(p, generator) for _ in range(6000))
    for tried, alarm in ((p, False), (other, True)):
        groups = [truth.group(counts, tried, p)]
        assert (truth.missed(groups, truth.ALARM) <= truth.MISSED) is alarm, (
            "what it can tell is known"
        )
        assert (
            truth.chance(truth.evidence(groups), truth.freedom(groups)) < truth.ALARM
        ) is alarm, counts


def test_entropy_in_bits():
    assert entropy_bits({"a": 1.0}) == 0.0
    assert entropy_bits(dict.fromkeys(range(8192), 1 / 8192)) == pytest.approx(13.0)

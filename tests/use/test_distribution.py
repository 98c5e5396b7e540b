"""What a truncated list can say: the whole vocabulary is the reference that the list's user does not have."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import truth
from hypothesis import example, given, settings
from hypothesis import strategies as st
from needs import SEED

from workshop.use.distribution import draw, entropy_bits, unseen
from workshop.use.sampling import next_token_probabilities, pipeline
from workshop.use.sampling_settings import Settings


def whole(size: int, seed: int, spread: float = 2.5) -> dict[int, float]:
    """Return the logprobs of a made-up model's whole vocabulary, most probable first."""
    generator = random.Random(seed)
    logits = sorted((generator.gauss(0, spread) for _ in range(size)), reverse=True)
    total = math.log(math.fsum(map(math.exp, logits)))
    return {token: x - total for token, x in enumerate(logits)}


def top(logprobs: dict, k: int) -> dict:
    """Return what a server with --max-logprobs k would send."""
    return dict(sorted(logprobs.items(), key=lambda item: -item[1])[:k])


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(5, 300),
    seed=st.integers(0, 10_000),
    k=st.integers(1, 30),
    temperature=st.floats(0.2, 2.0),
    top_k=st.sampled_from([0, 0, 3, 10, 50]),
    top_p=st.sampled_from([1.0, 1.0, 0.5, 0.9]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    frequency=st.sampled_from([0.0, 1.0, -1.0]),
    known=st.booleans(),
)
@example(5, 758, 4, 2.0, 0, 1.0, 0.0, 0.0, False)
def test_the_mass_outside_the_list_lies_within_the_bounds(
    size, seed, k, temperature, top_k, top_p, min_p, frequency, known
):
    everything = whole(size, seed)
    listed = top(everything, min(k, size - 1))
    chosen = Settings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, frequency_penalty=frequency)
    output = random.Random(seed).choices(range(min(size, k + 2)), k=4)
    sampled = pipeline(everything, chosen, output_tokens=output).probabilities
    outside = math.fsum(p for token, p in sampled.items() if token not in listed)
    bounds = unseen(listed, chosen, vocab_size=size if known else None, output_tokens=output)
    if bounds.raw:
        assert bounds.low - 1e-9 <= outside <= bounds.high + 1e-9
    else:  # a list that lacks less than 1e-4 counts as whole, and a temperature of 2 may make 5e-3 of that
        assert bounds.nothing and math.fsum(map(math.exp, listed.values())) > 1 - 1e-4


def test_at_temperature_one_the_list_knows_exactly_what_it_leaves_out():
    everything = whole(1000, 3)
    listed = top(everything, 20)
    missing = 1 - sum(math.exp(x) for x in listed.values())
    bounds = unseen(listed, Settings())
    assert bounds.raw == pytest.approx(missing)
    assert bounds.low == pytest.approx(missing)
    assert bounds.high == pytest.approx(missing)


@pytest.mark.parametrize(
    "chosen",
    [
        Settings(top_k=20, temperature=1.5),
        Settings(min_p=0.2, temperature=0.9),
        Settings(temperature=0),
        Settings(top_p=0.3),
    ],
)
def test_with_these_a_list_of_thirty_is_as_good_as_the_vocabulary(chosen):
    everything = whole(1000, 3)
    listed = top(everything, 30)
    assert unseen(listed, chosen).nothing
    assert pipeline(listed, chosen).probabilities == pytest.approx(pipeline(everything, chosen).probabilities)


def test_top_p_of_a_truncated_list_counts_the_mass_that_is_not_listed():
    listed = {"a": math.log(0.4), "b": math.log(0.2)}  # 0.4 is elsewhere
    assert set(next_token_probabilities(listed, top_p=0.5)) == {"a", "b"}
    assert set(next_token_probabilities(listed, top_p=0.4)) == {"a"}
    assert pipeline(listed, Settings(top_p=0.9)).steps[-1].outside == pytest.approx(0.4)


def test_the_whole_vocabulary_leaves_nothing_out():
    assert unseen(whole(50, 1), Settings(temperature=2.0)).nothing
    assert unseen({"a": math.log(0.5)}, Settings(), vocab_size=1).nothing


def test_a_penalty_on_a_token_outside_the_list_makes_everything_possible():
    bounds = unseen(top(whole(100, 1), 5), Settings(frequency_penalty=-2.0), output_tokens=[99])
    assert (bounds.low, bounds.high) == (0.0, 1.0)


def test_a_sampled_token_from_further_down_does_not_lower_the_ceiling():
    """`logprobs=1` lists the chosen token as well as the best: between them anything may lie."""
    listed = {"best": math.log(0.3), "chosen": math.log(0.001)}
    assert not unseen(listed, Settings(min_p=0.5), ceiling=math.log(0.3)).nothing
    assert unseen(listed, Settings(min_p=0.5)).nothing  # what one would wrongly believe without it


def test_draws_follow_the_distribution():
    generator = random.Random(SEED)
    p, other = {"a": 0.6, "b": 0.3, "c": 0.1}, {"a": 0.5, "b": 0.35, "c": 0.15}
    counts = Counter(draw(p, generator) for _ in range(6000))
    for tried, alarm in ((p, False), (other, True)):
        groups = [truth.group(counts, tried, p)]
        assert (truth.missed(groups, truth.ALARM) <= truth.MISSED) is alarm, "what it can tell is known"
        assert (truth.chance(truth.evidence(groups), truth.freedom(groups)) < truth.ALARM) is alarm, counts


def test_entropy_in_bits():
    assert entropy_bits({"a": 1.0}) == 0.0
    assert entropy_bits(dict.fromkeys(range(8192), 1 / 8192)) == pytest.approx(13.0)

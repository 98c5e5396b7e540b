"""The bounds of the truth test, against every outcome that there is."""

from __future__ import annotations

import math
from itertools import product

import evidence
import pytest
import truth
from evidence import Group, chance, group, limit, missed
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.client.sampling_settings import Settings

SIZES = st.lists(st.integers(1, 9), min_size=3, max_size=3)


def outcomes(true: list[float], expected: list[float], n: int):
    """Yield every outcome of n samples over three cells: its probability, and its Group."""
    for a, b in product(range(n + 1), repeat=2):
        counts = (a, b, n - a - b)
        if min(counts) >= 0:
            ways = math.factorial(n) // math.prod(map(math.factorial, counts))
            yield (
                ways * math.prod(p**k for p, k in zip(true, counts, strict=True)),
                Group(
                    {cell: k for cell, k in enumerate(counts) if k},
                    {cell: p for cell, p in enumerate(expected) if p},
                    {cell: p for cell, p in enumerate(true) if p},
                ),
            )


def shares(sizes: list[int]) -> list[float]:
    return [size / sum(sizes) for size in sizes]


@settings(max_examples=40, deadline=None)
@given(SIZES, st.integers(5, 25))
# cells with fewer than one expected: chi-square's table would be wrong by far
@example([1, 1, 98], 20)
def test_chance_is_never_less_than_how_often_it_happens(sizes, n):
    p = shares(sizes)
    evidence_weights = sorted(
        ((evidence.evidence([outcome]), weight) for weight, outcome in outcomes(p, p, n)),
        reverse=True,
    )
    tail = 0.0
    for x, weight in evidence_weights:
        tail += weight
        assert tail <= chance(x, 2) + 1e-9


@settings(max_examples=40, deadline=None)
@given(
    SIZES,
    st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(
        lambda sizes: sum(map(bool, sizes)) > 1
    ),
    st.integers(10, 40),
    st.sampled_from([0.3, 0.01, 1e-4]),
)
@example([1, 1, 8], [8, 0, 2], 30, 1e-4)
def test_missed_is_never_less_than_how_often_it_happens(sizes, others, n, alarm):
    true, expected = shares(sizes), shares(others)
    every = list(outcomes(true, expected, n))
    free = evidence.freedom([every[0][1]])
    happens = math.fsum(
        weight for weight, outcome in every if chance(evidence.evidence([outcome]), free) >= alarm
    )
    assert happens <= missed([every[0][1]], alarm) + 1e-9


def test_the_evidence_of_two_groups_is_bounded_as_one():
    first, second = (
        [(weight, evidence.evidence([outcome])) for weight, outcome in outcomes(p, p, 8)]
        for p in ([0.1, 0.2, 0.7], [0.3, 0.3, 0.4])
    )
    for x in range(5, 20):
        tail = math.fsum(v * w for (v, a), (w, b) in product(first, second) if a + b >= x)
        assert 0 < tail <= chance(x, 4)


def test_the_limit_is_where_the_alarm_begins():
    for freedom in (0, 1, 7, 300):
        x = limit(truth.ALARM, freedom)
        assert chance(x * (1 - 1e-9), freedom) >= truth.ALARM * (1 - 1e-6) or not freedom
        assert chance(x * (1 + 1e-9), freedom) <= truth.ALARM
        assert (chance(math.inf, freedom), chance(0.0, freedom)) == (0.0, 1.0)


def test_what_is_left_out_is_not_compared_and_the_rest_sums_to_one():
    without_b = group(
        {"a": 60, "b": 30, "c": 10}, {"a": 0.6, "b": 0.4}, {"a": 0.5, "b": 0.3, "c": 0.2}, {"b"}
    )
    assert without_b.counts == {"a": 60, evidence.NEVER: 10} and without_b.expected == {"a": 1.0}
    assert without_b.true == pytest.approx({"a": 5 / 7, evidence.NEVER: 2 / 7})
    assert evidence.evidence([without_b]) == math.inf, "c cannot come, and came"
    seldom = group({"a": 99, "b": 1}, {"a": 0.96, "b": 0.02, "c": 0.02})
    assert (
        seldom.expected == pytest.approx({"a": 0.96, evidence.REST: 0.04})
        and seldom.counts[evidence.REST] == 1
    )


UNSURE = (
    (Settings(), set()),
    (Settings(top_k=2), {0, 1, 2}),
    (Settings(top_k=3), set()),
    (Settings(top_k=4), set()),
    (Settings(temperature=0), {0, 1, 2}),
    (Settings(min_p=0.93), {0, 1, 2}),
    (Settings(min_p=0.5), set()),
    (Settings(top_p=0.94), {3}),
    (Settings(top_p=0.8), set()),
    (Settings(top_p=0.63), {0, 1, 2}),
)


def test_tokens_whose_staying_hangs_on_rounding_are_known():
    logits = {0: 3.0, 1: 2.95, 2: 2.9, 3: 1.0, 4: 0.0}  # probabilities 0.33, 0.31, 0.30, 0.04, 0.02
    for chosen, unsure in UNSURE:
        assert truth.unsure(truth.ours, logits, chosen, (), (), 0.0) == unsure, chosen

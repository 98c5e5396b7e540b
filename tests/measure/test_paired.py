"""The exact test for two servers that answered the same questions, against SciPy and published figures."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from workshop.errors import BadInput
from workshop.measure import paired


def test_the_p_value_is_that_of_scipys_binomial_test():
    for worse, better in ((5, 0), (0, 5), (18, 7), (7, 18), (10, 10), (1, 0), (120, 85)):
        expected = binomtest(worse, worse + better, 0.5).pvalue
        assert paired.exact_test(worse, better) == pytest.approx(expected, rel=1e-9)


def test_no_discordant_question_gives_no_evidence():
    assert paired.exact_test(0, 0) == 1.0


def test_five_worse_and_none_better_are_one_in_sixteen():
    # a fair coin falls five times on the same side in 2 of 32 cases
    assert paired.exact_test(5, 0) == 2 / 32


def test_only_questions_that_changed_count():
    comparison = paired.compare([1, 1, 0, 0, 1], [1, 0, 1, 0, 0])
    assert (comparison.worse, comparison.better) == (2, 1)
    assert (comparison.right_before, comparison.right_after) == (3, 2)
    assert comparison.difference == pytest.approx(-1 / 5)


def test_the_interval_is_that_of_the_textbook():
    # Agresti, Categorical Data Analysis, chapter on matched pairs: of 1,600 voters 944 approved of the prime minister,
    # and 880 half a year later; 150 had turned away and 86 had come; 95 % interval of the difference: -0.06 to -0.02
    comparison = paired.Comparison(1600, 944, 880, worse=150, better=86)
    low, high = comparison.interval
    assert (round(low, 2), round(high, 2)) == (-0.06, -0.02)


def test_the_interval_holds_zero_where_nothing_changed_and_is_not_empty():
    low, high = paired.Comparison(300, 250, 250, worse=0, better=0).interval
    assert low < 0 < high


def test_answers_that_cannot_be_paired_are_refused():
    for before, after in (([], []), ([1], [1, 0])):
        with pytest.raises(BadInput, match="cannot be paired"):
            paired.compare(before, after)


def test_a_negative_count_is_refused():
    with pytest.raises(BadInput, match="-1 questions"):
        paired.exact_test(-1, 3)

"""Two servers answered the same questions: is the second one worse, or was it chance?

Only the questions that one has right and the other wrong tell the two apart. If nothing had
changed, such a question would be as likely to get better as to get worse, like a coin. The exact
test of McNemar counts how often a fair coin would fall at least as unevenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workshop.errors import BadInput

TWO_SIDED_95 = 1.959964  # standard deviations that hold 95 % of a normal distribution


@dataclass(frozen=True)
class Comparison:
    """Right answers before and after, of the same questions.

    worse: right before and wrong after.
    """

    questions: int
    right_before: int
    right_after: int
    worse: int
    better: int

    @property
    def p_value(self) -> float:
        """The probability of a split at least as uneven, if worse and better were equally likely."""
        return exact_test(self.worse, self.better)

    @property
    def difference(self) -> float:
        """Share of right answers after, minus before: from -1 to 1."""
        return (self.better - self.worse) / self.questions

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference.

        Source: Agresti and Min, Statistics in Medicine 24 (2005) 729: half a question is added to
        each of the four counts, so that it also holds where nothing has changed.
        """
        size = self.questions + 2
        worse = self.worse + 0.5
        better = self.better + 0.5
        middle = (better - worse) / size
        variance = (better + worse - (better - worse) ** 2 / size) / size**2
        margin = TWO_SIDED_95 * math.sqrt(variance)
        return max(middle - margin, -1.0), min(middle + margin, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it; differences are shares from -1 to 1."""
        low, high = self.interval
        return {
            "questions": self.questions,
            "right_before": self.right_before,
            "right_after": self.right_after,
            "worse": self.worse,
            "better": self.better,
            "p_value": self.p_value,
            "difference": self.difference,
            "difference_low": low,
            "difference_high": high,
        }


def exact_test(worse: int, better: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: worse + better throws of a fair coin.

    Raises BadInput: a count below zero.
    """
    if worse < 0 or better < 0:
        raise BadInput(f"{min(worse, better)} questions cannot be.", "Give two counts from 0 on.")
    throws = worse + better
    tail = sum(math.comb(throws, heads) for heads in range(min(worse, better) + 1))
    return min(1.0, 2 * tail / 2**throws)


def compare(before: Sequence[int], after: Sequence[int]) -> Comparison:
    """Compare two lists of 0 and 1, one number for each question, in the same order.

    Raises BadInput: the lists differ in length, or are empty.
    """
    if len(before) != len(after) or not before:
        raise BadInput(
            f"{len(before)} and {len(after)} answers cannot be paired.",
            "Give both servers the same questions, one or more.",
        )
    worse = better = 0
    for old, new in zip(before, after, strict=True):
        if old and not new:
            worse += 1
        if new and not old:
            better += 1
    return Comparison(len(before), sum(map(bool, before)), sum(map(bool, after)), worse, better)

"""Bound the evidence of samples against a distribution, for any number of samples and cells.

The evidence is x = n · D(counts / n ‖ expected), the relative entropy in nats times the number of samples (half of
the G statistic), added up over independent groups of samples. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

SMALLEST_CELL = (
    5  # tokens with fewer expected samples share a cell: fewer cells make sharper bounds
)
REST, NEVER = "rest", "never"


@dataclass(frozen=True)
class Group:
    """Samples of one distribution, by cell.

    Attributes:
        counts: how often each cell was sampled.
        expected: the probabilities that are tried, summing to 1.
        true: the probabilities that the samples come from, where a wrong computation is tried; summing to 1.
    """

    counts: Mapping[Hashable, float]
    expected: Mapping[Hashable, float]
    true: Mapping[Hashable, float]

    @property
    def samples(self) -> float:
        """How many samples are compared."""
        return math.fsum(self.counts.values())


def group(
    counts: Mapping, expected: Mapping, true: Mapping | None = None, leave_out: Collection = ()
) -> Group:
    """Put tokens into cells: one each, or REST (seldom expected) or NEVER (not expected).

    Args:
        leave_out: tokens that are not compared. What is left of a multinomial distribution is one, too, whatever the
            probabilities of these.
    """
    total = sum(count for token, count in counts.items() if token not in leave_out)
    mass = math.fsum(p for token, p in expected.items() if token not in leave_out)

    def cells(amounts: Mapping) -> dict[Hashable, float]:
        sums: dict[Hashable, float] = {}
        for token, amount in amounts.items():
            if token not in leave_out and amount:
                often = expected.get(token, 0.0) * total >= SMALLEST_CELL * mass
                cell = token if often else (REST if token in expected else NEVER)
                sums[cell] = sums.get(cell, 0.0) + amount
        return sums

    return Group(
        cells(counts), _scaled(cells(expected)), _scaled(cells(expected if true is None else true))
    )


def _scaled(amounts: dict[Hashable, float]) -> dict[Hashable, float]:
    total = math.fsum(amounts.values())
    return {cell: amount / total for cell, amount in amounts.items()}


def freedom(groups: Iterable[Group]) -> int:
    """Return the degrees of freedom: the cells of each group but one."""
    return sum(max(len(comparison.expected) - 1, 0) for comparison in groups)


def evidence(groups: Iterable[Group]) -> float:
    """Return x in nats; infinite if something impossible was sampled."""
    x = 0.0
    for comparison in groups:
        for cell, count in comparison.counts.items():
            p = comparison.expected.get(cell, 0.0)
            x += count * math.log(count / (comparison.samples * p)) if p else math.inf
    return max(x, 0.0)


def chance(x: float, freedom: int) -> float:
    """Bound the probability that samples of the expected distribution itself give evidence of x or more.

    Source: R. Agrawal, Finite-Sample Concentration of the Multinomial in Relative Entropy (arXiv 1904.02291):
    E exp(s x) ≤ (1 - s)^-freedom for 0 ≤ s < 1, with Markov's inequality at the best s.
    """
    if x <= freedom or not freedom:
        return 1.0 if x < math.inf and (freedom or x < 1e-9) else 0.0
    return math.exp(freedom - x + freedom * math.log(x / freedom)) if x < math.inf else 0.0


def limit(alarm: float, freedom: int) -> float:
    """Return the evidence whose `chance` is `alarm`: less of it is no reason to doubt the distribution."""
    x = float(freedom) - math.log(alarm)
    for _ in range(200):  # a contraction: its derivative is freedom / x < 1
        x = freedom - math.log(alarm) + (freedom * math.log(x / freedom) if freedom else 0.0)
    return x


def missed(groups: Collection[Group], alarm: float) -> float:
    """Bound the probability that samples of the true distributions give too little evidence against the expected.

    Source: x is at least Σ log(true / expected) over the samples, because D(counts / n ‖ true) ≥ 0, and that sum has
    Chernoff's bound: exp(s · limit) · Π (Σ true^(1 - s) · expected^s)^n for every s > 0 (Chernoff 1952).
    """
    enough = limit(alarm, freedom(groups))

    def bound(s: float) -> float:
        shared = (
            (
                comparison.samples,
                math.fsum(
                    p ** (1 - s) * comparison.expected[cell] ** s
                    for cell, p in comparison.true.items()
                    if cell in comparison.expected
                ),
            )
            for comparison in groups
        )
        return s * enough + math.fsum(n * math.log(max(part, 1e-300)) for n, part in shared)

    return math.exp(min(0.0, *(bound(step / 50) for step in range(1, 50))))

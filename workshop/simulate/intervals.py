"""Computes how far a simulated load's figures may be off: nine of ten measured ones are within.

The shares of a case that was measured are those of the recorded loads on H200
(tests/data/simulate/comparison.json, 116 loads): nine of ten measured figures are within them. They
are judged by the loads of H100. No recorded load has a mean: docs/speed.md judges those, with the
shares of the median. Elsewhere the doubt about the time of a step is added, as the root of the sum
of squares (inference_planner/ground/intervals.py).
"""

from __future__ import annotations

import math

from inference_planner.ground.basis import MEASURED_HERE
from inference_planner.ground.intervals import WIDTHS, Interval, of_speed

AT_HOME = WIDTHS[MEASURED_HERE].time_share

# Shares by which a time may be longer, or shorter, by measure and by figure. No recorded load has
# e2el; its parts do.
SHARES: dict[str, dict[str, float]] = {
    "ttft": {"p50": 0.25, "p95": 0.52, "p99": 0.52, "mean": 0.25},
    "tpot": {"p50": 0.125, "p95": 0.24, "p99": 0.24, "mean": 0.125},
    "itl": {"p50": 0.125, "p95": 0.24, "p99": 0.24, "mean": 0.125},
    "e2el": {"p50": 0.15, "p95": 0.30, "p99": 0.30, "mean": 0.15},
}
# Of tokens a second, all loads; most of them are set by how fast requests arrive.
TOKENS_SHARE = 0.035
# So often the doubt of a step counts. Over a load steps of many kinds make up for each other: with
# 0.6 nine of ten public points are inside, and as many with widths that never saw their model and
# card (docs/speed.md, left out). A step that prefills waits for kernels and a host that no decoding
# step tells of: with 1.5 nine of ten of their first tokens are inside.
TIMES = {"ttft": 1.5, "tpot": 0.6, "itl": 0.6, "e2el": 0.6}
# Of the tokens a second of a whole load: 256 requests at once on an RTX 5090 (tests/simulate) were
# 12.7 % more than said.
TIMES_OF_RATE = 0.7


def share_of_time(
    measure: str, figure: str, time_share: float, prefill_share: float = 0.0
) -> float:
    """Return the share by which a figure may be off.

    `time_share` is that of a decoding step of this plan, `prefill_share` what first tokens add.
    """
    share = math.hypot(SHARES[measure][figure], TIMES[measure] * _away(time_share))
    if measure == "ttft":
        share = math.hypot(share, prefill_share)
    return share


def _away(time_share: float) -> float:
    """Return what the time of a step is less certain than that of a case that was measured."""
    return math.sqrt(max(0.0, time_share**2 - AT_HOME**2))


def of_percentiles(
    measure: str, figures: dict[str, float | None], time_share: float, prefill_share: float
) -> tuple[dict[str, float | None], dict[str, float | None]]:
    """Return the low and the high values of p50, p95, p99 and mean; None where a figure is None."""
    low: dict[str, float | None] = {}
    high: dict[str, float | None] = {}
    for figure, value in figures.items():
        if value is None:
            low[figure] = None
            high[figure] = None
            continue
        interval = of_speed(value, share_of_time(measure, figure, time_share, prefill_share))
        low[figure] = interval.low
        high[figure] = interval.high
    return low, high


def of_rate(value: float, seconds: float, arriving_s: float, time_share: float) -> Interval:
    """Return the interval of a rate over the whole load, such as tokens or requests a second.

    While requests arrive, the rate is that of the arrivals; a slower engine only takes longer after
    the last of them.

    Args:
        value: the rate.
        seconds: how long the load took.
        arriving_s: when the last request arrived.
        time_share: share by which a step may be longer or shorter.
    """
    share = math.hypot(AT_HOME, TIMES_OF_RATE * _away(time_share))
    working_s = max(0.0, seconds - arriving_s)
    slowest = arriving_s + working_s * (1 + share)
    fastest = arriving_s + working_s / (1 + share)
    return Interval(
        value * seconds / slowest / (1 + TOKENS_SHARE),
        value * seconds / fastest * (1 + TOKENS_SHARE),
    )

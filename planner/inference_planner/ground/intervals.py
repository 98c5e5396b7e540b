"""The low and the high value of each figure of a plan, by how far it is from measured ground.

The half width of the memory that is left for the KV cache is the root of the sum of squares of what
weights, overheads and the card's own memory add; everything else of memory follows from it. That of
a time is a share of it: a speed lies between its value divided by, and multiplied with, 1 + share.
Nine of ten figures shall lie within. The widths are not fitted to what they are judged by, but for
the first:

- "measured here": the errors of the recorded runs themselves, which the formulas have seen; all 61
  lie within. A log that was kept narrows it: of 348 pairs of a run and another of its kind that was
  kept, 338 lie within (tests/engine).
- "measured on this kind of GPU" and "same generation": what was predicted of runs before a formula
  had seen them (`predicted_before_measuring` in data/runs): the held-out runs of the H200, which
  were of new models and versions, and those of the first H100, which stand for a card of a measured
  generation. Nine of ten lie within (tests/planner/ground).
- "never measured", and the doubts (doubts.py): the public points that are marked as seen (every second of
  the first eighteen, and those that a constant came from). The others judge. Constants of speed were
  fitted to some points of both halves (kernels.py says to which), so what judges speed best are
  points that are not there yet.
- loads: the simulated loads of H200 (tests/data/simulate/comparison.json); those of H100 judge.
"""

import math
from dataclasses import dataclass

from inference_planner.catalog.config import SizesFrom
from inference_planner.catalog.gpus import GIB
from inference_planner.ground.basis import MEASURED_HERE, Basis, Ground, ground, sizes_from
from inference_planner.ground.doubts import doubts
from inference_planner.memory.fit import Fit, fit
from inference_planner.model import kv_cache
from inference_planner.releases.versions import is_outside
from inference_planner.speed import kernels
from inference_planner.split.deployment import Deployment


@dataclass(frozen=True)
class Width:
    """The half widths at one distance from measured ground.

    Attributes:
        weights_share: of the weights, where formulas give them.
        overhead_gib, overhead_share: of the overheads: so much, and this share of them.
        card_gib: of the memory that the engine sees of a card.
        time_share: of the time of a decoding step of one request.
    """

    weights_share: float
    overhead_gib: float
    overhead_share: float
    card_gib: float
    time_share: float


WIDTHS: dict[Basis, Width] = {
    MEASURED_HERE: Width(
        weights_share=0.001, overhead_gib=0.06, overhead_share=0.035, card_gib=0.01, time_share=0.05
    ),
    "measured on this kind of GPU": Width(
        weights_share=0.002, overhead_gib=0.10, overhead_share=0.06, card_gib=0.01, time_share=0.10
    ),
    "same generation": Width(
        weights_share=0.003, overhead_gib=0.20, overhead_share=0.15, card_gib=0.05, time_share=0.12
    ),
    "never measured": Width(
        weights_share=0.003, overhead_gib=0.25, overhead_share=0.25, card_gib=0.05, time_share=0.16
    ),
}
# Of a case that this site's own start measured (`workshop reconcile LOG`).
LEARNED_WIDTH = Width(
    weights_share=0.001, overhead_gib=0.05, overhead_share=0.01, card_gib=0.0, time_share=0.05
)

# The share of the weights by what gives them (docs/exact.md); those of formulas have Width's alone.
SIZES_SHARE: dict[SizesFrom, float] = {
    "formulas": 0.0,
    "exact": 0.003,
    "recorded": 0.006,
    "derived": 0.0,  # Width's alone, and ASSUMED_SHARE if the checkpoint is not in the catalog
    "estimate": 0.05,
}


@dataclass(frozen=True)
class Interval:
    """The low and the high value of a figure."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Spread:
    """The half widths of a plan: GiB on a GPU, shares of a step and, more, of a first token.

    Attributes:
        room_gib: of what weights and overhead leave.
        available_gib: of the KV cache; 0 if its bytes were given, which vLLM takes as they are.
    """

    weights_gib: float
    overhead_gib: float
    room_gib: float
    available_gib: float
    time_share: float
    prefill_share: float


def spread(deployment: Deployment, fit: Fit, ground: Ground) -> Spread:
    """Return the half widths of a deployment with this memory, so far from measured ground."""
    width = LEARNED_WIDTH if ground.learned else WIDTHS[ground.memory_basis]
    weights_gib = fit.weights[fit.tightest] / GIB
    weights_share = width.weights_share
    if ground.memory_basis != MEASURED_HERE:
        weights_share = max(weights_share, SIZES_SHARE[sizes_from(deployment)])
    added = list(doubts(deployment, ground)) if ground.memory_basis != MEASURED_HERE else []
    shares = [doubt.weights_share for doubt in added]
    weights = weights_gib * _root_of_squares(weights_share, *shares)
    overhead_gib = fit.overhead[fit.tightest] / GIB
    overhead = _root_of_squares(
        width.overhead_gib + width.overhead_share * overhead_gib,
        *[doubt.gib + doubt.overhead_share * overhead_gib for doubt in added],
    )
    room = _root_of_squares(weights, overhead, width.card_gib)
    return Spread(
        weights_gib=weights,
        overhead_gib=overhead,
        room_gib=room,
        available_gib=0.0 if deployment.settings.kv_cache_memory_bytes else room,
        time_share=_time_share(deployment, ground),
        prefill_share=_root_of_squares(*[doubt.prefill_share for doubt in added]),
    )


def _time_share(deployment: Deployment, ground: Ground) -> float:
    """Return the half width of the time of a step of one request, as a share of it."""
    width = LEARNED_WIDTH if ground.learned else WIDTHS[ground.basis]
    share = width.time_share
    if all(kernel.measured for kernel in kernels.kernels(deployment)):
        share = min(share, WIDTHS["same generation"].time_share)
    return _root_of_squares(share, *[doubt.time_share for doubt in doubts(deployment, ground)])


def _root_of_squares(*halves: float) -> float:
    return math.sqrt(sum(half * half for half in halves))


def around(value: float, half: float) -> Interval:
    """Return a size and its half width as an interval whose ends are 0 or above."""
    return Interval(max(0.0, value - half), max(0.0, value + half))


def of_speed(value: float, share: float) -> Interval:
    """Return the interval of a speed, or of a time, that may be off by this share of the time."""
    return Interval(value / (1 + share), value * (1 + share))


def whole(interval: Interval) -> Interval:
    """Return an interval of a count: its low end rounded down, its high end up."""
    return Interval(math.floor(interval.low), math.ceil(interval.high))


# A request of DeepSeek V4 Flash took 6.66 GiB in 0.22.0 (vllm issue 44376) and 3.18 by 0.32.0's
# classes.
OLD_LAYOUT = 2.2
NOTHING = (0, 0, 0.0)  # blocks, tokens, requests


@dataclass(frozen=True)
class Capacities:
    """The intervals of what the KV cache holds: blocks, tokens and requests of max_model_len."""

    blocks: Interval
    tokens: Interval
    max_concurrency: Interval


def capacities(deployment: Deployment, fit: Fit, half_gib: float) -> Capacities:
    """Return the intervals of a KV cache whose memory may be off by `half_gib` on each GPU.

    What does not fit has 0 tokens, and a high end of 0 if it would not fit there either. What fits
    may have a low end that holds less than one request: then vLLM may refuse to start.
    """
    blocks, tokens, requests = _capacity(deployment, fit, -half_gib)
    factor = _layout_factor(deployment, fit)
    low = int(blocks / factor), int(tokens / factor), requests / factor
    high = _capacity(deployment, fit, half_gib)
    middle = _capacity(deployment, fit, 0.0)
    if not fit.holds_a_request:
        low = middle = NOTHING
        if high[2] < 1:  # not one request
            high = NOTHING

    def interval(index: int) -> Interval:
        values = (low[index], middle[index], high[index])
        return Interval(min(values), max(values))

    return Capacities(interval(0), interval(1), interval(2))


def surely_holds_a_request(deployment: Deployment) -> bool:
    """Return True if one request of max_model_len fits at the low end of the interval as well."""
    memory = fit(deployment)
    if not memory.holds_a_request or not memory.has_cache:
        return memory.holds_a_request
    half_gib = spread(deployment, memory, ground(deployment)).available_gib
    return capacities(deployment, memory, half_gib).max_concurrency.low >= 1


def _layout_factor(deployment: Deployment, fit: Fit) -> float:
    """Return how many times the recorded bytes a request may take in releases before the table.

    Pages of several sizes are laid out as 0.32.0's classes said; those of one size are the same in
    all releases.
    """
    pages = {group.page_bytes for group in fit.layout.groups}
    is_recorded = bool(fit.layout.pools) and len(pages) > 1
    return OLD_LAYOUT if is_recorded and is_outside(deployment.settings.vllm_version) else 1.0


def _capacity(deployment: Deployment, fit: Fit, more_gib: float) -> tuple[int, int, float]:
    """Return blocks, tokens and requests if every GPU has so much more (or less) memory."""
    available = [size + round(more_gib * GIB) for size in fit.available]
    if min(available) <= 0:
        return NOTHING
    holds = kv_cache.capacity(
        fit.layout, deployment.stages, available, deployment.settings.max_model_len
    )
    return holds.blocks, holds.tokens, holds.max_concurrency

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
  generation. Nine of ten lie within (tests/plan).
- "never measured", and the doubts below: the public points that are marked as seen (every second of
  the first eighteen, and those that a constant came from). The others judge. Constants of speed were
  fitted to some points of both halves (kernels.py says to which), so what judges speed best are
  points that are not there yet.
- loads: the simulated loads of H200 (tests/data/simulate/comparison.json); those of H100 judge.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference_planner.catalog.config import SizesFrom
from inference_planner.catalog.gpus import GIB
from inference_planner.ground.basis import Basis, Ground, ground, measured_kind, sizes_from
from inference_planner.memory.fit import Fit, fit
from inference_planner.memory.peaks import runner
from inference_planner.model import kv_cache
from inference_planner.model.attention import has_states, kinds
from inference_planner.releases import platforms
from inference_planner.releases.versions import is_between, is_outside
from inference_planner.speed import kernels
from inference_planner.speed.roofline import has_full_decode_graphs
from inference_planner.split.deployment import Deployment

MEASURED_HERE = "measured here"


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
    "measured here": Width(0.001, 0.06, 0.035, 0.01, 0.05),
    "measured on this kind of GPU": Width(0.002, 0.10, 0.06, 0.01, 0.10),
    "same generation": Width(0.003, 0.20, 0.15, 0.05, 0.12),
    "never measured": Width(0.003, 0.25, 0.25, 0.05, 0.16),
}
# Of a case that this site's own start measured (`workshop reconcile LOG`).
LEARNED_WIDTH = Width(0.001, 0.05, 0.01, 0.0, 0.05)

# The share of the weights by what gives them (docs/exact.md); those of formulas have Width's alone.
SIZES_SHARE: dict[SizesFrom, float] = {
    "formulas": 0.0,
    "exact": 0.003,
    "recorded": 0.006,
    "derived": 0.0,  # Width's alone, and ASSUMED_SHARE if the checkpoint is not in the catalog
    "estimate": 0.05,
}

# Of a checkpoint that is derived by its name: between the usual lists of what stays in 16 bits.
ASSUMED_SHARE = 0.03


@dataclass(frozen=True)
class Doubt:
    """A reason for which a case is less certain than its distance says, if not measured here.

    Attributes:
        name: what it is.
        applies: whether a deployment has it.
        gib, overhead_share: half width that it adds to the overheads of a GPU: so much, or this
            share of them.
        weights_share: share that it adds to the weights.
        time_share: share that it adds to the time of a step.
        prefill_share: share that it adds to the time to a first token.
    """

    name: str
    applies: Callable[[Deployment, Ground], bool]
    gib: float = 0.0
    time_share: float = 0.0
    overhead_share: float = 0.0
    weights_share: float = 0.0
    prefill_share: float = 0.0

    @property
    def halves(self) -> str:
        """The half widths in words, those that are not 0."""
        parts: list[str] = []
        if self.gib:
            parts.append(f"± {self.gib:.2f} GiB")
        shares = {
            "overhead": self.overhead_share,
            "weights": self.weights_share,
            "time": self.time_share,
            "first token": self.prefill_share,
        }
        for what, share in shares.items():
            if share:
                parts.append(f"± {100 * share:g} % of the {what}")
        return ", ".join(parts)


def _has_unmeasured_kernel(deployment: Deployment) -> bool:
    """Return True if a kernel's speed is assumed; that of 16 bit differs little."""
    used = kernels.kernels(deployment)
    return any(not kernel.measured for kernel in used if kernel.weights != kernels.BITS_16)


def _shares_experts(deployment: Deployment) -> bool:
    """Return True if each rank has some of the experts, or all data-parallel ranks share them."""
    return deployment.model.moe is not None and (deployment.ep or deployment.dp > 1)


def _packed(deployment: Deployment) -> bool:
    """Return True if weights are packed into less than 8 bits."""
    quantization = deployment.model.quantization
    return quantization is not None and quantization.weight_bits < 8


# Qwen3.8 27B on one RTX PRO 6000 with 262,144 tokens and 1,024 requests had 9 to 10 GiB less for
# its KV cache than the formulas say, in 16, 8 and 4 bits alike: 556, 939 and 1,011 blocks
# (vllm-project/recipes pull request 831, a build of the 0.27 range). Why is not known. With 8
# requests, with 32,768 tokens without CUDA graphs, or on an H100, nothing is missing.
MISSING_OF_HYBRIDS_GIB = 10.0
MANY_REQUESTS = 256
LONG_CONTEXT = 131072
RTX_BLACKWELL = 12.0  # compute capability


def _may_miss_what_hybrids_missed(deployment: Deployment) -> bool:
    settings = deployment.settings
    return (
        has_states(deployment.model)
        and RTX_BLACKWELL <= deployment.gpu.capability < RTX_BLACKWELL + 1
        and settings.has_graphs
        and settings.max_num_seqs >= MANY_REQUESTS
        and settings.max_model_len >= LONG_CONTEXT
        and runner(deployment.model, settings.version) == 1
    )


# On MI300X, weights in BF16 of checkpoints with all experts of a layer in one tensor were 1.37 and
# 1.35 times what tensors say (Qwen3-VL 30B on one, Llama 4 Maverick on eight, 0.11 to 0.18); those of
# Qwen3 235B, one tensor for each expert, 1.03 times. Why is not known.
def _may_keep_experts_twice(deployment: Deployment) -> bool:
    return (
        deployment.model.traits.experts_in_one_tensor
        and deployment.model.quantization is None
        and platforms.name(deployment.gpu) == platforms.ROCM
    )


# Every formula comes from NVIDIA's cards. A public start on an MI300X had 5.59 GiB of activations
# and 3.9 of CUDA graphs with a model of 2B (0.29.1).
ANOTHER_VENDOR_GIB = 5.0
DOUBTS = (
    Doubt("a version that was never measured", lambda deployment, g: not g.same_version, 0.15),
    Doubt(
        "the formulas of another version",
        lambda deployment, g: not g.same_formulas,
        overhead_share=0.35,
        weights_share=0.01,
        prefill_share=0.2,  # with the next, nine of ten of the credible points of docs/speed.md
    ),
    Doubt(
        "experts that ranks share, by the formulas of another version",
        lambda deployment, g: not g.same_formulas and _shares_experts(deployment),
        prefill_share=1.0,
    ),
    Doubt(
        "packed weights, by the formulas of another version",
        lambda deployment, g: not g.same_formulas and _packed(deployment),
        weights_share=0.03,
    ),
    Doubt(
        "weights stored as was never measured",
        lambda deployment, g: not g.same_weights,
        gib=0.1,
        weights_share=0.015,
    ),
    Doubt(
        "a kernel that was never measured",
        lambda deployment, g: _has_unmeasured_kernel(deployment),
        time_share=0.25,
    ),
    Doubt(
        "a card of another vendor",
        lambda deployment, g: bool(platforms.name(deployment.gpu)),
        ANOTHER_VENDOR_GIB,
    ),
    Doubt(
        "experts in one tensor on AMD's GPUs, which took up to 1.37 times their size",
        lambda deployment, g: _may_keep_experts_twice(deployment),
        weights_share=0.38,
    ),
    Doubt("several ranks", lambda deployment, g: deployment.tp > 1, 0.15, 0.05),
    # 70B on four H200 or B200 under 0.18 and 0.19 had 1.65 GiB less for its KV cache than the
    # formulas say, DeepSeek R1 on eight H200 1.8; under 0.16 and before, nothing is missing. Why is
    # not known.
    Doubt(
        "several ranks, under 0.17 to 0.24",
        lambda deployment, g: (
            deployment.tp > 1 and is_between(deployment.settings.vllm_version, "0.17", "0.24")
        ),
        1.8,
    ),
    Doubt(
        "an all-reduce over PCIe",
        lambda deployment, g: deployment.tp > 1 and "PCIe" in deployment.gpu.link,
        0.5,
        0.12,
    ),
    Doubt("pipeline stages", lambda deployment, g: deployment.pp > 1, 0.3, 0.05),
    Doubt("several nodes", lambda deployment, g: deployment.nodes > 1, 0.2, 0.3),
    # The times of experts, also of those that ranks share: nine of ten of 502 public points
    # (docs/speed.md, left out) are within what these and the ranks' doubt give.
    Doubt("experts", lambda deployment, g: deployment.model.moe is not None, 0.2, 0.05),
    Doubt(
        "experts without tuned kernels",
        lambda deployment, g: kernels.is_tuned(deployment) is False,
        time_share=0.15,
    ),
    Doubt("shared-out experts", lambda deployment, g: _shares_experts(deployment), 0.3),
    Doubt(
        "replicas that share experts",
        lambda deployment, g: _shares_experts(deployment) and deployment.dp > 1,
        time_share=0.5,
    ),
    Doubt("states of a hybrid", lambda deployment, g: has_states(deployment.model), 0.4, 0.15),
    Doubt(
        "9 to 10 GiB that hybrids missed on this generation",
        lambda deployment, g: _may_miss_what_hybrids_missed(deployment),
        MISSING_OF_HYBRIDS_GIB,
    ),
)
# After those of kinds of attention (`Attention.uncertainty`).
DOUBTS_OF_FEATURES = (
    Doubt("an encoder", lambda deployment, g: measured_kind(deployment).encoder, 0.6),
    Doubt(
        "draft tokens",
        lambda deployment, g: deployment.settings.draft is not None,
        0.3,
        0.3,
        weights_share=0.01,
    ),
    Doubt(
        "adapters",
        lambda deployment, g: deployment.settings.adapters is not None,
        0.2,
        0.1,
        weights_share=0.005,
    ),
    Doubt(
        "memory that the system shares",
        lambda deployment, g: deployment.gpu.unified_memory,
        1.2,
        0.1,
    ),
    Doubt(
        "weights in the host's memory, which were never measured",
        lambda deployment, g: deployment.settings.offload_bytes > 0,
        0.3,
        0.5,
    ),
    Doubt(
        "no CUDA graphs",
        lambda deployment, g: deployment.settings.decode_graphs == "none",
        0.0,
        0.3,
    ),
    Doubt(
        "CUDA graphs in pieces",
        lambda deployment, g: (
            deployment.settings.decode_graphs != "none" and not has_full_decode_graphs(deployment)
        ),
        0.0,
        0.3,
    ),
    Doubt(
        "settings of the compiler that no formula has",
        lambda deployment, g: bool(deployment.settings.compilation.not_computed),
        0.5,
        0.2,
    ),
)


def _of_attention(deployment: Deployment) -> Iterator[Doubt]:
    """Yield the doubts of the kinds of attention that the model's layers have."""
    for kind in kinds(deployment.model):
        more = kind.uncertainty
        if more is not None:
            yield Doubt(more.name, _always, gib=more.gib, time_share=more.time_share)


def _always(deployment: Deployment, ground: Ground) -> bool:
    return True


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


def doubts(deployment: Deployment, ground: Ground) -> Iterator[Doubt]:
    """Yield what makes this case less certain than its distance from measured ground alone."""
    if deployment.model.assumed:
        yield Doubt(f"assumed: {deployment.model.assumed}", _always, weights_share=ASSUMED_SHARE)
    if ground.basis == MEASURED_HERE:
        return
    for doubt in (*DOUBTS, *_of_attention(deployment), *DOUBTS_OF_FEATURES):
        if doubt.applies(deployment, ground):
            yield doubt


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

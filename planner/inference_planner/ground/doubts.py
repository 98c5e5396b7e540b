"""The doubts: why a figure is less certain than its distance from measured ground says.

Each adds its half widths to those of `intervals.py`, as the root of the sum of squares.
"""

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

from inference_planner.ground.basis import MEASURED_HERE, Ground, measured_kind
from inference_planner.memory.peaks import runner
from inference_planner.model.attention import has_states, kinds
from inference_planner.releases import platforms
from inference_planner.speed import kernels
from inference_planner.speed.roofline import has_full_decode_graphs
from inference_planner.split.deployment import Deployment

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
    _: KW_ONLY
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
# Every formula comes from NVIDIA's cards. A public start on an MI300X had 5.59 GiB of activations
# and 3.9 of CUDA graphs with a model of 2B (0.29.1).
ANOTHER_VENDOR_GIB = 5.0
DOUBTS = (
    Doubt(
        "a version that was never measured",
        lambda deployment, ground: not ground.same_version,
        gib=0.15,
    ),
    Doubt(
        "the formulas of another version",
        lambda deployment, ground: not ground.same_formulas,
        overhead_share=0.25,
        weights_share=0.01,
        prefill_share=0.2,  # with the next, nine of ten of the credible points of docs/speed.md
    ),
    Doubt(
        "experts that ranks share, by the formulas of another version",
        lambda deployment, ground: not ground.same_formulas and _shares_experts(deployment),
        prefill_share=1.0,
    ),
    Doubt(
        "packed weights, by the formulas of another version",
        lambda deployment, ground: not ground.same_formulas and _packed(deployment),
        weights_share=0.03,
    ),
    Doubt(
        "weights stored as was never measured",
        lambda deployment, ground: not ground.same_weights,
        gib=0.1,
        weights_share=0.015,
    ),
    Doubt(
        "a kernel that was never measured",
        lambda deployment, ground: _has_unmeasured_kernel(deployment),
        time_share=0.25,
    ),
    Doubt(
        "a card of another vendor",
        lambda deployment, ground: bool(platforms.name(deployment.gpu)),
        gib=ANOTHER_VENDOR_GIB,
    ),
    # 3 of 16 KV caches of classes that had never run were 0.65 to 0.81 GiB off (H200, 0.33.0): how
    # often their graphs hold FlashAttention's partial sums is not to be seen in a config.
    Doubt(
        "CUDA graphs of a class that was never run",
        lambda deployment, ground: not ground.same_class and has_full_decode_graphs(deployment),
        gib=0.65,
    ),
    Doubt("several ranks", lambda deployment, ground: deployment.tp > 1, gib=0.15, time_share=0.05),
    # FlashInfer's buffers (versions.py, fused_all_reduce_bytes) were missing from 70B on four H200 or
    # B200; DeepSeek R1 and V3.2 on eight B200, Kimi K2.5 and GLM-5.1 on eight H200 did not miss them.
    Doubt(
        "buffers of the fused all-reduce, which some starts did not have",
        lambda deployment, ground: (
            deployment.tp > 1 and deployment.settings.version.fused_all_reduce_bytes > 0
        ),
        gib=1.5,
    ),
    Doubt(
        "an all-reduce over PCIe",
        lambda deployment, ground: deployment.tp > 1 and "PCIe" in deployment.gpu.link,
        gib=0.5,
        time_share=0.12,
    ),
    Doubt(
        "pipeline stages", lambda deployment, ground: deployment.pp > 1, gib=0.3, time_share=0.05
    ),
    Doubt(
        "several nodes", lambda deployment, ground: deployment.nodes > 1, gib=0.2, time_share=0.3
    ),
    # The times of experts, also of those that ranks share: nine of ten of 502 public points
    # (docs/speed.md, left out) are within what these and the ranks' doubt give.
    Doubt(
        "experts",
        lambda deployment, ground: deployment.model.moe is not None,
        gib=0.2,
        time_share=0.05,
    ),
    Doubt(
        "experts without tuned kernels",
        lambda deployment, ground: kernels.is_tuned(deployment) is False,
        time_share=0.15,
    ),
    Doubt("shared-out experts", lambda deployment, ground: _shares_experts(deployment), gib=0.3),
    Doubt(
        "replicas that share experts",
        lambda deployment, ground: _shares_experts(deployment) and deployment.dp > 1,
        time_share=0.5,
    ),
    # Of eight hybrids that were said before they ran (H200, H100), seven were within 14 % of one
    # stream, Qwen3-Next FP8 at 20.
    Doubt(
        "states of a hybrid",
        lambda deployment, ground: has_states(deployment.model),
        gib=0.4,
        time_share=0.1,
    ),
    Doubt(
        "9 to 10 GiB that hybrids missed on this generation",
        lambda deployment, ground: _may_miss_what_hybrids_missed(deployment),
        gib=MISSING_OF_HYBRIDS_GIB,
    ),
)
# After those of kinds of attention (`Attention.uncertainty`).
DOUBTS_OF_FEATURES = (
    Doubt("an encoder", lambda deployment, ground: measured_kind(deployment).encoder, gib=0.6),
    Doubt(
        "draft tokens",
        lambda deployment, ground: deployment.settings.draft is not None,
        gib=0.3,
        time_share=0.3,
        weights_share=0.01,
    ),
    Doubt(
        "adapters",
        lambda deployment, ground: deployment.settings.adapters is not None,
        gib=0.2,
        time_share=0.1,
        weights_share=0.005,
    ),
    Doubt(
        "memory that the system shares",
        lambda deployment, ground: deployment.gpu.unified_memory,
        gib=1.2,
        time_share=0.1,
    ),
    Doubt(
        "weights in the host's memory, which were never measured",
        lambda deployment, ground: deployment.settings.offload_bytes > 0,
        gib=0.3,
        time_share=0.5,
    ),
    Doubt(
        "no CUDA graphs",
        lambda deployment, ground: deployment.settings.decode_graphs == "none",
        time_share=0.3,
    ),
    Doubt(
        "CUDA graphs in pieces",
        lambda deployment, ground: (
            deployment.settings.decode_graphs != "none" and not has_full_decode_graphs(deployment)
        ),
        time_share=0.3,
    ),
    Doubt(
        "settings of the compiler that no formula has",
        lambda deployment, ground: bool(deployment.settings.compilation.not_computed),
        gib=0.5,
        time_share=0.2,
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


def doubts(deployment: Deployment, ground: Ground) -> Iterator[Doubt]:
    """Yield what makes this case less certain than its distance from measured ground alone."""
    if deployment.model.assumed:
        yield Doubt(f"assumed: {deployment.model.assumed}", _always, weights_share=ASSUMED_SHARE)
    if ground.basis == MEASURED_HERE:
        return
    for doubt in (*DOUBTS, *_of_attention(deployment), *DOUBTS_OF_FEATURES):
        if doubt.applies(deployment, ground):
            yield doubt

"""The kernels that vLLM takes for products, and the share of the bandwidth they reach.

The choice follows vLLM 0.32.0: kernels/linear/__init__.py (the order in which dense kernels are
tried) and layers/fused_moe/oracle/*.py (experts), each with the compute capabilities that its
classes ask for. It is that of an installation without FlashInfer, with which the recorded runs were
made; `with_flashinfer` names what is taken else. A share that nobody measured is an assumption, and
`measured` is empty.
"""

import math
from dataclasses import dataclass, replace

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.releases import moe_configs, platforms
from inference_planner.releases.moe_backends import (
    AUTO,
    BACKENDS,
    BITS_16,
    FP4,
    FP8,
    FP8_BLOCKS,
    INT8,
    MARLIN,
    MXFP4,
    NVFP4,
    TRITON,
    WEIGHT_ONLY,
    experts_stored_as,
    stored_as,
)
from inference_planner.split.deployment import Deployment

# Generations, by compute capability. GPUs of other vendors have none.
VOLTA = "Volta"
TURING = "Turing"
A100 = "Ampere (A100)"
AMPERE = "Ampere"
ADA = "Ada"
HOPPER = "Hopper"
BLACKWELL = "Blackwell"
BLACKWELL_RTX = "Blackwell RTX"
AMD = "AMD"
INTEL = "Intel"
OTHER = "other vendor"
GENERATIONS = (
    (7.5, VOLTA),
    (8.0, TURING),
    (8.6, A100),
    (8.9, AMPERE),
    (9.0, ADA),
    (10.0, HOPPER),
    (12.0, BLACKWELL),
    (math.inf, BLACKWELL_RTX),
)

VENDORS = {platforms.ROCM: AMD, platforms.XPU: INTEL}

MACHETE = "Machete"  # products of packed weights on Hopper

DENSE = "dense"
EXPERTS = "experts"


def generation_name(gpu: GPU) -> str:
    """Return the generation of a GPU, whose kernels it shares."""
    if math.isinf(gpu.capability):
        return VENDORS.get(platforms.name(gpu), OTHER)
    for first_of_next, name in GENERATIONS:
        if gpu.capability < first_of_next:
            return name
    return BLACKWELL_RTX


@dataclass(frozen=True)
class Card:
    """The measured speed of a GPU generation, relative to its peaks or to an H200.

    Attributes:
        weights_share: of the peak bandwidth, that products of one row reach with 16-bit weights.
        kv_share: of the bandwidth that attention over a cached context reaches on an H100.
        small_kernels: times the small kernels of an H200.
        products_share: of the share of the peak FLOP/s that large products reach on an H100; for
            cards of which nobody published their products alone (GPU.matmul_tflops).
        measured: where, or empty.
    """

    weights_share: float = 0.833
    kv_share: float = 1.0
    small_kernels: float = 1.0
    products_share: float = 1.0
    measured: str = ""


# Public points are those of benchmarks/accuracy/public_points.json.
CARDS = {
    HOPPER: Card(measured="23 runs on 1 to 4 H200; H100"),
    A100: Card(
        0.76, 0.9, 1.4, 0.86, "public points: one stream of 8B and one load of 14B on an A100 80GB"
    ),
    ADA: Card(0.91, 0.9, 1.0, 1.15, "public points: loads of 8B on an RTX 4090, of 27B on L20"),
    BLACKWELL_RTX: Card(
        0.80, 0.75, 1.0, 1.0, "public points: 32B on two RTX PRO 6000, one load of 8B on one"
    ),
}
UNMEASURED_CARD = Card()


def card(gpu: GPU) -> Card:
    """Return what was measured of a GPU's generation; Hopper's shares where nothing was."""
    return CARDS.get(generation_name(gpu), UNMEASURED_CARD)


# 792.1 of 989 TFLOP/s on an H100 SXM: github.com/mag-/gpu_benchmark, as those of most other cards.
H100_MATMUL_SHARE = 0.80


def products_share(gpu: GPU) -> float:
    """Return what large products reach beside an H100's; GeForce cards clock above their rating."""
    if gpu.matmul_tflops:
        return gpu.matmul_tflops / gpu.bf16_tflops / H100_MATMUL_SHARE
    return card(gpu).products_share


@dataclass(frozen=True)
class KernelChoice:
    """The kernel that vLLM takes for such weights on these generations (none: all others)."""

    part: str
    weights: str
    generations: tuple[str, ...]
    kernel: str
    with_flashinfer: str = ""


OF_INTEL = "XPU"  # of the package vllm-xpu-kernels
PLUGIN = "the plugin's"  # of another vendor without a platform in vLLM (and of an unknown card)
# The first that matches is taken.
CHOICES = (
    KernelChoice(DENSE, BITS_16, (AMD,), "hipBLASLt"),
    KernelChoice(DENSE, BITS_16, (INTEL,), "oneDNN"),
    KernelChoice(DENSE, BITS_16, (OTHER,), PLUGIN),
    KernelChoice(DENSE, BITS_16, (), "cuBLAS"),
    KernelChoice(DENSE, FP8, (AMD,), "hipBLASLt"),
    KernelChoice(DENSE, FP8, (INTEL,), OF_INTEL),
    KernelChoice(DENSE, FP8, (OTHER,), PLUGIN),
    KernelChoice(DENSE, FP8, (VOLTA, TURING, A100, AMPERE), MARLIN),
    KernelChoice(DENSE, FP8, (BLACKWELL, BLACKWELL_RTX), "CUTLASS", "FlashInfer"),
    KernelChoice(DENSE, FP8, (), "CUTLASS"),
    KernelChoice(DENSE, FP8_BLOCKS, (AMD,), TRITON),
    KernelChoice(DENSE, FP8_BLOCKS, (INTEL,), OF_INTEL),
    KernelChoice(DENSE, FP8_BLOCKS, (OTHER,), PLUGIN),
    KernelChoice(DENSE, FP8_BLOCKS, (VOLTA, TURING, A100, AMPERE), MARLIN),
    KernelChoice(DENSE, FP8_BLOCKS, (ADA,), TRITON),
    KernelChoice(DENSE, FP8_BLOCKS, (HOPPER,), "DeepGEMM", "FlashInfer DeepGEMM"),
    KernelChoice(DENSE, FP8_BLOCKS, (BLACKWELL,), "DeepGEMM"),
    KernelChoice(DENSE, FP8_BLOCKS, (), "CUTLASS"),
    KernelChoice(DENSE, INT8, (AMD, INTEL, VOLTA), TRITON),
    KernelChoice(DENSE, INT8, (OTHER,), PLUGIN),
    KernelChoice(DENSE, INT8, (), "CUTLASS"),
    KernelChoice(DENSE, WEIGHT_ONLY, (AMD,), TRITON),
    KernelChoice(DENSE, WEIGHT_ONLY, (INTEL,), OF_INTEL),
    KernelChoice(DENSE, WEIGHT_ONLY, (OTHER,), PLUGIN),
    KernelChoice(DENSE, WEIGHT_ONLY, (HOPPER,), MACHETE),
    KernelChoice(DENSE, WEIGHT_ONLY, (VOLTA,), "Exllama"),
    KernelChoice(DENSE, WEIGHT_ONLY, (), MARLIN),
    KernelChoice(DENSE, NVFP4, (BLACKWELL, BLACKWELL_RTX), "CUTLASS", "FlashInfer"),
    KernelChoice(DENSE, NVFP4, (AMD,), "emulation"),
    KernelChoice(DENSE, NVFP4, (INTEL, OTHER), PLUGIN),
    KernelChoice(DENSE, NVFP4, (), MARLIN),
    KernelChoice(DENSE, MXFP4, (AMD,), "emulation"),
    KernelChoice(DENSE, MXFP4, (INTEL,), OF_INTEL),
    KernelChoice(DENSE, MXFP4, (OTHER,), PLUGIN),
    KernelChoice(DENSE, MXFP4, (), MARLIN),
    KernelChoice(EXPERTS, BITS_16, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, BITS_16, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, BITS_16, (BLACKWELL,), TRITON, "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, BITS_16, (BLACKWELL_RTX,), TRITON, "FlashInfer CUTLASS"),
    KernelChoice(EXPERTS, BITS_16, (), TRITON),
    KernelChoice(EXPERTS, FP8, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, FP8, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, FP8, (VOLTA, TURING, A100, AMPERE), MARLIN),
    KernelChoice(
        EXPERTS, FP8, (HOPPER,), "CUTLASS", "FlashInfer CUTLASS where a tensor has one scale"
    ),
    KernelChoice(EXPERTS, FP8, (BLACKWELL,), "CUTLASS", "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, FP8, (), TRITON),
    KernelChoice(EXPERTS, FP8_BLOCKS, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, FP8_BLOCKS, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, FP8_BLOCKS, (VOLTA, TURING, A100, AMPERE), MARLIN),
    KernelChoice(EXPERTS, FP8_BLOCKS, (BLACKWELL,), "DeepGEMM", "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, FP8_BLOCKS, (), TRITON),
    KernelChoice(EXPERTS, INT8, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, INT8, (), TRITON),
    KernelChoice(EXPERTS, WEIGHT_ONLY, (AMD, VOLTA), TRITON),
    KernelChoice(EXPERTS, WEIGHT_ONLY, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, WEIGHT_ONLY, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, WEIGHT_ONLY, (), MARLIN),
    KernelChoice(EXPERTS, NVFP4, (BLACKWELL,), "CUTLASS", "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, NVFP4, (BLACKWELL_RTX,), "CUTLASS", "FlashInfer CUTLASS"),
    KernelChoice(EXPERTS, NVFP4, (AMD,), "emulation"),
    KernelChoice(EXPERTS, NVFP4, (INTEL, OTHER), PLUGIN),
    KernelChoice(EXPERTS, NVFP4, (), MARLIN),
    KernelChoice(EXPERTS, MXFP4, (AMD, HOPPER), TRITON),
    KernelChoice(EXPERTS, MXFP4, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, MXFP4, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, MXFP4, (BLACKWELL,), TRITON, "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, MXFP4, (), MARLIN),
    KernelChoice(EXPERTS, FP4, (AMD,), "unfused Triton"),
    KernelChoice(EXPERTS, FP4, (INTEL,), OF_INTEL),
    KernelChoice(EXPERTS, FP4, (OTHER,), PLUGIN),
    KernelChoice(EXPERTS, FP4, (BLACKWELL,), "DeepGEMM", "FlashInfer TRTLLM"),
    KernelChoice(EXPERTS, FP4, (), MARLIN),
)


@dataclass(frozen=True)
class KernelSpeed:
    """The measured speed of one kernel.

    Attributes:
        bandwidth_share: of the peak, reading weights for one row. 0: see gb_s.
        gb_s: 10**9 bytes a second and multiprocessor, where the kernel unpacks and the memory does
            not decide.
        layer_us: of each layer, on top of Triton's (experts) or cuBLAS' (dense) small kernels.
        products_share: of the peak FLOP/s with thousands of rows; 0: as other products of that
            kind.
        source: the runs.
    """

    bandwidth_share: float
    source: str
    gb_s: float = 0.0
    layer_us: float = 0.0
    products_share: float = 0.0


HOPPER_DENSE = "23 runs on 1 to 4 H200"
MEASURED = {
    ("cuBLAS", BITS_16, HOPPER): KernelSpeed(0.833, HOPPER_DENSE),
    ("CUTLASS", FP8, HOPPER): KernelSpeed(0.833, HOPPER_DENSE),
    ("DeepGEMM", FP8_BLOCKS, HOPPER): KernelSpeed(
        0.70,
        "Qwen3 32B, Qwen3 30B A3B and Qwen3-Next 80B in FP8 on an H200",
        layer_us=8,
        products_share=0.55,
    ),
    (MACHETE, WEIGHT_ONLY, HOPPER): KernelSpeed(
        0.878,
        "AWQ: Qwen3 32B on an H100 and Qwen2.5 72B on an H200; GPTQ: Qwen3 30B A3B on an H200",
        gb_s=21,
        layer_us=70,
    ),
    ("DeepGEMM", FP8_BLOCKS, BLACKWELL): KernelSpeed(
        0.833, "176 public points of MiniMax M2.5 on one to four B200 and B300"
    ),
    ("CUTLASS", NVFP4, BLACKWELL): KernelSpeed(
        0.55,
        "45 public points of Llama 3.1 70B NVFP4 on one to eight B200",
        layer_us=18,
        products_share=1.25,  # of the peak of 16 bit: they are multiplied in FP4
    ),
    ("cuBLAS", BITS_16, A100): KernelSpeed(0.76, CARDS[A100].measured),
    ("cuBLAS", BITS_16, ADA): KernelSpeed(0.91, CARDS[ADA].measured),
    ("cuBLAS", BITS_16, BLACKWELL_RTX): KernelSpeed(0.80, CARDS[BLACKWELL_RTX].measured),
}
# Experts in FP8 blocks multiply about as fast as those in 16 bit, at half of FP8's share: prompts of
# 8,192 tokens of MiniMax M2.5 on one to four B200 and four H200.
FP8_BLOCKS_PRODUCTS = 0.26
MEASURED_EXPERTS = {
    (TRITON, BITS_16, HOPPER): KernelSpeed(0.878, "Qwen3 30B A3B and others on H200 and H100"),
    (TRITON, FP8_BLOCKS, HOPPER): KernelSpeed(
        0.878, "Qwen3-Next 80B FP8 on an H200", products_share=FP8_BLOCKS_PRODUCTS
    ),
    ("DeepGEMM", FP8_BLOCKS, BLACKWELL): KernelSpeed(
        0.878,
        "public points of MiniMax M2.5 on one to four B200 and B300",
        products_share=FP8_BLOCKS_PRODUCTS,
    ),
    ("CUTLASS", NVFP4, BLACKWELL): KernelSpeed(
        0.878,
        "public points of MiniMax M2.5 and Kimi K2.5 on two to eight B200 and B300",
    ),
    # As many bytes on an H100 as on an H200, whose memory is 1.4 times as fast:
    (TRITON, MXFP4, HOPPER): KernelSpeed(
        0.878, "gpt-oss-120b on an H200 and on two H100, gpt-oss-20b on an H100", gb_s=21.3
    ),
    (TRITON, MXFP4, BLACKWELL): KernelSpeed(
        0.878,
        "54 public points of gpt-oss-120b on one to eight B200 (FlashInfer)",
        layer_us=-25,
        products_share=0.9,
    ),
    (MARLIN, WEIGHT_ONLY, HOPPER): KernelSpeed(
        0.60, "45 public points of Kimi K2.5 INT4 on eight H200", products_share=0.29
    ),
    # dummy weights, whose tokens all go to the same experts: what many rows reach is not known
    (MARLIN, MXFP4, HOPPER): KernelSpeed(
        0.878,
        "one stream of gpt-oss-20b on an H100",
        gb_s=21.3,
        layer_us=-9.5,
        products_share=0.29,
    ),
    ("CUTLASS", FP8, HOPPER): KernelSpeed(0.878, "GLM-4.5-Air FP8 on two H100", layer_us=29),
    (TRITON, FP8_BLOCKS, BLACKWELL_RTX): KernelSpeed(
        0.84, "public point: Qwen3 235B FP8 on four RTX PRO 6000", products_share=0.12
    ),
}
# Of one way of storing, where it is not that of the row above. AWQ has zero points.
MEASURED_METHODS = {
    (MACHETE, "compressed-tensors", HOPPER): KernelSpeed(0.63, "Llama 3.1 405B w4a16 on four H100"),
}
UNMEASURED_EXPERTS_SHARE = 0.878
# Products of weights that are unpacked in the kernel: an assumption
UNMEASURED_UNPACKING_SHARE = 0.75
UNPACKING = (WEIGHT_ONLY, NVFP4, MXFP4)


@dataclass(frozen=True)
class Kernel:
    """The kernel of one part of a model's weights on one GPU.

    Attributes:
        part: dense or experts.
        weights: how they are stored: 16 bit, FP8, FP8 blocks, INT8, 4 bit, MXFP4, NVFP4.
        name: the kernel's name.
        bandwidth_share: of the peak bandwidth, reading weights for one row; an assumption where
            `measured` is empty.
        measured: the runs that the share was measured in, or empty.
        with_flashinfer: the kernel that vLLM takes instead where FlashInfer is installed, or empty.
    """

    part: str
    weights: str
    name: str
    bandwidth_share: float
    measured: str
    with_flashinfer: str
    measurement: KernelSpeed

    def to_dict(self) -> dict[str, object]:
        """Return plain data, as `plan --json` prints it."""
        return {
            "part": self.part,
            "weights": self.weights,
            "name": self.name,
            "bandwidth_share": round(self.bandwidth_share, 3),
            "measured": self.measured or "never measured",
            "with_flashinfer": self.with_flashinfer,
        }


def kernel(part: str, weights: str, gpu: GPU, backend: str = AUTO) -> Kernel:
    """Return the kernel that vLLM 0.32.0 takes for a part whose weights are stored so, on this GPU.

    Args:
        backend: the --moe-backend of experts, whose kernel is taken instead.
    """
    name_of_generation = generation_name(gpu)
    choice = _choice(part, weights, name_of_generation)
    if backend != AUTO:
        choice = KernelChoice(part, weights, (), BACKENDS[backend])
    table = MEASURED if part == DENSE else MEASURED_EXPERTS
    measurement = table.get((choice.kernel, weights, name_of_generation))
    if measurement is None:
        share = _assumed_share(part, weights, gpu)
        measurement = KernelSpeed(share, "")
    share = measurement.bandwidth_share
    if measurement.gb_s:
        share = min(share, measurement.gb_s * gpu.sm_count / gpu.bandwidth_gb_s)
    return Kernel(
        part=part,
        weights=weights,
        name=choice.kernel,
        bandwidth_share=share,
        measured=measurement.source,
        with_flashinfer=choice.with_flashinfer,
        measurement=measurement,
    )


def _choice(part: str, weights: str, name_of_generation: str) -> KernelChoice:
    for choice in CHOICES:
        matches = not choice.generations or name_of_generation in choice.generations
        if choice.part == part and choice.weights == weights and matches:
            return choice
    raise LookupError(f"no kernel for {part} weights in {weights}")


def _assumed_share(part: str, weights: str, gpu: GPU) -> float:
    if part == DENSE and weights in UNPACKING:
        return UNMEASURED_UNPACKING_SHARE
    relative = card(gpu).weights_share / UNMEASURED_CARD.weights_share
    if part == DENSE:
        return UNMEASURED_CARD.weights_share * relative
    return min(0.92, UNMEASURED_EXPERTS_SHARE * relative)


def dense_kernel(model: ModelConfig, gpu: GPU) -> Kernel:
    """Return the kernel of the quantized dense weights; that of 16 bit where none are quantized."""
    quantization = model.quantization
    if quantization is None or quantization.experts_only:
        return kernel(DENSE, BITS_16, gpu)
    used = kernel(DENSE, stored_as(model), gpu)
    measurement = MEASURED_METHODS.get((used.name, quantization.method, generation_name(gpu)))
    if measurement is None:
        return used
    return replace(
        used,
        bandwidth_share=measurement.bandwidth_share,
        measured=measurement.source,
        measurement=measurement,
    )


def experts_kernel(model: ModelConfig, gpu: GPU, backend: str = AUTO) -> Kernel | None:
    """Return the kernel of the experts, or None if the model has none."""
    if model.moe is None:
        return None
    return kernel(EXPERTS, experts_stored_as(model), gpu, backend)


def is_tuned(deployment: Deployment) -> bool | None:
    """Return whether vLLM has a tuned file for the experts' Triton kernels on this GPU.

    The result is None where other kernels multiply them, which take no such file, or where the
    name of the GPU in vLLM's files is unknown.
    """
    experts = experts_kernel(deployment.model, deployment.gpu, deployment.settings.moe_backend)
    if experts is None or experts.name != TRITON or experts.weights == MXFP4:
        return None
    count, width = experts_of_rank(deployment)
    return moe_configs.is_tuned(deployment.gpu.name, count, width, experts.weights)


def experts_of_rank(deployment: Deployment) -> tuple[int, int]:
    """Return how many experts a rank has, and how wide its part of each is."""
    moe = deployment.model.experts
    ranks = deployment.tp * deployment.dp
    if deployment.ep:
        return -(-moe.num_experts // ranks), moe.intermediate_size
    return moe.num_experts, moe.intermediate_size // ranks


def has_marlin_experts(deployment: Deployment) -> bool:
    """Return True if Marlin multiplies the experts, by vLLM's choice or --moe-backend."""
    used = experts_kernel(deployment.model, deployment.gpu, deployment.settings.moe_backend)
    return used is not None and used.name == MARLIN


def kernels(deployment: Deployment) -> list[Kernel]:
    """Return the kernels of dense weights, and of experts if there are any."""
    result = [dense_kernel(deployment.model, deployment.gpu)]
    experts = experts_kernel(deployment.model, deployment.gpu, deployment.settings.moe_backend)
    if experts:
        result.append(experts)
    return result


def sentence(used: Kernel) -> str:
    """Return what a plan says of a kernel."""
    what = "experts" if used.part == EXPERTS else "dense weights"
    text = f"vLLM multiplies the {what} ({used.weights}) with {used.name} kernels"
    share = f"{used.bandwidth_share:.0%} of the memory bandwidth"
    if used.measured:
        text += f", which read them at {share} ({used.measured})."
    else:
        text += f". They were never measured on this kind of GPU: {share} is assumed."
    if used.with_flashinfer:
        text += f" With FlashInfer it takes {used.with_flashinfer}: never measured here."
    return text

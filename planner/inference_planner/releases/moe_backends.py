"""The kernels that `--moe-backend` names: the weights they take, their layout of MXFP4.

Source: vLLM 0.32.0, config/kernel.py (MoEBackend) and layers/fused_moe/oracle/*.py (map_*_backend,
and for MXFP4 mxfp4_round_up_hidden_size_and_intermediate_size).
"""

import math
from dataclasses import replace

from inference_planner.catalog.architectures import DEEPSEEK_V4
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.errors import BadInput
from inference_planner.files import as_object

AUTO = "auto"
TRITON = "Triton"
MARLIN = "Marlin"
# backend -> its name as a plan says it
BACKENDS = {
    "triton": TRITON,
    "batched_triton": "batched Triton",
    "triton_unfused": "unfused Triton",
    "deep_gemm": "DeepGEMM",
    "deep_gemm_mega_moe": "DeepGEMM MegaMoE",
    "cutlass": "CUTLASS",
    "flashinfer_trtllm": "FlashInfer TRTLLM",
    "flashinfer_cutlass": "FlashInfer CUTLASS",
    "flashinfer_cutedsl": "FlashInfer CuteDSL",
    "flashinfer_b12x": "FlashInfer b12x",
    "flashinfer_moe_ep_cutedsl": "FlashInfer MoE-EP CuteDSL",
    "flashinfer_moe_ep_mega_deep_gemm": "FlashInfer MoE-EP DeepGEMM",
    "b12x": "b12x",
    "marlin": MARLIN,
    "humming": "Humming",
    "aiter": "AITER",
    "aiter_mega_moe": "AITER MegaMoE",
    "aiter_triton_mxfp4_bf16": "AITER Triton",
    "flydsl": "FlyDSL",
    "hpc": "HPC",
    "emulation": "emulation",
    "rdna3": "RDNA 3",
}

BITS_16 = "16 bit"
FP8 = "FP8"
FP8_BLOCKS = "FP8 blocks"
INT8 = "INT8"
WEIGHT_ONLY = "4 bit"
MXFP4 = "MXFP4"
NVFP4 = "NVFP4"
FP4 = "FP4"  # DeepSeek V4's experts: MXFP4, with other kernels than gpt-oss
OF_FP8 = (
    "triton",
    "deep_gemm",
    "cutlass",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "marlin",
    "humming",
    "aiter",
    "hpc",
)
OF_MXFP4 = (
    "triton",
    "triton_unfused",
    "marlin",
    "humming",
    "deep_gemm",
    "flashinfer_trtllm",
    "flashinfer_cutlass",
    "flashinfer_moe_ep_cutedsl",
    "flashinfer_moe_ep_mega_deep_gemm",
    "b12x",
    "aiter",
    "aiter_triton_mxfp4_bf16",
    "emulation",
)
# how experts are stored -> the backends that vLLM has for them
ACCEPTED = {
    BITS_16: ("triton", "batched_triton", "flashinfer_trtllm", "flashinfer_cutlass", "aiter"),
    FP8: OF_FP8,
    FP8_BLOCKS: OF_FP8,
    INT8: ("triton", "humming"),
    WEIGHT_ONLY: ("triton", "marlin", "humming", "flashinfer_trtllm", "emulation", "rdna3"),
    MXFP4: OF_MXFP4,
    FP4: (*OF_MXFP4, "deep_gemm_mega_moe", "aiter_mega_moe", "flydsl"),
    NVFP4: (
        "cutlass",
        "marlin",
        "humming",
        "flashinfer_trtllm",
        "flashinfer_cutlass",
        "flashinfer_cutedsl",
        "flashinfer_moe_ep_cutedsl",
        "flashinfer_b12x",
        "b12x",
        "emulation",
    ),
}

# MXFP4: what hidden size and an expert's width are rounded up to
OF_TRITON = (1, 64)
OF_MARLIN = (256, 128)
PADDINGS = {
    "triton": OF_TRITON,
    "triton_unfused": OF_TRITON,
    "humming": OF_TRITON,
    "marlin": OF_MARLIN,
    "flashinfer_trtllm": OF_MARLIN,
    "flashinfer_cutlass": (128, 128),
    "deep_gemm": (128, 128),
    "b12x": (1, 1),
    "flashinfer_moe_ep_cutedsl": (1, 1),
    "flashinfer_moe_ep_mega_deep_gemm": (1, 1),
    "emulation": (32, 32),
    "aiter": (256, 256),
    "aiter_triton_mxfp4_bf16": (256, 256),
}
OF_AMD = ("aiter", "aiter_mega_moe", "aiter_triton_mxfp4_bf16", "flydsl", "rdna3")
# Compute capabilities, first and behind the last, that a backend's classes ask for
# (_supports_current_device); those of AMD have none.
CAPABILITIES = {
    "marlin": (7.5, 100.0),
    "deep_gemm": (9.0, 11.0),
    "cutlass": (9.0, 100.0),
    "flashinfer_trtllm": (10.0, 11.0),
    "flashinfer_cutlass": (9.0, 100.0),
    "flashinfer_cutedsl": (10.0, 11.0),
    "flashinfer_moe_ep_cutedsl": (10.0, 11.0),
    "flashinfer_moe_ep_mega_deep_gemm": (10.0, 11.0),
    "flashinfer_b12x": (12.0, 13.0),
    "b12x": (12.0, 13.0),
}
CAPABILITIES_FOR_MXFP4 = {
    "triton": (9.0, 13.0),
    "triton_unfused": (9.0, 13.0),
    "deep_gemm": (10.0, 13.0),
}


def stored_as(model: ModelConfig) -> str:
    """Return how quantized weights are stored."""
    quantization = model.quantization
    if quantization is None:
        return BITS_16
    if quantization.method == "mxfp4":
        return MXFP4
    layout = quantization.weight_bits, quantization.group_size, quantization.scale_bytes
    if layout == (4, 16, 1):  # of ModelOpt and of compressed-tensors
        return NVFP4
    if quantization.weight_bits < 8 or quantization.activation_bits > 8:
        return INT8 if quantization.method == "experts_int8" else WEIGHT_ONLY
    if quantization.integers:
        return INT8
    return FP8_BLOCKS if quantization.block else FP8


def experts_stored_as(model: ModelConfig) -> str:
    """Return how the weights of experts are stored; DeepSeek V4's have a format of their own.

    Source: vLLM 0.32.0, models/deepseek_v4/quant_config.py.
    """
    is_fp4 = model.raw.get("expert_dtype", "fp4") == "fp4"
    if model.architecture not in DEEPSEEK_V4 or not is_fp4 or model.quantization is None:
        return stored_as(model)
    fields = as_object(model.raw.get("quantization_config")) or {}
    return NVFP4 if fields.get("moe_quant_algo") == NVFP4 else FP4


def canonical(backend: str | None) -> str:
    """Return a backend as vLLM spells it.

    Raises BadInput: vLLM does not have it; the remedy names those it has.
    """
    name = (backend or AUTO).lower().replace("-", "_")
    if name == AUTO or name in BACKENDS:
        return name
    raise BadInput(
        f"moe_backend {str(backend)[:40]!r} is not known.",
        f"Choose from: {AUTO}, {', '.join(BACKENDS)}.",
    )


def check(model: ModelConfig, gpu: GPU, backend: str) -> None:
    """Raise BadInput if vLLM has no such kernels for the model's experts, or none for this GPU.

    A model without experts takes any backend, as in vLLM: nothing asks for it.
    """
    if backend == AUTO or model.moe is None:
        return
    weights = experts_stored_as(model)
    usable = [name for name in ACCEPTED[weights] if _runs_on(name, weights, gpu)]
    if backend in usable:
        return
    why = f"vLLM has no {BACKENDS[backend]} kernels for experts in {weights}"
    if backend in ACCEPTED[weights]:
        why = f"{gpu.title} does not run its kernels (compute capability {gpu.compute_capability})"
    raise BadInput(
        f"moe_backend {backend} does not fit {model.name}: {why}.",
        f"Leave it out, or choose from: {', '.join(usable)}.",
    )


def _runs_on(backend: str, weights: str, gpu: GPU) -> bool:
    if not gpu.has_known_speed:  # of which the memory alone was given
        return True
    is_amd = math.isinf(gpu.capability)
    if backend in OF_AMD:
        return is_amd
    capabilities = CAPABILITIES
    if weights in (MXFP4, FP4) and not is_amd:
        capabilities = CAPABILITIES | CAPABILITIES_FOR_MXFP4
    if backend not in capabilities:
        return True
    first, behind_last = capabilities[backend]
    return first <= gpu.capability < behind_last


def with_padding(model: ModelConfig, gpu: GPU, backend: str) -> ModelConfig:
    """Return a model whose MXFP4 experts are as the GPU's kernels lay them out.

    By default Hopper has Triton's kernels. Marlin's (Ampere, Ada, consumer Blackwell) and
    TensorRT-LLM's (Blackwell) round an expert's width up to 128 and the hidden size to 256.
    """
    quantization = model.quantization
    if quantization is None or quantization.method != "mxfp4":
        return model
    padding = OF_TRITON if gpu.is_hopper else OF_MARLIN
    padding = PADDINGS.get(backend, padding)
    return replace(model, quantization=replace(quantization, padding=padding))

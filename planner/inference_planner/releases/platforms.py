"""The refusals of vLLM's platforms of other vendors, as recorded from its source (platforms.json).

NVIDIA's platform refuses by compute capability: split/capability.py has those numbers.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.catalog.quantization import PLUGINS, canonical
from inference_planner.releases.moe_backends import (
    FP8,
    FP8_BLOCKS,
    experts_stored_as,
    stored_as,
)

FILE = Path(__file__).with_suffix(".json")
ROCM = "rocm"
XPU = "xpu"
# Methods that multiply in FP8 with vLLM's own kernels; torchao has PyTorch's, mxfp8 an emulation.
IN_FP8 = ("fp8", "fbgemm_fp8", "modelopt", "compressed-tensors", "quark")


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    """Return the recorded lists as data."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def name(gpu: GPU) -> str:
    """Return vLLM's platform of another vendor's GPU: rocm, xpu, hpu; "" for all others."""
    for beginning, platform in recorded()["beginnings"].items():
        if gpu.compute_capability.startswith(beginning):
            return platform
    return ""


def not_asked(gpu: GPU) -> str:
    """Return why nobody asked vLLM whether it starts on a GPU; "" if it has the platform itself."""
    plugin = recorded()["plugins"].get(name(gpu))
    if not plugin:
        return ""
    return (
        f"vLLM runs on {gpu.title} with the plugin {plugin} alone, which was not asked: it has "
        "kernels, graphs and refusals of its own."
    )


def quantization_refusal(model: ModelConfig, gpu: GPU) -> str:
    """Return why vLLM refuses quantized weights on another vendor's GPU; "" if it takes them."""
    platform = name(gpu)
    quantization = model.quantization
    if platform not in recorded()["quantization"] or quantization is None:
        return ""
    method = canonical(quantization.method).removesuffix("_marlin")
    if method in PLUGINS:  # a plugin adds its method to the platform's list
        return ""
    if method not in recorded()["quantization"][platform]:
        return f"{method} quantization is currently not supported in {platform}"
    dense, experts = stored_as(model), experts_stored_as(model)
    if dense in recorded()["no_kernels"].get(platform, ()):
        return f"vLLM has no {dense} kernels for {platform}"
    if platform == ROCM and method in IN_FP8:
        return _fp8_refusal(model, gpu, dense, experts)
    return ""


def _fp8_refusal(model: ModelConfig, gpu: GPU, dense: str, experts: str) -> str:
    """Return why ROCm's kernels do not multiply a model in FP8 on a GPU; "" if they do."""
    architecture = gpu.compute_capability
    if dense == FP8 and architecture not in recorded()["fp8"]:
        return f"no FP8 kernel of vLLM runs on {architecture}"
    in_fp8 = experts in (FP8, FP8_BLOCKS)
    if model.moe and in_fp8 and architecture not in recorded()["fp8_experts"]:
        return f"no FP8 kernel of vLLM for experts runs on {architecture}"
    return ""


def has_sparse_latent(gpu: GPU) -> bool:
    """Return False for a GPU of AMD without kernels for sparse latent attention (DeepSeek V3.2)."""
    return name(gpu) != ROCM or gpu.compute_capability in recorded()["sparse_latent"]

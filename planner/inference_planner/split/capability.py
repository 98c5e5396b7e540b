"""Checks of what a GPU has kernels for: dtypes, formats of weights, and dtypes of the KV cache.

A bfloat16 model on a GPU before Ampere runs in float16 instead (`--dtype half`).
"""

import math
from collections.abc import Iterator

from inference_planner.catalog.architectures import OVERFLOW_IN_FLOAT16, is_multimodal
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import BFLOAT16, GPU
from inference_planner.errors import BadInput
from inference_planner.model.attention import grouped
from inference_planner.model.kv_cache import stored_cache_dtype
from inference_planner.releases import attention_backends, platforms
from inference_planner.releases.attention_backends import SelectorAnswer
from inference_planner.split.settings import DTYPES

# Least compute capability of each method: get_min_capability in
# model_executor/layers/quantization/*.py, 0.32.0.
LEAST = {
    **dict.fromkeys(("gptq", "gptq_marlin"), 6.0),
    **dict.fromkeys(("awq", "awq_marlin", "fp8", "modelopt_fp4"), 7.5),
    **dict.fromkeys(("experts_int8", "fbgemm_fp8", "modelopt", "mxfp4"), 8.0),
}
# Compute capabilities, first and behind the last, of CUTLASS' INT8 products: get_min_capability of
# CompressedTensorsW8A8Int8; csrc/libtorch_stable/quantization/w8a8/cutlass/c3x/scaled_mm_helper.hpp,
# "Int8 not supported on SM… Use FP8 quantization instead, or run on older arch (SM < 100)".
INT8_CAPABILITIES = (7.5, 10.0)
FIRST_CARDS = {8.0: "A100", 8.9: "L4", 9.0: "H100", 10.0: "B200"}  # by compute capability


def dtype_for(model: ModelConfig, gpu: GPU, dtype: str) -> str:
    """Return the given dtype, or `half` if the GPU cannot compute in the model's own.

    Raises BadInput: an unknown dtype, bfloat16 on a GPU without it, or float16 for a model that
    overflows in it.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not known.", f"Choose from: auto, {', '.join(DTYPES)}.")
    falls_back = dtype == "auto" and not gpu.has_bfloat16
    if model.model_type in OVERFLOW_IN_FLOAT16 and (DTYPES.get(dtype) == "float16" or falls_back):
        instead = ", or leave --dtype out."
        if not gpu.has_bfloat16:
            instead = ", or a GPU from the A100 on."
        raise BadInput(
            f"{model.name} does not run in float16, which vLLM "
            "refuses for it: its numbers overflow.",
            f"Give --dtype float32 (twice the memory){instead}",
        )
    if DTYPES.get(dtype) == "bfloat16" and not gpu.has_bfloat16:
        why = f"compute capability {gpu.compute_capability}, and it takes {BFLOAT16:.1f}"
        raise BadInput(
            f"{gpu.title} has no bfloat16 ({why}).", "Give --dtype half, or a GPU from the A100 on."
        )
    if falls_back and model.dtype == "bfloat16":
        return "half"
    return dtype


def cache_refusal(
    model: ModelConfig, capability: float, kv_cache_dtype: str, text_only: bool = False
) -> str:
    """Return with what vLLM's attention selector refuses a KV cache of this dtype; "" if it starts.

    What it was not asked is not refused. text_only: with --language-model-only.
    """
    for answer in selector_answers(model, capability, kv_cache_dtype, text_only):
        if answer and answer.refusal:
            return answer.refusal
    return ""


def selector_answers(
    model: ModelConfig, capability: float, kv_cache_dtype: str, text_only: bool = False
) -> Iterator[SelectorAnswer | None]:
    """Yield the attention selector's answer for each kind of the model; None: not asked."""
    dtype = stored_cache_dtype(model, kv_cache_dtype)
    own_kind = attention_backends.kind_of_class(model.architecture)
    if own_kind:
        yield attention_backends.answer(*own_kind, dtype, capability)
        return
    model_type = str(model.raw.get("model_type", model.model_type))
    if model.text_of:
        model_type = model_type.removesuffix("_text")
    has_images = bool(model.text_of) or is_multimodal(model.architecture)
    has_images = has_images and not (text_only or model.text_only)
    both_ways = has_images and attention_backends.sees_images_both_ways(model.raw, model_type)
    for kind, size, _ in grouped(model):
        selected = kind.selected_by(model, size)
        if selected is None:
            continue
        name, head_size = selected
        if both_ways:
            name = attention_backends.IMAGE_PREFIX
        yield attention_backends.answer(name, head_size, dtype, capability)


def with_layout(model: ModelConfig, gpu: GPU, kv_cache_dtype: str) -> ModelConfig:
    """Return the model with its sparse latents in FP8 as the GPU's backend keeps them."""
    answers = selector_answers(model, gpu.capability, kv_cache_dtype)
    first = [answer.backends[0] for answer in answers if answer and answer.backends]
    is_plain = any(backend in attention_backends.PLAIN_FP8 for backend in first)
    return model.with_packed_latents(not is_plain)


def check_kv_cache_dtype(
    model: ModelConfig, gpu: GPU, kv_cache_dtype: str, text_only: bool = False
) -> None:
    """Raise BadInput if vLLM does not start with the model's KV cache in this dtype on the GPU."""
    selected = [kind.selected_by(model, size) for kind, size, _ in grouped(model)]
    is_sparse = any(answer and answer[0] == attention_backends.SPARSE_LATENT for answer in selected)
    if is_sparse and not platforms.has_sparse_latent(gpu):
        raise BadInput(
            f"{gpu.title} ({gpu.compute_capability}) has no kernels for {model.name}'s sparse "
            "attention: vLLM's ROCM_AITER_MLA_SPARSE is for the MI300 series and newer.",
            "Give such a GPU, or another model.",
        )
    refusal = cache_refusal(model, gpu.capability, kv_cache_dtype, text_only)
    if not refusal:
        return
    dtype = stored_cache_dtype(model, kv_cache_dtype)
    form = ""
    remedies: list[str] = []
    if dtype != "auto":
        form = f" in {dtype}"
        other_dtype = "auto"
        if kv_cache_dtype == "auto":
            who = "class" if attention_backends.kind_of_class(model.architecture) else "checkpoint"
            form += f", which its {who} asks for"
            other_dtype = model.dtype
        if not cache_refusal(model, gpu.capability, other_dtype, text_only):
            remedies.append(f"--kv-cache-dtype {other_dtype}")
    if not cache_refusal(model, gpu.capability, kv_cache_dtype, True):
        remedies.append("--language-model-only, which leaves images out")
    newer = [
        capability
        for capability in FIRST_CARDS
        if capability > gpu.capability
        and not cache_refusal(model, capability, kv_cache_dtype, text_only)
    ]
    if newer:
        remedies.append(f"a GPU from the {FIRST_CARDS[newer[0]]} on")
    remedy = f"Give {', or '.join(remedies)}."
    if not remedies:
        remedy = "Choose another model, or another dtype of the KV cache."
    raise BadInput(
        f"{gpu.title} (compute capability {gpu.compute_capability}) cannot keep {model.name}'s "
        f"KV cache{form}. vLLM: {refusal}.",
        remedy,
    )


def check_quantization(model: ModelConfig, gpu: GPU) -> None:
    """Raise BadInput if the GPU has no kernels for the format of the weights."""
    if not model.quantization:
        return
    method = model.quantization.method
    least = LEAST.get(method, 0.0)
    if model.quantization.integers:
        _check_integers(gpu)
    refusal = platforms.quantization_refusal(model, gpu)
    if refusal:
        raise BadInput(
            f"{gpu.title} ({gpu.compute_capability}) cannot run {method} weights: {refusal}.",
            "Give the same model in awq, gptq or 16 bits.",
        )
    if gpu.capability < least:
        has = (
            f"it has compute capability {gpu.compute_capability}, "
            f"and vLLM needs {least:.1f} for them"
        )
        raise BadInput(
            f"{gpu.title} cannot run {method} weights: {has}.",
            "Give a newer GPU, or a model quantized another way (awq and gptq run from a T4 on).",
        )


def _check_integers(gpu: GPU) -> None:
    """Raise BadInput if a GPU of NVIDIA has no kernels for INT8 products; others have Triton's."""
    first, behind_last = INT8_CAPABILITIES
    if math.isinf(gpu.capability) or first <= gpu.capability < behind_last:
        return
    raise BadInput(
        f"{gpu.title} cannot multiply weights in INT8 (w8a8): it has compute capability "
        f"{gpu.compute_capability}, and vLLM's kernels are for {first} up to below {behind_last}.",
        "Give the same model in fp8, or a GPU from the T4 to the H200.",
    )

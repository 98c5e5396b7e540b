"""What a GPU cannot do, whatever its memory: bfloat16 before Ampere, and some kinds of quantisation.

A bfloat16 model on such a GPU runs in float16 instead, if it is asked to (`--dtype half`).
"""

from workshop.errors import BadInput
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GPU
from workshop.plan.settings import DTYPES

BFLOAT16 = 8.0  # least compute capability; platforms/cuda.py check_if_supports_dtype, 0.25.1
# Least compute capability of each method: get_min_capability in model_executor/layers/quantization/*.py, 0.25.1.
LEAST = {
    "gptq": 6.0,
    **dict.fromkeys(("bitsandbytes", "moe_wna16"), 7.0),
    **dict.fromkeys(("awq", "awq_marlin", "gptq_marlin", "fp8", "modelopt_fp4", "torchao"), 7.5),
    **dict.fromkeys(("experts_int8", "fbgemm_fp8", "mxfp4"), 8.0),
    "modelopt": 8.9,
}
# They overflow in float16: _FLOAT16_NOT_SUPPORTED_MODELS in vllm/config/model.py, by model_type.
NOT_FLOAT16 = ("gemma2", "gemma3", "gemma3_text")


def capability(gpu: GPU) -> float:
    """Return the CUDA compute capability as a number; infinite for other vendors' GPUs, which do all of this."""
    try:
        return float(gpu.compute_capability)
    except ValueError:
        return float("inf")


def dtype_for(model: ModelConfig, gpu: GPU, dtype: str) -> str:
    """Return the dtype to ask vLLM for: the given one, or `half` where the model's own would not run.

    Raises:
        BadInput: no dtype, bfloat16 on a GPU that has none, or float16 where the model overflows in it.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise BadInput(f"dtype {dtype!r} is not known.", f"Choose from: auto, {', '.join(DTYPES)}.")
    lacking = capability(gpu) < BFLOAT16
    if model.model_type in NOT_FLOAT16 and (DTYPES.get(dtype) == "float16" or (lacking and dtype == "auto")):
        instead = ", or a GPU from the A100 on." if lacking else ", or leave --dtype out."
        raise BadInput(
            f"{model.name} does not run in float16, which vLLM refuses for it: its numbers overflow.",
            f"Give --dtype float32 (twice the memory){instead}",
        )
    if lacking and DTYPES.get(dtype) == "bfloat16":
        raise BadInput(
            f"{gpu.title} has no bfloat16 (compute capability {gpu.compute_capability}, and it takes {BFLOAT16:.1f}).",
            "Give --dtype half, or a GPU from the A100 on.",
        )
    return "half" if lacking and dtype == "auto" and model.dtype == "bfloat16" else dtype


def runs_kv_cache_dtype(gpu: GPU, kv_cache_dtype: str) -> bool:
    """Return whether any attention backend of vLLM stores K and V so on this GPU.

    Before Ampere only Triton's is left, which refuses fp8 below 8.9 and bfloat16 below 8.0 (0.25.1,
    v1/attention/backends/triton_attn.py; flash_attn.py and flashinfer.py begin with 8.0).
    """
    return capability(gpu) >= BFLOAT16 or not kv_cache_dtype.startswith(("fp8", "bfloat16"))


def check_kv_cache_dtype(gpu: GPU, kv_cache_dtype: str) -> None:
    """Raise BadInput for a KV cache in a form that the GPU has no kernels for: fp8 or bfloat16 before Ampere."""
    if not runs_kv_cache_dtype(gpu, kv_cache_dtype):
        raise BadInput(
            f"{gpu.title} cannot keep a KV cache in {kv_cache_dtype} (compute capability {gpu.compute_capability}, and vLLM's kernels for it begin with {BFLOAT16:.1f}).",
            "Leave --kv-cache-dtype out, or give a GPU from the A100 on.",
        )


def check_quantization(model: ModelConfig, gpu: GPU) -> None:
    """Raise BadInput for weights in a form that the GPU has no kernels for, naming both compute capabilities."""
    method = model.quantization.method if model.quantization else ""
    least = LEAST.get(method, 0.0)
    if capability(gpu) < least:
        raise BadInput(
            f"{gpu.title} cannot run {method} weights: it has compute capability {gpu.compute_capability}, and vLLM needs {least:.1f} for them.",
            "Give a newer GPU, or a model quantised another way (awq and gptq run from a T4 on).",
        )

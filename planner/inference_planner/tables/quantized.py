"""The savings of quantization on the same GPUs: weights, KV-cache tokens, one stream's speed."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference_planner.answer.parallelism import plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.gpus import GIB
from inference_planner.model.weights import weight_bytes

# name → (--quantization, --kv-cache-dtype); None: as published
FORMATS = {
    "bfloat16": (None, "auto"),
    "FP8 KV cache": (None, "fp8"),
    "FP8 W8A8": ("fp8", "auto"),
    "FP8 W8A8 + FP8 KV cache": ("fp8", "fp8"),
    "INT8 W8A8": ("compressed-tensors", "auto"),
    "INT4 AWQ": ("awq", "auto"),
    "INT4 GPTQ": ("gptq", "auto"),
    "INT4 AWQ + FP8 KV cache": ("awq", "fp8"),
}
CONTEXT = 8192


@dataclass(frozen=True)
class Saving:
    """One format of a model on some GPUs; `times` compare with the first of the same case."""

    model: str
    gpu: str
    gpus: int
    format: str
    fits: bool
    weights_gib: float
    kv_cache_tokens: int
    single_stream_tokens_per_s: float
    kv_times: float = 1.0
    speed_times: float = 1.0


def savings(
    model: str, gpu: str, gpus: int, formats: Sequence[str] = tuple(FORMATS), context: int = CONTEXT
) -> list[Saving]:
    """Return a row for each format, on the same GPUs of one node, tensor parallel.

    weights_gib is the whole model's; one that does not fit has no tokens and no speed.

    Raises BadInput: an unknown name, a GPU that has no kernels for the format, or sizes that do not
    divide.
    """
    config, title = load_model(model), load_gpu(gpu).title
    first: tuple[float, ...] = ()
    out: list[Saving] = []
    length = min(context, config.max_position_embeddings)
    for name in formats:
        method, kv_cache_dtype = FORMATS[name]
        stored = config
        if method and not config.quantization:
            stored = config.with_quantization(quant.from_name(method))
        result = plan(
            config,
            gpu,
            gpus_per_node=gpus,
            tensor_parallel_size=gpus,
            quantization=method,
            kv_cache_dtype=kv_cache_dtype,
            max_model_len=length,
        )
        size = weight_bytes(stored) / GIB
        speeds = (result.kv_cache_tokens, result.single_stream_tokens_per_s)
        first = first or speeds
        times = [value / base if base else 0.0 for value, base in zip(speeds, first, strict=True)]
        out.append(Saving(config.name, title, gpus, name, result.fits, size, *speeds, *times))
    return out

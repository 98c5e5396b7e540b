"""Engine settings: the defaults of each vLLM version, and the checks of values.

Releases are the rows of releases/versions.py.

What a GPU cannot do, whatever its memory, is checked as well: bfloat16 before Ampere, and some
kinds of quantization. A bfloat16 model on such a GPU runs in float16 instead (`--dtype half`).

Source: vllm/engine/arg_utils.py get_batch_defaults, config/cache.py, config/vllm.py (capture
sizes).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from inference_planner.catalog.architectures import OVERFLOW_IN_FLOAT16, is_multimodal
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import BFLOAT16, GIB, GPU, checked_gib
from inference_planner.errors import BadInput
from inference_planner.model.adapters import Adapters
from inference_planner.model.attention import grouped
from inference_planner.model.drafts import Draft
from inference_planner.model.kv_cache import kv_dtype_bytes, stored_cache_dtype
from inference_planner.releases import attention_backends, platforms, versions
from inference_planner.releases.attention_backends import Answer
from inference_planner.releases.versions import Version
from inference_planner.request import AUTO, FALLBACKS, whole
from inference_planner.split.compilation import DEFAULT_COMPILATION, NONE, Compilation

# vLLM looks at the free memory after its CUDA context has taken some. Logs say 46.99 of 47.37,
# 78.84 of 79.25, 139.21 of 139.81 GiB free: the most of these, so that what the plan takes is free.
CONTEXT_GIB = 0.6
# CPU and GPU share the memory of a GB10, Thor or Strix Halo. With nothing else running 101 to 102 of
# a GB10's 121.7 GiB were free on some (0.87 never started), 114.5 on another, and two started with
# 0.9 and 0.92. vLLM's own default is meant for a card that has its memory to itself, so the plan
# takes its own. (vllm issue 46307; benchmarks/accuracy has the logs.)
UNIFIED_FREE = 0.945  # of the memory, at most
UNIFIED_OFTEN_FREE = 0.83  # of the memory, also on those
UNIFIED_UTILIZATION = 0.8
DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}
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


@dataclass(frozen=True)
class Settings:
    """vLLM's settings: sizes in tokens or requests, gpu_memory_utilization as a share."""

    vllm_version: str = versions.DEFAULT
    usage: str = FALLBACKS["usage"]
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int = 0
    fits_length: bool = False  # vLLM lowers max_model_len to what fits (--max-model-len auto)
    # `resolve` takes the release's own default where none is given
    gpu_memory_utilization: float = versions.get(versions.DEFAULT).default_utilization
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    seqs_given: bool = False  # max_num_seqs was given, not left to vLLM's default
    enforce_eager: bool = False
    compilation: Compilation = DEFAULT_COMPILATION  # --compilation-config
    enable_prefix_caching: bool | None = None  # None: where vLLM supports it
    moe_backend: str = "auto"  # the kernels of experts: moe_backends.py
    # (modality, most items of it in a prompt); a multimodal model alone has them
    limit_mm_per_prompt: tuple[tuple[str, int], ...] = ()
    language_model_only: bool = False
    skip_mm_profiling: bool = False
    # 1,024 on a B200 and its family, from 0.28.0 on
    most_graph_tokens: int = 512
    kv_cache_memory_bytes: int = 0  # of each GPU; 0: what gpu_memory_utilization leaves
    cpu_offload_gb: float = 0.0  # GiB of each GPU's weights that stay in the host's memory
    disable_custom_all_reduce: bool = False
    draft: Draft | None = None  # speculative decoding
    adapters: Adapters | None = None  # LoRA

    @property
    def version(self) -> Version:
        """The named behaviors of that release of vLLM."""
        return versions.get(self.vllm_version)

    @property
    def largest_graph(self) -> int:
        """The largest batch with a CUDA graph.

        It is no more than twice max_num_seqs (config/vllm.py _set_cudagraph_sizes).
        """
        if not self.has_graphs:
            return 0
        if self.compilation.capture_sizes:
            return max(self.graph_sizes, default=0)
        if self.compilation.most_graph_tokens:
            return self.compilation.most_graph_tokens
        return min(self.max_num_seqs * self.tokens_per_request * 2, self.most_graph_tokens)

    @property
    def compiles(self) -> bool:
        """True if torch.compile compiles the model."""
        return self.compilation.compiles and not self.enforce_eager

    @property
    def decode_graphs(self) -> str:
        """The CUDA graphs of steps in which every request decodes: "none", "piecewise" or "full"."""
        return NONE if self.enforce_eager else self.compilation.decode_graphs

    @property
    def mixed_graphs(self) -> str:
        """The CUDA graphs of steps that prefill: "none", "piecewise" or "full"."""
        return NONE if self.enforce_eager else self.compilation.mixed_graphs

    @property
    def has_graphs(self) -> bool:
        """True if any step has CUDA graphs."""
        return self.decode_graphs != NONE

    @property
    def offload_bytes(self) -> int:
        """Bytes of layers' weights that each GPU leaves in the host's memory, at most."""
        return round(self.cpu_offload_gb * GIB)

    @property
    def tokens_per_request(self) -> int:
        """Tokens of one request in a decoding step: its next one, and its draft tokens."""
        return 1 + (self.draft.tokens if self.draft else 0)

    @property
    def graph_sizes(self) -> list[int]:
        """Tokens of a step that get a CUDA graph: 1, 2, 4, then steps of 8 up to 256, then of 16.

        With draft tokens, the same numbers of requests get one as well, or these numbers are
        rounded up to whole requests (config/vllm.py, uniform_decode_sizes; config/compilation.py,
        adjust_cudagraph_sizes_for_spec_decode).
        """
        if not self.has_graphs:
            return []
        if self.compilation.capture_sizes:
            top = self.max_num_batched_tokens
            sizes = [size for size in self.compilation.capture_sizes if size <= top]
        else:
            top = min(self.largest_graph, self.max_num_batched_tokens)
            sizes = _grid(top)
        width = self.tokens_per_request
        if width > 1 and not self.version.graphs_of_whole_steps:
            rounded = {-(-size // width) * width for size in sizes}
            sizes = sorted(size for size in rounded if size <= top)
        elif width > 1 and not self.compilation.config:
            requests = _grid(min(self.max_num_seqs, self.most_graph_tokens))
            whole_steps = [width * count for count in requests if width * count <= top]
            sizes = sorted({*sizes, *whole_steps})
        return sizes

    @property
    def decode_graph_sizes(self) -> list[int]:
        """Tokens of decoding steps with a full graph; never empty where there are graphs."""
        width = self.tokens_per_request
        sizes = self.graph_sizes
        whole_steps: set[int] = set()
        for size in sizes:
            rounded = -(-size // width) * width
            if rounded <= min(self.max_num_seqs * width, sizes[-1]):
                whole_steps.add(rounded)
        return sorted(whole_steps) or sizes[:1]


def caches_states(model: ModelConfig, settings: Settings) -> bool:
    """Return True if a request keeps states for others with its prefix (mamba_cache_mode).

    Models of states alone have no prefix cache unless it is asked for. Source: vLLM 0.32.0,
    config/model.py is_prefix_caching_supported, and model_executor/models/config.py
    MambaModelConfig.
    """
    if settings.enable_prefix_caching is not None:
        return settings.enable_prefix_caching
    has_attention = not all(kind.keeps_states for kind, _, _ in grouped(model))
    return settings.version.caches_states and has_attention


def _grid(top: int) -> list[int]:
    """Return vLLM's sizes of CUDA graphs up to `top`."""
    sizes = [size for size in (1, 2, 4) if size <= top]
    return [*sizes, *range(8, min(top + 1, 256), 8), *range(256, top + 1, 16)]


def batch_defaults(gpu: GPU, usage: str, version: Version) -> tuple[int, int]:
    """Return vLLM's max_num_batched_tokens and max_num_seqs on this GPU, if none is given."""
    memory = 0 if gpu.hides_memory else gpu.engine_bytes
    if version.large_gpu_defaults and memory >= 160 * GIB:
        return 16384, 1024
    if memory >= 70 * GIB and "a100" not in gpu.title.lower():
        if usage == "llm":  # the LLM class, for offline batches
            return 16384, 1024
        return 8192, 1024
    if usage == "llm":
        return 8192, 256
    return 2048, 256


def resolve(model: ModelConfig, gpu: GPU, **values: Any) -> Settings:
    """Return Settings with these values, and vLLM's defaults for those that are missing or None.

    Raises BadInput: a version without formulas, an unknown dtype, or a number out of range; the
    choices are named.
    """
    settings = Settings(**{name: value for name, value in values.items() if value is not None})
    version = versions.get(settings.vllm_version)
    kv_dtype_bytes(model, settings.kv_cache_dtype)
    share = version.default_utilization
    if values.get("gpu_memory_utilization") is not None:
        share = _checked_share(values["gpu_memory_utilization"], share)
    default_tokens, default_seqs = batch_defaults(gpu, settings.usage, version)
    longest = model.max_position_embeddings
    if values.get("max_model_len") not in (None, AUTO):
        remedy = f"{model.name} reads up to {longest} tokens. {_longer(model)}".strip()
        whole("max_model_len", settings.max_model_len, longest, remedy)
    if values.get("cpu_offload_gb"):
        checked_gib("cpu_offload_gb", values["cpu_offload_gb"])
    fits_length = settings.max_model_len == AUTO
    length = model.default_model_len or longest
    if settings.max_model_len and not fits_length:
        length = settings.max_model_len
    seqs = settings.max_num_seqs or default_seqs
    tokens = settings.max_num_batched_tokens or min(seqs * length, default_tokens)
    if seqs > tokens and settings.max_num_seqs:
        remedy = "Every running request needs one token a step: lower max_num_seqs."
        raise BadInput(f"max_num_seqs {seqs} is more than max_num_batched_tokens {tokens}.", remedy)
    is_blackwell = 10 <= gpu.capability < 11
    return replace(
        settings,
        vllm_version=versions.plain(settings.vllm_version),
        max_model_len=length,
        fits_length=fits_length,
        gpu_memory_utilization=share,
        max_num_batched_tokens=tokens,
        max_num_seqs=min(seqs, tokens),
        seqs_given=bool(settings.max_num_seqs),
        enforce_eager=bool(settings.enforce_eager),
        most_graph_tokens=version.blackwell_graph_tokens if is_blackwell else 512,
    )


def _longer(model: ModelConfig) -> str:
    """Return how releases from 0.30.0 on allow YaRN's positions; "" without YaRN."""
    if not model.unscaled_positions:
        return ""
    return "YaRN's longer length is allowed with max_position_embeddings in --hf-overrides."


def most_free_bytes(gpu: GPU) -> int:
    """Return what can be free on a GPU before vLLM starts, where nothing else uses it."""
    if gpu.unified_memory:
        return round(UNIFIED_FREE * gpu.engine_bytes)
    return gpu.engine_bytes


def share_of_free(gpu: GPU, free_gib: float) -> float:
    """Return the largest gpu_memory_utilization beside another process, in hundredths.

    vLLM refuses to start if that share of all memory is more than what is free (v1/worker/utils.py
    request_memory).

    Args:
        free_gib: free on each GPU before the start, in GiB.

    Raises BadInput: free_gib is no number above 0, more than the GPU has, or too little for CUDA
    itself.
    """
    total = gpu.engine_gib
    free = checked_gib("free_gib", free_gib)
    if free > total + 0.005:  # logs round to hundredths
        raise BadInput(
            f"free_gib is {free:g}, and {gpu.title} has {total:.2f} GiB.",
            "Give what is free on one GPU: nvidia-smi shows it.",
        )
    share = min(1.0, math.floor((free - CONTEXT_GIB) / total * 100) / 100)
    if share <= 0:
        raise BadInput(
            f"free_gib is {free:g} of {total:.2f}: beside CUDA's own "
            f"{CONTEXT_GIB:g} GiB it leaves vLLM nothing.",
            "End the other process (nvidia-smi names it), or give another GPU.",
        )
    return share


def _checked_share(share: object, default: float) -> float:
    """Return gpu_memory_utilization. Raises BadInput: it is no number above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise BadInput(
            f"gpu_memory_utilization is {share!r}, and must be above 0 and at most 1.",
            f"vLLM's default is {default:g}.",
        )
    return float(share)


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
) -> Iterator[Answer | None]:
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
            name = "image prefix"
        yield attention_backends.answer(name, head_size, dtype, capability)


def check_kv_cache_dtype(
    model: ModelConfig, gpu: GPU, kv_cache_dtype: str, text_only: bool = False
) -> None:
    """Raise BadInput if vLLM does not start with the model's KV cache in this dtype on the GPU."""
    selected = [kind.selected_by(model, size) for kind, size, _ in grouped(model)]
    is_sparse = any(answer and answer[0] == "sparse latent" for answer in selected)
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

"""The settings of a plan, once: each with its flag, unit and meaning.

Flags of the commands, the arguments of `plan` and their explanation are made from `PlanRequest`: a
new setting is a field here, and is read where it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, TypeVar

from inference_planner.errors import BadInput
from inference_planner.releases import versions

DEFAULT_NETWORK = "infiniband-ndr"
AUTO = -1  # of max_model_len: the longest request that fits, as vLLM finds it
GPUS_PER_NODE = 8  # if nothing is known of the hardware
Function = TypeVar("Function", bound=Callable[..., Any])


def _setting(
    help_text: str,
    default: Any = None,
    *,
    flag: str = "",
    short: str = "",
    unit: str = "",
    metavar: str = "",
    choices: tuple[str, ...] = (),
    shown: bool = False,
) -> Any:
    """Return a field with what commands need to know of it.

    Args:
        flag: its flag where that is not the field's name.
        short: vLLM's short flag.
        unit: "tokens" and "bytes" also read 8k, 8K and 4G.
        shown: help prints the default.
    """
    return field(
        default=default,
        metadata={
            "help": help_text,
            "flag": flag,
            "short": short,
            "unit": unit,
            "metavar": metavar,
            "choices": choices,
            "shown": shown,
        },
    )


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The settings of a plan, with vLLM's own names. None means vLLM's default, or the plan's choice.

    With data parallel replicas, tokens and concurrency are those of one replica, as vLLM prints
    them; such plans were not measured.
    """

    gpu_memory_gib: float | None = _setting(
        "Memory of one GPU as vLLM sees it, for a card of another size or without a name.",
        flag="--gpu-memory",
        metavar="GIB",
    )
    free_gib: float | None = _setting(
        "GiB free on each GPU, where another process holds the rest.", metavar="GIB"
    )
    gpus_per_node: int | None = _setting(f"GPUs in one node.  [default: {GPUS_PER_NODE}]")
    nodes: int | None = _setting("Nodes that may be used.")
    tensor_parallel_size: int | None = _setting("Without it the plan chooses.", short="-tp")
    pipeline_parallel_size: int | None = _setting("Without it the plan chooses.", short="-pp")
    data_parallel_size: int | None = _setting(
        "Replicas that share their experts.  [default: 1]", short="-dp"
    )
    enable_expert_parallel: bool = _setting(
        "Deal whole experts out over TP × DP GPUs.", False, short="-ep"
    )
    decode_context_parallel_size: int | None = _setting(
        "Ranks that share a KV head's tokens.  [default: 1]", short="-dcp"
    )
    dtype: str = _setting("auto, bfloat16, float16 or float32.", "auto", shown=True)
    quantization: str | None = _setting(
        "vLLM's name: fp8, awq, gptq, …; a quantization_config counts as given.", short="-q"
    )
    kv_cache_dtype: str = _setting(
        "auto, bfloat16, float16, fp8, fp8_e4m3 or fp8_e5m2.", "auto", shown=True
    )
    max_model_len: int | None = _setting(
        "Tokens of one request, with its answer; auto (-1): as many as fit.  [default: the model's]",
        unit="tokens",
    )
    gpu_memory_utilization: float | None = _setting(
        "Share of the GPU that vLLM takes.  [default: vLLM's, 0.92; 0.9 before 0.20]"
    )
    max_num_batched_tokens: int | None = _setting(
        "Tokens of one step.  [default: vLLM's for this GPU]", unit="tokens"
    )
    max_num_seqs: int | None = _setting(
        "Requests of one step.  [default: vLLM's for this GPU]", unit="tokens"
    )
    limit_mm_per_prompt: str | Mapping[str, Any] | None = _setting(
        "Most images, videos, … in a prompt, as vLLM takes it: "
        '\'{"image": 4, "video": 0}\', or image=4,video=0.',
        metavar="JSON",
    )
    language_model_only: bool = _setting("Do not load a multimodal model's encoder.", False)
    skip_mm_profiling: bool = _setting(
        "Do not count what encoding an image, video or sound takes.", False
    )
    hf_overrides: str | Mapping[str, Any] | None = _setting(
        "Fields that replace those of config.json, such as rope_scaling for YaRN.", metavar="JSON"
    )
    speculative_config: str | Mapping[str, Any] | None = _setting(
        'Draft tokens, as vLLM takes it: \'{"method": "mtp", "num_speculative_tokens": 2}\'.',
        short="-sc",
        metavar="JSON",
    )
    spec_method: str | None = _setting(
        "Its method: mtp, eagle, eagle3, draft_model, ngram, suffix."
    )
    spec_model: str | None = _setting("Its draft: a folder with a config.json, or a Hub id.")
    spec_tokens: int | None = _setting("Its number of draft tokens in a step.")
    enable_lora: bool = _setting("Make buffers for LoRA adapters.", False)
    max_loras: int | None = _setting("Adapters in one batch.  [default: 1]")
    max_lora_rank: int | None = _setting("Largest rank of an adapter.  [default: 16]")
    max_cpu_loras: int | None = _setting("Adapters in the CPU's memory.  [default: --max-loras]")
    fully_sharded_loras: bool = _setting(
        "Split both matrices of an adapter by tensor parallelism.", False
    )
    lora_dtype: str | None = _setting(
        "Of the adapters' buffers: auto, float16 or bfloat16.  [default: auto]"
    )
    enable_prefix_caching: bool | None = _setting(
        "Keep the blocks of finished prompts; a hybrid's requests then hold further states."
        "  [default: vLLM's]"
    )
    moe_backend: str | None = _setting(
        "Kernels of experts: triton, marlin, cutlass, deep_gemm, flashinfer_trtllm, …"
        "  [default: vLLM's]"
    )
    enforce_eager: bool = _setting("No CUDA graphs.", False)
    compilation_config: str | Mapping[str, Any] | None = _setting(
        'Graphs and compiler, as vLLM takes it: \'{"cudagraph_mode": "PIECEWISE"}\', or '
        "--compilation-config.cudagraph_mode=PIECEWISE.",
        short="-cc",
        metavar="JSON",
    )
    max_cudagraph_capture_size: int | None = _setting(
        "The largest step with a CUDA graph.  [default: vLLM's]", unit="tokens"
    )
    kv_cache_memory_bytes: int | None = _setting(
        "Bytes of KV cache on each GPU (4G is 4 GiB), whatever gpu_memory_utilization leaves; vLLM "
        "measures nothing.",
        unit="bytes",
    )
    cpu_offload_gb: float | None = _setting(
        "GiB of each GPU's weights that stay in the host's memory and are read over PCIe.",
        metavar="GIB",
    )
    disable_custom_all_reduce: bool = _setting("NCCL's all-reduce in place of vLLM's own.", False)
    vllm_version: str | None = _setting(
        f"Version whose formulas are used.  [default: {versions.DEFAULT}]"
    )
    usage: str | None = _setting(
        "serve (default) or llm: whose defaults.", choices=("serve", "llm")
    )
    network: str = _setting("Link between nodes.", DEFAULT_NETWORK, shown=True)


SETTINGS: tuple[Field[Any], ...] = fields(PlanRequest)
NAMES = tuple(setting.name for setting in SETTINGS)


def request_of(function: Callable[..., Any], settings: Mapping[str, Any]) -> PlanRequest:
    """Return the request with these settings of a function's caller; None is as if left out.

    Raises BadInput: a name that the function does not have; the remedy names the nearest.
    """
    for name in settings:
        if name not in NAMES:
            parameters = signature(function).parameters.values()
            keywords = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY] or list(NAMES)
            nearest = get_close_matches(name, keywords, n=1, cutoff=0.5)
            remedy = f"Choose from: {', '.join(keywords)}."
            if nearest:
                remedy = f"Did you mean {nearest[0]}?"
            raise BadInput(f"{function.__name__}() has no argument {name!r}.", remedy)
    return PlanRequest(**{name: value for name, value in settings.items() if value is not None})


def whole(name: str, value: object, most: int, remedy: str) -> None:
    """Raise BadInput if a setting is not a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(f"{name} is {value!r}, and must be a whole number from 1 to {most}.", remedy)


def with_settings(function: Function) -> Function:
    """Show the settings in signature and docstring (below `settings: …`) of a function."""
    own = signature(function).parameters.values()
    shown = [
        Parameter(
            setting.name,
            Parameter.KEYWORD_ONLY,
            default=setting.default,
            annotation=setting.type,
        )
        for setting in SETTINGS
    ]
    before = [p for p in own if p.kind is p.POSITIONAL_OR_KEYWORD]
    after = [p for p in own if p.kind is p.KEYWORD_ONLY]
    parameters = [*before, *shown, *after]
    setattr(function, "__signature__", signature(function).replace(parameters=parameters))  # noqa: B010
    lines = [f"{' ' * 12}{setting.name}: {setting.metadata['help']}" for setting in SETTINGS]
    start, line, end = (function.__doc__ or "").partition("        settings: ")
    first, newline, rest = end.partition("\n")
    function.__doc__ = start + line + first + newline + "\n".join(lines) + newline + rest
    return function

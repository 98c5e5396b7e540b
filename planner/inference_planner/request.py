"""The settings of a plan, once: each with its flag, unit, limits and meaning.

Flags of the commands, the arguments of `plan`, their explanation, and what is taken from a command
line or a log of vLLM are made from `PlanRequest`: a new setting is a field here, and is read where
it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any, Literal, TypeVar

from inference_planner.catalog.config import KV_CACHE_DTYPES
from inference_planner.errors import BadInput
from inference_planner.releases import versions

DEFAULT_NETWORK = "infiniband-ndr"
AUTO = -1  # of max_model_len: the longest request that fits, as vLLM finds it
GPUS_PER_NODE = 8  # if nothing is known of the hardware
MOST_GPUS = 4096  # the largest size of a split, or of the hardware
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # config/lora.py, MaxLoRARanks
LORA_DTYPES = ("auto", "float16", "bfloat16")  # config/lora.py, LoRADType
NO_DRAFTS = "a simulated step makes one token for each request."
NO_ADAPTERS = "what an adapter's products take in a step was not measured."
NO_CONTEXT_PARALLELISM = "the simulated KV cache is that of one rank, and gathering has no time."
Function = TypeVar("Function", bound=Callable[..., Any])


def _setting(
    help_text: str,
    default: Any = None,
    *,
    of: Literal["vllm", "split", "machine", "release"] = "vllm",
    fallback: Any = None,
    most: int = 0,
    choices: tuple[Any, ...] = (),
    not_simulated: str = "",
    flag: str = "",
    short: str = "",
    unit: str = "",
    metavar: str = "",
    shown: bool = False,
) -> Any:
    """Return a field with what others need to know of it.

    Args:
        of: "vllm" is an argument of vLLM that whoever starts it may give, and that its log prints;
            "split" is one that a job sets by its GPUs; "machine" and "release" are the planner's.
        fallback: what None stands for; help prints it.
        most: it is a whole number from 1 to this one.
        choices: its only values.
        not_simulated: why no simulation takes it.
        flag: its flag where that is not the field's name.
        short: vLLM's short flag.
        unit: with one, 8k, 8K and 4G are also read.
        shown: help prints the default.
    """
    if fallback is not None:
        help_text += f"  [default: {fallback}]"
    return field(
        default=default,
        metadata={
            "help": help_text,
            "of": of,
            "fallback": fallback,
            "most": most,
            "choices": choices,
            "not_simulated": not_simulated,
            "flag": flag,
            "short": short,
            "unit": unit,
            "metavar": metavar,
            "shown": shown,
        },
    )


def _shares() -> str:
    """Return vLLM's defaults of gpu_memory_utilization, that of older releases last."""
    newest = versions.get(versions.DEFAULT).default_utilization
    release, older = list(versions.OLDER_ROWS.items())[-1]
    return f"{newest:g}; {older.default_utilization:g} before {release}"


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """The settings of a plan, with vLLM's own names. None means vLLM's default, or the plan's choice.

    With data parallel replicas, tokens and concurrency are those of one replica, as vLLM prints
    them; such plans were not measured.
    """

    gpu_memory_gib: float | None = _setting(
        "Memory of one GPU as vLLM sees it, for a card of another size or without a name.",
        of="machine",
        flag="--gpu-memory",
        metavar="GIB",
    )
    free_gib: float | None = _setting(
        "GiB free on each GPU, where another process holds the rest.",
        of="machine",
        metavar="GIB",
    )
    gpus_per_node: int | None = _setting(
        "GPUs in one node.", of="machine", fallback=GPUS_PER_NODE, most=MOST_GPUS
    )
    nodes: int | None = _setting("Nodes that may be used.", of="machine", most=MOST_GPUS)
    tensor_parallel_size: int | None = _setting(
        "Without it the plan chooses.", of="split", most=MOST_GPUS, short="-tp"
    )
    pipeline_parallel_size: int | None = _setting(
        "Without it the plan chooses.", of="split", most=MOST_GPUS, short="-pp"
    )
    data_parallel_size: int | None = _setting(
        "Replicas that share their experts.", of="split", fallback=1, most=MOST_GPUS, short="-dp"
    )
    enable_expert_parallel: bool = _setting(
        "Deal whole experts out over TP × DP GPUs.", False, short="-ep"
    )
    decode_context_parallel_size: int | None = _setting(
        "Ranks that share a KV head's tokens.",
        fallback=1,
        most=MOST_GPUS,
        not_simulated=NO_CONTEXT_PARALLELISM,
        short="-dcp",
    )
    dtype: str = _setting("auto, bfloat16, float16 or float32.", "auto", shown=True)
    quantization: str | None = _setting(
        "vLLM's name: fp8, awq, gptq, …; a quantization_config counts as given.", short="-q"
    )
    kv_cache_dtype: str = _setting(
        f"One of {', '.join(KV_CACHE_DTYPES)}.", "auto", choices=(*KV_CACHE_DTYPES,), shown=True
    )
    max_model_len: int | None = _setting(
        "Tokens of one request, with its answer; auto (-1): as many as fit.  [default: the model's]",
        unit="tokens",
    )
    gpu_memory_utilization: float | None = _setting(
        f"Share of the GPU that vLLM takes.  [default: vLLM's, {_shares()}]"
    )
    max_num_batched_tokens: int | None = _setting(
        "Tokens of one step.  [default: vLLM's for this GPU]", most=1 << 24, unit="tokens"
    )
    max_num_seqs: int | None = _setting(
        "Requests of one step.  [default: vLLM's for this GPU]", most=1 << 20, unit="requests"
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
        not_simulated=NO_DRAFTS,
        short="-sc",
        metavar="JSON",
    )
    spec_method: str | None = _setting(
        "Its method: mtp, eagle, eagle3, draft_model, ngram, suffix.", not_simulated=NO_DRAFTS
    )
    spec_model: str | None = _setting(
        "Its draft: a folder with a config.json, or a Hub id.", not_simulated=NO_DRAFTS
    )
    spec_tokens: int | None = _setting(
        "Its number of draft tokens in a step.", not_simulated=NO_DRAFTS
    )
    enable_lora: bool = _setting(
        "Make buffers for LoRA adapters.", False, not_simulated=NO_ADAPTERS
    )
    max_loras: int | None = _setting(
        "Adapters in one batch.", fallback=1, most=4096, not_simulated=NO_ADAPTERS
    )
    max_lora_rank: int | None = _setting(
        "Largest rank of an adapter.", fallback=16, choices=LORA_RANKS, not_simulated=NO_ADAPTERS
    )
    max_cpu_loras: int | None = _setting(
        "Adapters in the CPU's memory.  [default: --max-loras]",
        most=1 << 20,
        not_simulated=NO_ADAPTERS,
    )
    fully_sharded_loras: bool = _setting(
        "Split both matrices of an adapter by tensor parallelism.",
        False,
        not_simulated=NO_ADAPTERS,
    )
    lora_dtype: str | None = _setting(
        f"Of the adapters' buffers, one of {', '.join(LORA_DTYPES)}.",
        fallback="auto",
        choices=LORA_DTYPES,
        not_simulated=NO_ADAPTERS,
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
        most=1 << 45,
        unit="bytes",
    )
    cpu_offload_gb: float | None = _setting(
        "GiB of each GPU's weights that stay in the host's memory and are read over PCIe.",
        metavar="GIB",
    )
    disable_custom_all_reduce: bool = _setting("NCCL's all-reduce in place of vLLM's own.", False)
    vllm_version: str | None = _setting(
        "Version whose formulas are used.", of="release", fallback=versions.DEFAULT
    )
    usage: str | None = _setting(
        "Whose defaults: serve or llm (the LLM class).",
        of="release",
        fallback="serve",
        choices=("serve", "llm"),
    )
    network: str = _setting("Link between nodes.", DEFAULT_NETWORK, of="machine", shown=True)

    def __post_init__(self) -> None:
        """Raise BadInput for a value beyond the limits of its setting."""
        for setting in fields(self):
            value, about = getattr(self, setting.name), setting.metadata
            if value is None:
                continue
            if about["most"]:
                whole(setting.name, value, about["most"], about["help"].replace("  ", " "))
            if about["choices"] and value not in about["choices"]:
                choices = ", ".join(map(str, about["choices"]))
                raise BadInput(
                    f"{setting.name} {value!r} is not known.", f"Choose from: {choices}."
                )


SETTINGS: tuple[Field[Any], ...] = fields(PlanRequest)
NAMES = tuple(setting.name for setting in SETTINGS)
VLLM_ARGUMENTS = tuple(setting.name for setting in SETTINGS if setting.metadata["of"] == "vllm")
# name -> the reason
NOT_SIMULATED = {
    setting.name: setting.metadata["not_simulated"]
    for setting in SETTINGS
    if setting.metadata["not_simulated"]
}
FALLBACKS = {setting.name: setting.metadata["fallback"] for setting in SETTINGS}


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

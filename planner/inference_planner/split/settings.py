"""Engine settings: the defaults of each vLLM version, and the checks of values.

Releases are the rows of releases/versions.py.

Source: vllm/engine/arg_utils.py get_batch_defaults, config/cache.py, config/vllm.py (capture
sizes).
"""

from dataclasses import dataclass, replace
from typing import Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GIB, GPU, checked_gib
from inference_planner.errors import BadInput
from inference_planner.model.adapters import Adapters
from inference_planner.model.attention import grouped
from inference_planner.model.drafts import Draft
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.releases import versions
from inference_planner.releases.versions import Version
from inference_planner.request import AUTO, FALLBACKS, whole
from inference_planner.split.compilation import DEFAULT_COMPILATION, NONE, Compilation

DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float32": "float32",
    "float": "float32",
}


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


def _checked_share(share: object, default: float) -> float:
    """Return gpu_memory_utilization. Raises BadInput: it is no number above 0 and at most 1."""
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        raise BadInput(
            f"gpu_memory_utilization is {share!r}, and must be above 0 and at most 1.",
            f"vLLM's default is {default:g}.",
        )
    return float(share)

"""Engine settings: the defaults of each vLLM version that the planner has formulas for, and the checks of values.

Source: vllm/engine/arg_utils.py get_batch_defaults, config/cache.py, config/vllm.py (capture sizes), both tags.
"""

# s settings
from dataclasses import dataclass, replace

from workshop.errors import BadInput
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.kv_cache import kv_dtype_bytes

VERSIONS = ("0.25.1", "0.32.0")
DEFAULT_VERSION = "0.32.0"  # what the extras `gpu` and `local` pin
USAGES = ("serve", "llm")
UTILIZATION = 0.92  # vllm/config/cache.py; 0.9 before 0.21
DTYPES = {"bfloat16": "bfloat16", "float16": "float16", "half": "float16", "float32": "float32", "float": "float32"}


@dataclass(frozen=True)
class Settings:
    """What vLLM runs with. Sizes in tokens or requests; gpu_memory_utilization is a share of what the engine sees."""

    vllm_version: str = DEFAULT_VERSION
    usage: str = "serve"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    max_model_len: int = 0
    gpu_memory_utilization: float = UTILIZATION
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    enforce_eager: bool = False

    @property
    def largest_graph(self) -> int:
        """Largest batch with a CUDA graph: 512 at most, and no more than twice max_num_seqs (config/vllm.py)."""
        return 0 if self.enforce_eager else min(self.max_num_seqs * 2, 512)

    @property
    def graph_sizes(self) -> list[int]:
        """Batch sizes that get a CUDA graph: 1, 2, 4, then steps of 8 up to 256, then of 16."""
        top = min(self.largest_graph, self.max_num_batched_tokens)
        sizes = [s for s in (1, 2, 4) if s <= top] + list(range(8, min(top + 1, 256), 8))
        return sizes + list(range(256, top + 1, 16))


def batch_defaults(gpu: GPU, usage: str, version: str) -> tuple[int, int]:
    """Return (max_num_batched_tokens, max_num_seqs) that vLLM takes on this GPU when neither is given."""
    memory = gpu.engine_bytes
    if version == "0.32.0" and memory >= 160 * GIB:
        return 16384, 1024
    if memory >= 70 * GIB and "a100" not in gpu.title.lower():
        return (16384 if usage == "llm" else 8192), 1024
    return (8192 if usage == "llm" else 2048), 256


def whole(name: str, value: object, most: int, remedy: str) -> None:
    """Raise BadInput where a value is not a whole number from 1 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(f"{name} is {value!r}, and must be a whole number from 1 to {most}.", remedy)


def resolve(model: ModelConfig, gpu: GPU, **asked: object) -> Settings:
    """Return the Settings that were asked for, with vLLM's defaults where there is nothing or None.

    Raises:
        BadInput: a version without formulas, an unknown dtype, or a number out of range; the choices are named.
    """
    s = Settings(**{name: value for name, value in asked.items() if value is not None})
    version, longest, share = s.vllm_version.removeprefix("v"), model.max_position_embeddings, s.gpu_memory_utilization
    if version not in VERSIONS:
        raise BadInput(f"There are no formulas for vLLM {version}.", f"Choose from: {', '.join(VERSIONS)}.")
    if s.usage not in USAGES:
        raise BadInput(f"usage {s.usage!r} is not known.", "Choose llm (the LLM class) or serve (vllm serve).")
    kv_dtype_bytes(model, s.kv_cache_dtype)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
        remedy = f"vLLM's default is {UTILIZATION}."
        raise BadInput(f"gpu_memory_utilization is {share!r}, and must be above 0 and at most 1.", remedy)
    tokens, seqs = batch_defaults(gpu, s.usage, version)
    for name, most, remedy in (
        ("max_model_len", longest, f"{model.name} reads up to {longest} tokens."),
        ("max_num_batched_tokens", 1 << 24, f"vLLM's default here is {tokens}."),
        ("max_num_seqs", 1 << 20, f"vLLM's default here is {seqs}."),
    ):
        if asked.get(name) is not None:
            whole(name, asked[name], most, remedy)
    length, seqs = s.max_model_len or model.default_model_len or longest, s.max_num_seqs or seqs
    tokens = s.max_num_batched_tokens or min(seqs * length, tokens)
    if seqs > tokens and s.max_num_seqs:
        raise BadInput(
            f"max_num_seqs {seqs} is more than max_num_batched_tokens {tokens}.",
            "Every running request needs one token a step: lower max_num_seqs.",
        )
    return replace(
        s,
        vllm_version=version,
        max_model_len=length,
        gpu_memory_utilization=float(share),
        max_num_batched_tokens=tokens,
        max_num_seqs=min(seqs, tokens),
        enforce_eager=bool(s.enforce_eager),
    )

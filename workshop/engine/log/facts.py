"""The facts that a vLLM log can have, as plain data. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workshop.engine.log.failures import Failure


@dataclass
class RankFacts:
    """The memory that one worker reports, GiB; None where it reports nothing."""

    weights_gib: float | None = None
    available_kv_gib: float | None = None  # below zero where weights and overhead took more
    cuda_graph_gib: float | None = None
    consumed_gib: float | None = None  # since 0.28: weights and non-torch memory together
    peak_activation_gib: float | None = None
    non_torch_gib: float | None = None  # up to 0.27


@dataclass(frozen=True)
class Throughput:
    """One line of the engine's statistics (every 10 s by default). KV cache usage in percent."""

    time: str | None
    engine: int
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    running: int
    waiting: int
    kv_cache_percent: float


def _over_ranks(name: str, choose: Callable, docstring: str) -> property:
    """Return a property: the largest or smallest value of the ranks; None where none has one."""

    def value(log: EngineLog) -> float | None:
        numbers: list[float] = []
        for rank in log.ranks.values():
            number = getattr(rank, name)
            if number is not None:
                numbers.append(number)
        return choose(numbers, default=None)

    return property(value, doc=docstring)


@dataclass
class EngineLog:
    """Everything that a log says; None, empty or False where it is silent."""

    version: str | None = None
    # the newest release that printed the form of its lines, where the version is missing
    newest_release: str | None = None
    args: dict[str, Any] = field(default_factory=dict)  # what was given
    config: dict[str, Any] = field(default_factory=dict)  # the engine's own settings
    model: str | None = None
    architecture: str | None = None
    engine: str | None = None  # "V0" or "V1", where the log names it
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    enable_expert_parallel: bool | None = None
    world_size: int | None = None  # ranks of one replica
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enforce_eager: bool | None = None
    enable_prefix_caching: bool | None = None
    # the kernels of experts that it took, as --moe-backend names them
    moe_backend: str | None = None
    # of attention, as vLLM names them: those that it took, and those that it could have taken
    attention_backends: list[str] = field(default_factory=list)
    possible_attention_backends: list[str] = field(default_factory=list)
    platform: str | None = None
    gpu: str | None = None
    ranks: dict[str, RankFacts] = field(default_factory=dict)
    shards_loaded: int = 0
    shards_total: int = 0
    checkpoint_gib: float | None = None
    requested_kv_gib: float | None = None
    kv_cache_tokens: int | None = None
    max_concurrency: float | None = None
    # what vLLM says in the error that ends a start
    estimated_max_model_len: int | None = None
    needed_kv_gib: float | None = None  # for one request of max_model_len
    mamba_blocks: int | None = None
    cuda_graph_estimate_gib: float | None = None
    profile: dict[str, float] = field(default_factory=dict)
    server: bool = False  # `vllm serve`, else the LLM class
    engine_ready: bool = False
    ready: bool = False
    throughput: list[Throughput] = field(default_factory=list)
    last: str | None = None
    error: Failure | None = None
    waits: Failure | None = None  # ranks that waited for another one when the log ended
    notes: list[str] = field(default_factory=list)

    weights_gib = _over_ranks("weights_gib", max, "Weights of the heaviest rank, GiB.")
    available_kv_gib = _over_ranks(
        "available_kv_gib", min, "Memory for the KV cache on the tightest rank, GiB."
    )

    @property
    def says_what_fits(self) -> bool:
        """True if the log has a figure that only vLLM prints: weights, KV cache or tokens."""
        figures = (self.weights_gib, self.available_kv_gib, self.kv_cache_tokens)
        return any(figure is not None for figure in figures)

    cuda_graph_gib = _over_ranks(
        "cuda_graph_gib", max, "CUDA graphs of the rank with the largest, GiB."
    )

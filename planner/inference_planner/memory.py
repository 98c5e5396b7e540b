"""Memory of a deployment: what each pipeline stage has left for the KV cache, and what that holds."""

# d deployment, m model, s settings, w weights, o overhead, i stage
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from inference_planner import kv_cache, ranks
from inference_planner.catalog.config import ModelConfig
from inference_planner.deployment import Deployment
from inference_planner.kv_cache import kv_cache_bytes_per_token
from inference_planner.overheads import Overhead, overheads
from inference_planner.ranks import stage_bytes
from inference_planner.settings import Settings
from inference_planner.weights import active_parameters, parameters
from inference_planner.weights import whole_bytes as weight_bytes

__all__ = [
    "Fit",
    "active_parameters",
    "fit",
    "kv_cache_bytes_per_token",
    "parameters",
    "stage_bytes",
    "weight_bytes",
]


@dataclass(frozen=True)
class Fit:
    """Bytes throughout; one entry a pipeline stage in weights and overheads."""

    tp: int
    pp: int
    requested: int
    weights: tuple[int, ...]
    overheads: tuple[tuple[Overhead, ...], ...]
    overhead: tuple[int, ...]
    available: tuple[int, ...]
    capacity: kv_cache.Capacity
    layout: kv_cache.Layout
    needed: int  # what one request of max_model_len takes on the fullest stage

    @property
    def tightest(self) -> int:
        return self.available.index(min(self.available))

    @property
    def loads(self) -> bool:
        """True if anything is left for the KV cache once the model is loaded and profiled."""
        return min(self.available) > 0

    @property
    def fits(self) -> bool:
        """True if at least one request of max_model_len fits, which vLLM asks for before it starts."""
        return self.loads and self.capacity.max_concurrency >= 1


@lru_cache(maxsize=1024)
def fit(d: Deployment) -> Fit:
    """Return the memory of this split.

    Source: vLLM 0.25.1, v1/worker/utils.py request_memory (the engine takes gpu_memory_utilization of what the GPU has,
    not of what is free) and v1/worker/gpu_worker.py determine_available_memory.
    """
    m, s, pp = d.model, d.settings, d.pp
    share = round(s.gpu_memory_utilization * 10**9)
    requested = -(-d.gpu.engine_bytes * share // 10**9)
    deep_gemm = ranks.loads_deep_gemm(d)
    weights = tuple(ranks.stage_bytes(m, d.tp, pp, i, deep_gemm, d.expert_split) for i in range(pp))
    ends = {(i == 0, i == pp - 1): tuple(overheads(d, i)) for i in {0, pp // 2, pp - 1}}
    over = tuple(ends[i == 0, i == pp - 1] for i in range(pp))
    overhead = tuple(sum(o.bytes for o in items) for items in over)
    available = tuple(requested - w - o for w, o in zip(weights, overhead, strict=True))
    stages = ranks.partition_layers(m.num_hidden_layers, pp)
    layout = kv_layout(m, s, d.tp, pp, d.dcp)
    capacity = kv_cache.capacity(layout, stages, available, s.max_model_len)
    block_bytes = max(kv_cache.pool_bytes_per_block(layout, stage) for stage in stages)
    needed = block_bytes * kv_cache.blocks_per_request(layout)
    return Fit(d.tp, pp, requested, weights, over, overhead, available, capacity, layout, needed)


def kv_layout(
    model: ModelConfig, settings: Settings, tp: int, pp: int, dcp: int = 1
) -> kv_cache.Layout:
    """Return how vLLM lays out the KV cache of a split: its groups of layers, and the blocks that a request takes."""
    stages = ranks.partition_layers(model.num_hidden_layers, pp)
    layout = kv_cache.layout(
        model,
        tp,
        settings.kv_cache_dtype,
        settings.max_model_len,
        tokens_in_flight(settings, pp),
        starts=tuple(stage[0] for stage in stages),
        cached_states=settings.version.caches_states,
    )
    if dcp > 1:
        return kv_cache.shared_out(layout, dcp)
    return layout


def kv_capacity(
    model: ModelConfig,
    settings: Settings,
    tp: int,
    pp: int,
    available_bytes: Sequence[int],
    dcp: int = 1,
) -> kv_cache.Capacity:
    """Return the blocks and tokens that so many bytes hold, and the requests of max_model_len at once.

    The reconciliation with a log asks here; `fit` does the same with the layout that it has.

    Args:
        available_bytes: bytes for the KV cache on a rank of each of the pp pipeline stages.
    """
    stages = ranks.partition_layers(model.num_hidden_layers, pp)
    layout = kv_layout(model, settings, tp, pp, dcp)
    return kv_cache.capacity(layout, stages, available_bytes, settings.max_model_len)


def tokens_in_flight(s: Settings, pp: int) -> int:
    """Tokens that a sliding window keeps beside itself: one batch in 0.25.1; in 0.32.0 every batch that is under way.

    Source: SlidingWindowSpec.max_memory_usage_bytes and VllmConfig.max_in_flight_tokens.
    """
    if not s.version.counts_batches_in_flight:
        return s.max_num_batched_tokens
    return (pp + 1) * s.max_num_batched_tokens  # asynchronous scheduling overlaps one more


def may_fit(d: Deployment, gpus: int) -> bool:
    """False where the weights alone are more than so many GPUs a replica may use together: cheaper than fit()."""
    return (
        weight_bytes(d.model) < gpus * d.dp * d.gpu.engine_bytes * d.settings.gpu_memory_utilization
    )


def longest_context(d: Deployment) -> int:
    """Return the largest max_model_len with which this split starts, in steps of 16; 0 if the weights do not fit."""
    low, high = 0, -(-d.settings.max_model_len // 16)
    while low < high:
        middle = (low + high + 1) // 2
        fits = fit(d.with_settings(max_model_len=16 * middle)).fits
        low, high = (middle, high) if fits else (low, middle - 1)
    return min(16 * low, d.settings.max_model_len)

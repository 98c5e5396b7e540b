"""The memory of one split: what each pipeline stage has left for the KV cache, and what that holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from workshop.plan import kv_cache, overheads, ranks
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GPU
from workshop.plan.overheads import Overhead
from workshop.plan.settings import Settings


@dataclass(frozen=True)
class Fit:
    """Bytes throughout; one entry a pipeline stage in weights and overheads."""

    tp: int
    pp: int
    requested: int
    weights: tuple[int, ...]
    overheads: tuple[tuple[Overhead, ...], ...]
    capacity: kv_cache.Capacity
    layout: kv_cache.Layout
    needed: int                       # what one request of max_model_len takes on the fullest stage

    @cached_property
    def overhead(self) -> tuple[int, ...]:
        return tuple(sum(o.bytes for o in items) for items in self.overheads)

    @cached_property
    def available(self) -> tuple[int, ...]:
        return tuple(self.requested - w - o for w, o in zip(self.weights, self.overhead, strict=True))

    @property
    def tightest(self) -> int:
        return min(range(self.pp), key=lambda i: self.available[i])

    @property
    def loads(self) -> bool:
        """True if anything is left for the KV cache once the model is loaded and profiled."""
        return min(self.available) > 0

    @property
    def fits(self) -> bool:
        """True if at least one request of max_model_len fits, which vLLM asks for before it starts."""
        return self.loads and self.capacity.max_concurrency >= 1


def fit(m: ModelConfig, gpu: GPU, s: Settings, tp: int, pp: int) -> Fit:
    """Return the memory of this split.

    Source: vLLM 0.25.1, v1/worker/utils.py request_memory (the engine takes gpu_memory_utilization of what the GPU has,
    not of what is free) and v1/worker/gpu_worker.py determine_available_memory.
    """
    share = round(s.gpu_memory_utilization * 10**9)
    requested = -(-gpu.engine_bytes * share // 10**9)
    deep_gemm = ranks.loads_deep_gemm(m, gpu, s.kv_cache_dtype)
    weights = tuple(ranks.stage_bytes(m, tp, pp, i, deep_gemm) for i in range(pp))
    ends = {(i == 0, i == pp - 1): tuple(overheads.overheads(m, gpu, s, tp, pp, i)) for i in {0, pp // 2, pp - 1}}
    over = tuple(ends[i == 0, i == pp - 1] for i in range(pp))
    lay = kv_cache.layout(m, tp, s.kv_cache_dtype, s.max_model_len, tokens_in_flight(s, pp))
    available = [requested - w - sum(o.bytes for o in items) for w, items in zip(weights, over, strict=True)]
    stages = [tuple(r) for r in ranks.partition_layers(m.num_hidden_layers, pp)]
    cap = kv_cache.capacity(lay, stages, available, s.max_model_len)
    needed = max(kv_cache.pool_bytes_per_block(lay, stage) for stage in stages) * kv_cache.blocks_per_request(lay)
    return Fit(tp, pp, requested, weights, over, cap, lay, needed)


def tokens_in_flight(s: Settings, pp: int) -> int:
    """Tokens that a sliding window keeps beside itself: one batch in 0.25.1; in 0.32.0 every batch that is under way.

    Source: SlidingWindowSpec.max_memory_usage_bytes and VllmConfig.max_in_flight_tokens.
    """
    batches = 1 if s.vllm_version == "0.25.1" else pp + 1      # asynchronous scheduling overlaps one more
    return batches * s.max_num_batched_tokens


def may_fit(m: ModelConfig, gpu: GPU, s: Settings, tp: int, pp: int) -> bool:
    """False where the weights alone are more than the ranks may use together: cheaper than fit()."""
    return ranks.whole_bytes(m) < tp * pp * gpu.engine_bytes * s.gpu_memory_utilization


def longest_context(m: ModelConfig, gpu: GPU, s: Settings, tp: int, pp: int) -> int:
    """Return the largest max_model_len with which this split starts, in steps of 16; 0 if the weights do not fit."""
    def ok(blocks: int) -> bool:
        return fit(m, gpu, replace(s, max_model_len=16 * blocks), tp, pp).fits

    low, high = 0, -(-s.max_model_len // 16)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ok(middle) else (low, middle - 1)
    return min(16 * low, s.max_model_len)

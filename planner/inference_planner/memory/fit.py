"""Memory of a deployment: what is left for the KV cache, and what that holds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from inference_planner.catalog.architectures import keeps_no_cache
from inference_planner.catalog.config import ModelConfig
from inference_planner.memory import learned
from inference_planner.memory.loaded import loaded_bytes
from inference_planner.memory.overheads import Overhead, overheads
from inference_planner.model import drafts, kv_cache
from inference_planner.model.weights import weight_bytes
from inference_planner.split import ranks
from inference_planner.split.deployment import Deployment, partition_layers
from inference_planner.split.settings import Settings, caches_states


@dataclass(frozen=True)
class Fit:
    """Bytes throughout; one entry a pipeline stage in weights and overheads."""

    tp: int
    pp: int
    requested: int
    loaded: tuple[int, ...]  # weights by the formulas, without what a start on this site measured
    weights: tuple[int, ...]
    overheads: tuple[tuple[Overhead, ...], ...]
    overhead: tuple[int, ...]
    available: tuple[int, ...]
    capacity: kv_cache.Capacity
    layout: kv_cache.Layout
    needed: int  # what one request of max_model_len takes on the fullest stage
    # False: the model's attention looks both ways, and vLLM keeps no KV cache
    has_cache: bool = True
    measured: learned.Correction | None = None  # what a start on this site adds

    @property
    def tightest(self) -> int:
        return self.available.index(min(self.available))

    @property
    def loads(self) -> bool:
        """True if anything is left for the KV cache once the model is loaded and profiled."""
        return min(self.available) > 0

    @property
    def holds_a_request(self) -> bool:
        """True if one request of max_model_len fits, as vLLM asks before it starts."""
        if not self.has_cache:
            return self.loads
        return self.loads and self.capacity.max_concurrency >= 1


@lru_cache(maxsize=1024)
def fit(deployment: Deployment) -> Fit:
    """Return the memory of this split.

    Source: vLLM 0.25.1, v1/worker/utils.py request_memory (the engine takes gpu_memory_utilization
    of what the GPU has, not of what is free) and v1/worker/gpu_worker.py
    determine_available_memory.
    """
    share = round(deployment.settings.gpu_memory_utilization * 10**9)
    measured = learned.correction(deployment)
    requested = -(-learned.engine_bytes(deployment, measured) * share // 10**9)
    loaded = loaded_bytes(deployment)
    weights: list[int] = []
    formulas: list[tuple[Overhead, ...]] = []
    items: list[tuple[Overhead, ...]] = []
    overhead: list[int] = []
    available: list[int] = []
    cache_bytes = deployment.settings.kv_cache_memory_bytes
    for stage, loaded_size in enumerate(loaded):
        size = max(0, loaded_size - ranks.offloaded_bytes(deployment, stage))
        formulas.append(_stage_overheads(deployment, stage, formulas))
        if measured:
            weights.append(max(0, size + measured.weights))
            items.append(learned.corrected(formulas[stage], measured))
        else:
            weights.append(size)
            items.append(formulas[stage])
        overhead.append(sum(item.bytes for item in items[stage]))
        available.append(cache_bytes or requested - weights[stage] - overhead[stage])
    layout = kv_layout(
        deployment.model, deployment.settings, deployment.tp, deployment.pp, deployment.dcp
    )
    block_bytes = max(kv_cache.pool_bytes_per_block(layout, stage) for stage in deployment.stages)
    return Fit(
        tp=deployment.tp,
        pp=deployment.pp,
        requested=requested,
        loaded=tuple(loaded),
        weights=tuple(weights),
        overheads=tuple(items),
        overhead=tuple(overhead),
        available=tuple(available),
        capacity=kv_cache.capacity(
            layout, deployment.stages, available, deployment.settings.max_model_len
        ),
        layout=layout,
        needed=block_bytes * kv_cache.blocks_per_request(layout),
        has_cache=not keeps_no_cache(deployment.model.architecture),
        measured=measured,
    )


def _stage_overheads(
    deployment: Deployment, stage: int, earlier: Sequence[tuple[Overhead, ...]]
) -> tuple[Overhead, ...]:
    """Return a stage's overheads; between the ends, those of the one in the middle.

    Args:
        earlier: the overheads of the stages before it.
    """
    if stage in (0, deployment.pp - 1):
        return tuple(overheads(deployment, stage))
    if stage > 1:
        return earlier[1]
    return tuple(overheads(deployment, deployment.pp // 2))


def kv_layout(
    model: ModelConfig, settings: Settings, tp: int, pp: int, dcp: int = 1
) -> kv_cache.Layout:
    """Return how vLLM lays out the KV cache of a split: groups of layers and blocks."""
    stages = partition_layers(model.num_hidden_layers, pp)
    layout = kv_cache.layout(
        model,
        tp,
        settings.kv_cache_dtype,
        settings.max_model_len,
        tokens_in_flight(settings, pp),
        starts=tuple(stage[0] for stage in stages),
        cached_states=caches_states(model, settings),
        draft=draft_layers(model, settings, tp),
    )
    if dcp > 1:
        return kv_cache.shared_out(layout, dcp)
    return layout


def draft_layers(model: ModelConfig, settings: Settings, tp: int) -> kv_cache.DraftLayers:
    """Return what speculative decoding adds to the KV cache of one rank."""
    draft = settings.draft
    if draft is None:
        return kv_cache.NO_DRAFT
    token_bytes = 0
    if draft.layers:
        element_bytes = kv_cache.kv_dtype_bytes(model, settings.kv_cache_dtype)
        token_bytes = drafts.token_bytes(model, draft, tp, element_bytes)
    return kv_cache.DraftLayers(draft.layers, token_bytes, draft.tokens)


def kv_capacity(
    model: ModelConfig,
    settings: Settings,
    tp: int,
    pp: int,
    available_bytes: Sequence[int],
) -> kv_cache.Capacity:
    """Return what so many bytes hold, as `fit` does, for the reconciliation with a log.

    Args:
        available_bytes: bytes for the KV cache on a rank of each of the pp pipeline stages.
    """
    stages = partition_layers(model.num_hidden_layers, pp)
    layout = kv_layout(model, settings, tp, pp)
    return kv_cache.capacity(layout, stages, available_bytes, settings.max_model_len)


def tokens_in_flight(settings: Settings, pp: int) -> int:
    """Return the tokens beside a sliding window: one batch, or all that are under way (0.26).

    Source: SlidingWindowSpec.max_memory_usage_bytes and VllmConfig.max_in_flight_tokens.
    """
    if not settings.version.counts_batches_in_flight:
        return settings.max_num_batched_tokens
    return (pp + 1) * settings.max_num_batched_tokens  # asynchronous scheduling overlaps one more


def may_fit(deployment: Deployment, gpus: int) -> bool:
    """Return False where the weights alone are too large for so many GPUs, without fit()."""
    return (
        weight_bytes(deployment.model) - gpus * deployment.dp * deployment.settings.offload_bytes
        < gpus
        * deployment.dp
        * deployment.gpu.engine_bytes
        * deployment.settings.gpu_memory_utilization
    )


def longest_context(
    deployment: Deployment, holds: Callable[[Deployment], bool] | None = None
) -> int:
    """Return the largest max_model_len that starts, in steps of 16; 0 if weights do not fit.

    Args:
        holds: whether a deployment holds a request; by default, whether its `Fit` does.
    """
    holds = holds or (lambda shorter: fit(shorter).holds_a_request)
    low, high = 0, -(-deployment.settings.max_model_len // 16)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(deployment.with_settings(max_model_len=16 * middle)):
            low = middle
        else:
            high = middle - 1
    return min(16 * low, deployment.settings.max_model_len)

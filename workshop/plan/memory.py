"""Memory arithmetic in one place: parameters, weight bytes, KV cache, overheads, capacity, GPUs needed."""

from __future__ import annotations

from workshop.plan.catalog.config import DTYPE_BYTES, ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.fit import Fit, fit, longest_context, may_fit
from workshop.plan.kv_cache import (
    BLOCK_SIZE,
    KV_CACHE_DTYPES,
    Capacity,
    kv_bytes_for_context,
    kv_cache_bytes_per_token,
)
from workshop.plan.overheads import Overhead, overheads
from workshop.plan.ranks import rope_bytes, stage_bytes, tp_problem, whole_bytes
from workshop.plan.settings import Settings
from workshop.plan.weights import active_parameters, parameters

__all__ = [
    "BLOCK_SIZE", "DTYPE_BYTES", "GIB", "KV_CACHE_DTYPES", "Capacity", "Fit", "Overhead", "active_parameters", "fit",
    "gpus_needed", "kv_bytes_for_context", "kv_cache_bytes_per_token", "longest_context", "overheads", "parameters",
    "rope_bytes", "stage_bytes", "weight_bytes",
]


def weight_bytes(m: ModelConfig) -> int:
    """Return the bytes of all weights as stored: quantised ones in their bits with scales, the others in the dtype."""
    return whole_bytes(m)


def gpus_needed(m: ModelConfig, gpu: GPU, s: Settings, gpus_per_node: int = 8, most: int = 256) -> Fit | None:
    """Return the split over the fewest GPUs that serves one request of max_model_len: TP in a node, then PP over nodes.

    None if `most` GPUs are not enough.
    """
    sizes = [t for t in (1, 2, 4, 8, 16) if t <= gpus_per_node and not tp_problem(m, t)]
    splits = [(t, 1) for t in sizes]
    splits += [(sizes[-1], pp) for pp in range(2, min(most // sizes[-1], m.num_hidden_layers) + 1)]
    for tp, pp in splits:
        if may_fit(m, gpu, s, tp, pp):
            found = fit(m, gpu, s, tp, pp)
            if found.fits:
                return found
    return None

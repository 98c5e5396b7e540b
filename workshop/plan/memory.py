"""Memory arithmetic in one place: parameters, weight bytes, KV cache, overheads, capacity, GPUs needed."""

from __future__ import annotations

from workshop.plan.kv_cache import (
    BLOCK_SIZE,
    KV_CACHE_DTYPES,
    Capacity,
    kv_bytes_for_context,
    kv_cache_bytes_per_token,
)
from workshop.plan.overheads import Overhead, overheads
from workshop.plan.ranks import rope_bytes, stage_bytes
from workshop.plan.weights import active_parameters, parameters

__all__ = [
    "BLOCK_SIZE", "KV_CACHE_DTYPES", "Capacity", "Overhead", "active_parameters", "kv_bytes_for_context",
    "kv_cache_bytes_per_token", "overheads", "parameters", "rope_bytes", "stage_bytes",
]

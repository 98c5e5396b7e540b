"""Kinds of attention, a module each: what a layer keeps of a token, its weights, how it splits, its blocks, its time.

`kind_of` says which kind a layer is; everything that depends on the kind asks the kind.
"""

from __future__ import annotations

from functools import lru_cache

from workshop.plan.attention.base import Attention, Widths, ceil_div
from workshop.plan.attention.chunked import Chunked
from workshop.plan.attention.heads import Heads
from workshop.plan.attention.latent import Latent, LatentProjections
from workshop.plan.attention.mamba import Mamba
from workshop.plan.attention.sliding import Sliding
from workshop.plan.catalog.config import ModelConfig

__all__ = ["Attention", "Widths", "ceil_div", "kind_of", "main_kind", "mamba", "size_of"]

full, latent, projections, sliding, chunked, mamba = (
    Heads(),
    Latent(),
    LatentProjections(),
    Sliding(),
    Chunked(),
    Mamba(),
)


def main_kind(m: ModelConfig) -> Attention:
    """Return the kind of the layers that see the whole context: what a token costs, how heads split."""
    return latent if m.mla else projections if m.latent_projections else full


@lru_cache(maxsize=8192)
def kind_of(m: ModelConfig, layer: int) -> Attention:
    """Return the kind of one layer."""
    if m.mamba and layer in m.mamba.layers:
        return mamba
    if m.layer_windows and m.layer_windows[layer]:
        return sliding
    if m.layer_chunks and m.layer_chunks[layer]:
        return chunked
    return main_kind(m)


def size_of(m: ModelConfig, layer: int) -> int:
    """Return the tokens of the layer's window or chunk; 0 where it has none."""
    windows, chunks = m.layer_windows, m.layer_chunks
    return (windows[layer] if windows else None) or (chunks[layer] if chunks else None) or 0

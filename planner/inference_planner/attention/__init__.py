"""Kinds of attention, a module each: what a layer keeps of a token, its weights, how it splits, its blocks, its time.

`kind_of` says which kind a layer is; everything that depends on the kind asks the kind.
"""

from functools import lru_cache

from inference_planner.attention.base import Attention, Widths, ceil_div
from inference_planner.attention.heads import Heads
from inference_planner.attention.latent import Latent, LatentProjections
from inference_planner.attention.mamba import Mamba
from inference_planner.attention.windows import Chunked, Sliding
from inference_planner.catalog.config import ModelConfig

__all__ = [
    "Attention",
    "Widths",
    "ceil_div",
    "chunked",
    "full",
    "grouped",
    "kind_of",
    "layers",
    "main_kind",
    "mamba",
]
__all__ += ["sliding"]

full, latent, projections = Heads(), Latent(), LatentProjections()
sliding, chunked, mamba = Sliding(), Chunked(), Mamba()


def main_kind(m: ModelConfig) -> Attention:
    """Return the kind of the layers that see the whole context: what a token costs, how heads split."""
    return latent if m.mla else projections if m.latent_projections else full


def kind_of(m: ModelConfig, layer: int) -> Attention:
    """Return the kind of one layer."""
    return layers(m)[layer][0]


@lru_cache(maxsize=512)
def layers(m: ModelConfig) -> tuple[tuple[Attention, int], ...]:
    """Return each layer's kind, and the tokens of its window or chunk (0 where it has none)."""
    return tuple(_layer(m, i) for i in range(m.num_hidden_layers))


def _layer(m: ModelConfig, i: int) -> tuple[Attention, int]:
    if m.mamba and i in m.mamba.layers:
        return mamba, 0
    window = m.layer_windows[i] if m.layer_windows else None
    if window:
        return sliding, window
    chunk = m.layer_chunks[i] if m.layer_chunks else None
    if chunk:
        return chunked, chunk
    return main_kind(m), 0


@lru_cache(maxsize=512)
def grouped(m: ModelConfig) -> tuple[tuple[Attention, int, tuple[int, ...]], ...]:
    """Return (kind, size, the layers that are so), in the order in which they first come; those with a cache or state."""
    found: dict[tuple[Attention, int], list[int]] = {}
    for i, kind in enumerate(layers(m)[: m.num_hidden_layers - m.kv_shared_layers]):
        found.setdefault(kind, []).append(i)
    return tuple((kind, size, tuple(mine)) for (kind, size), mine in found.items())

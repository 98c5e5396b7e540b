"""Kinds of attention, each with its cache, weights, split, blocks and time in a module.

`kind_of` says which kind a layer is; everything that depends on the kind asks the kind.
"""

from functools import lru_cache

from inference_planner.catalog.config import ModelConfig
from inference_planner.model.attention.base import (
    Attention,
    CacheSpec,
    Peak,
    ProfileRun,
    States,
    Uncertainty,
    Widths,
    ceil_div,
)
from inference_planner.model.attention.heads import Heads, UnequalHeads
from inference_planner.model.attention.latent import Latent, LatentProjections
from inference_planner.model.attention.mamba import Mamba
from inference_planner.model.attention.windows import Chunked, Sliding

__all__ = [
    "Attention",
    "CacheSpec",
    "Peak",
    "ProfileRun",
    "States",
    "Uncertainty",
    "Widths",
    "ceil_div",
    "grouped",
    "has_states",
    "kind_named",
    "kind_of",
    "kind_of_spec",
    "kinds",
    "layers",
    "main_kind",
]

FULL = Heads()
# Each layer is of the first kind that says so. A new kind is one line here, before FULL, which
# takes every other layer.
KINDS: tuple[Attention, ...] = (
    Mamba(),
    Sliding(),
    Chunked(),
    Latent(),
    LatentProjections(),
    UnequalHeads(),
    FULL,
)


def main_kind(model: ModelConfig) -> Attention:
    """Return the kind of the layers with the whole context, which decides a token's bytes."""
    return next(kind for kind in KINDS if kind.is_main(model))


def kind_of(model: ModelConfig, layer: int) -> Attention:
    """Return the kind of one layer."""
    return layers(model)[layer][0]


def kind_named(key: str) -> Attention:
    """Return the kind with this key; the one that sees the whole context if no kind has it."""
    return next((kind for kind in KINDS if kind.key == key), FULL)


def kind_of_spec(name: str) -> Attention | None:
    """Return the kind that vLLM describes by this class of KV-cache specs, or None."""
    return next((kind for kind in KINDS if name in kind.spec_names), None)


@lru_cache(maxsize=512)
def layers(model: ModelConfig) -> tuple[tuple[Attention, int], ...]:
    """Return each layer's kind, and the tokens of its window or chunk (0 where it has none)."""
    return tuple(_layer(model, layer) for layer in range(model.num_hidden_layers))


def _layer(model: ModelConfig, layer: int) -> tuple[Attention, int]:
    for kind in KINDS:
        size = kind.layer_size(model, layer)
        if size is not None:
            return kind, size
    raise LookupError(f"no kind of attention takes layer {layer}")


@lru_cache(maxsize=512)
def kinds(model: ModelConfig) -> tuple[Attention, ...]:
    """Return the kinds of the model's layers, and its main kind, each once."""
    return tuple(dict.fromkeys([*(kind for kind, _ in layers(model)), main_kind(model)]))


def has_states(model: ModelConfig) -> bool:
    """Return True if some layers keep states of fixed size instead of a cache."""
    return any(kind.keeps_states for kind in kinds(model))


@lru_cache(maxsize=512)
def grouped(model: ModelConfig) -> tuple[tuple[Attention, int, tuple[int, ...]], ...]:
    """Return (kind, size, its layers) of all layers with a cache or state, in their order."""
    layers_of: dict[tuple[Attention, int], list[int]] = {}
    own_cache = layers(model)[: model.num_hidden_layers - model.kv_shared_layers]
    for layer, kind_and_size in enumerate(own_cache):
        layers_of.setdefault(kind_and_size, []).append(layer)
    return tuple((kind, size, tuple(of_kind)) for (kind, size), of_kind in layers_of.items())

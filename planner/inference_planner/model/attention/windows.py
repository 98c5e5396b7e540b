"""Attention to a part of the context: a sliding window, or a chunk (Llama 4).

Source: vLLM 0.25.1, v1/kv_cache_interface.py SlidingWindowSpec and ChunkedLocalAttentionSpec.
"""

from collections.abc import Sequence

from inference_planner.catalog.config import ModelConfig
from inference_planner.model.attention.base import CacheSpec, ceil_div
from inference_planner.model.attention.heads import UnequalHeads


class Sliding(UnequalHeads):
    """K and V of heads that may differ from the others'; blocks outside the window are given back."""

    key = "sliding"
    spec_names = ("SlidingWindowSpec", "SlidingWindowMLASpec")

    def is_main(self, model: ModelConfig) -> bool:
        return False

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        return (model.layer_windows[layer] or None) if model.layer_windows else None

    def describe_layers(self, sizes: Sequence[int], of_layers: int) -> str:
        return f"{len(sizes)} of {of_layers} layers see {min(sizes):,} tokens"

    def sizes(self, model: ModelConfig) -> tuple[int, int, int]:
        return model.window_heads or super().sizes(model)

    def cached_tokens(self, tokens: int, size: int) -> int:
        return min(tokens, size)

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size - 1 + in_flight, max_model_len), block) + 1

    def simulator_spec(
        self, size: int, block_size: int, max_model_len: int, state_blocks: int
    ) -> CacheSpec:
        return CacheSpec("SlidingWindowSpec", {"block_size": block_size, "sliding_window": size})


class Chunked(Sliding):
    """A token sees its own chunk only; chunks that are over are given back."""

    key = "chunked"
    captures_mixed_steps = False
    spec_names = ("ChunkedLocalAttentionSpec",)

    def layer_size(self, model: ModelConfig, layer: int) -> int | None:
        return (model.layer_chunks[layer] or None) if model.layer_chunks else None

    def describe_layers(self, sizes: Sequence[int], of_layers: int) -> str:
        return ""  # the layers of a model with chunks see its whole context together

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size + in_flight, max_model_len), block)

    def simulator_spec(
        self, size: int, block_size: int, max_model_len: int, state_blocks: int
    ) -> CacheSpec:
        arguments: dict[str, int | str] = {"block_size": block_size, "attention_chunk_size": size}
        return CacheSpec("ChunkedLocalAttentionSpec", arguments)

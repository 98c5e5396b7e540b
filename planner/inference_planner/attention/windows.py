"""Attention to a part of the context: a window that slides along (sliding), or a chunk of its own (Llama 4: chunked).

Source: vLLM 0.25.1, v1/kv_cache_interface.py SlidingWindowSpec and ChunkedLocalAttentionSpec.
"""

from inference_planner.attention.base import ceil_div
from inference_planner.attention.heads import Heads
from inference_planner.catalog.config import ModelConfig


class Sliding(Heads):
    """K and V as of Heads; blocks outside the window are given back."""

    key = "sliding"

    def sizes(self, m: ModelConfig) -> tuple[int, int, int]:
        if m.window_heads is None:
            return super().sizes(m)
        return m.window_heads

    def kept(self, tokens: int, size: int) -> int:
        return min(tokens, size)

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size - 1 + in_flight, max_model_len), block) + 1


class Chunked(Sliding):
    """A token sees its own chunk only; chunks that are over are given back."""

    key = "chunked"

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size + in_flight, max_model_len), block)

"""Attention inside chunks of the context (Llama 4): a token sees its own chunk only.

Source: vLLM 0.25.1, v1/kv_cache_interface.py ChunkedLocalAttentionSpec.
"""

from __future__ import annotations

from workshop.plan.attention.base import ceil_div
from workshop.plan.attention.heads import Heads


class Chunked(Heads):
    """K and V as of Heads; chunks that are over are given back."""

    key = "chunked"

    def kept(self, tokens: int, size: int) -> int:
        return min(tokens, size)

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size + in_flight, max_model_len), block)

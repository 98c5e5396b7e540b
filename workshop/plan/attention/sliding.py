"""Attention that looks back over a window of tokens only.

Source: vLLM 0.25.1, v1/kv_cache_interface.py SlidingWindowSpec.
"""

from __future__ import annotations

from workshop.plan.attention.base import ceil_div
from workshop.plan.attention.heads import Heads


class Sliding(Heads):
    """K and V as of Heads; blocks outside the window are given back."""

    key = "sliding"

    def kept(self, tokens: int, size: int) -> int:
        return min(tokens, size)

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size - 1 + in_flight, max_model_len), block) + 1

"""What a kind of attention says of itself: what a token leaves behind, weights, how it splits, its blocks, its time.

All sizes are of one layer. Adding a kind is a module with a subclass, and a line in attention/__init__.py.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from inference_planner.catalog.config import ModelConfig
from inference_planner.weight import Weight


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


@dataclass(frozen=True)
class Widths:
    """Elements a token on one rank, as the profile run holds them."""

    attn: int  # output of attention: heads × head dim of V
    q: int  # queries
    kv: int  # keys (and as many values)


class Attention:
    """One kind of layer. `size` is what the kind is limited by (tokens of a window or chunk); 0 where it is not."""

    key = ""
    deep_gemm = False  # its kernels load DeepGEMM on Hopper, whatever the dtype
    kernels_us = (
        0.0  # small kernels of a layer and step beside those that every layer has (plan/speed.py)
    )

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        """Return the elements that one token leaves in the cache of one of `tp` ranks."""
        raise NotImplementedError

    def token_bytes(self, m: ModelConfig, tp: int, each: int) -> int:
        """Return the bytes that one token leaves there, where an element takes `each`."""
        return self.token_elements(m, tp) * each

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        """Yield the layer's weights of attention, as vLLM builds them and in that order."""
        raise NotImplementedError

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        """Return the heads of K and V that each of `tp` ranks keeps."""
        raise NotImplementedError

    def split_problem(self, m: ModelConfig, tp: int) -> str:
        """Return why `tp` ranks cannot share it beyond the attention heads, or an empty string."""
        return ""

    def held(self, m: ModelConfig, tp: int) -> str:
        """Say what each of `tp` ranks keeps."""
        raise NotImplementedError

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        """Return what the profile run holds of it."""
        raise NotImplementedError

    def kept(self, tokens: int, size: int) -> int:
        """Return how many of `tokens` of context stay in the cache at least."""
        return tokens

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        """Return the blocks of `block` tokens that one request of max_model_len may hold; `in_flight` are computed."""
        return ceil_div(max_model_len, block)

"""State-space layers of hybrid models: a state of fixed size a request instead of a cache that grows.

Source: Mamba (arXiv 2312.00752); vLLM 0.32.0, v1/kv_cache_interface.py MambaSpec, layers/mamba/mamba_utils.py.
"""

# m model, s sizes of the state space, h hidden size
from collections.abc import Iterator

from inference_planner.attention.base import Attention
from inference_planner.catalog.config import ModelConfig
from inference_planner.weight import Weight


class Mamba(Attention):
    """A convolution's window and the state of the recurrence, in one block a request."""

    key = "mamba"

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return 0

    def state_bytes(self, m: ModelConfig, tp: int) -> int:
        """Return the bytes of one request's state on one rank: the convolution's in 16 bit, the recurrence's as it says."""
        s = m.state_space
        groups = tp if s.groups % tp else s.groups  # a group that several ranks need is copied
        conv = s.inner + 2 * groups * s.d_state
        return (2 * conv * (s.d_conv - 1) + s.state_bytes_each * s.inner * s.d_state) // tp

    def kept(self, tokens: int, size: int) -> int:
        return 0

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return 1

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        s, h = m.state_space, m.hidden_size
        inner, conv = s.inner, s.inner + 2 * s.groups * s.d_state
        if s.groups:
            yield Weight("mamba.conv1d", conv, s.d_conv, "column", bias=True)
            yield Weight(
                "mamba.in_proj", inner + conv + s.dt_rank, h, "column", quantizable=True, shards=2
            )
            yield Weight("mamba.out_proj", h, inner, "row", quantizable=True)
            return
        yield Weight("mamba.conv1d", inner, s.d_conv, "column", bias=True)
        yield Weight("mamba.in_proj", 2 * inner, h, "column", quantizable=True, shards=2)
        yield Weight("mamba.x_proj", s.dt_rank + 2 * s.d_state, inner, "row")
        yield Weight("mamba.dt_proj", inner, s.dt_rank, "column", bias=True)
        yield Weight("mamba.A", inner, s.d_state, "column", bytes_each=4)
        yield Weight("mamba.D", inner, split="vector")
        yield Weight("mamba.out_proj", h, inner, "row", quantizable=True)
        yield Weight("mamba.dt_layernorm", s.dt_rank)
        yield Weight("mamba.b_layernorm", s.d_state)
        yield Weight("mamba.c_layernorm", s.d_state)

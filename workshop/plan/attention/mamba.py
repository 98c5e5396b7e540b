"""State-space layers of hybrid models: a state of fixed size a request instead of a cache that grows.

Source: Mamba (arXiv 2312.00752); vLLM 0.25.1, v1/kv_cache_interface.py MambaSpec.
"""

# m model, s sizes of the state space, h hidden size
from workshop.plan.attention.base import Attention
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.weight import Weight


class Mamba(Attention):
    """A convolution's window and the state of the recurrence, in one block a request."""

    key = "mamba"

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return 0

    def state_bytes(self, m: ModelConfig, tp: int) -> int:
        """Return the bytes of one request's state on one rank, in 16 bit."""
        inner = m.mamba.expand * m.hidden_size // tp
        return 2 * inner * (m.mamba.d_conv - 1 + m.mamba.d_state)

    def kept(self, tokens: int, size: int) -> int:
        return 0

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return 1

    def weights(self, m: ModelConfig) -> list[Weight]:
        s, h = m.mamba, m.hidden_size
        inner = s.expand * h
        return [
            Weight("mamba.conv1d", inner, s.d_conv, "column", bias=True),
            Weight("mamba.in_proj", 2 * inner, h, "column", quantizable=True, shards=2),
            Weight("mamba.x_proj", s.dt_rank + 2 * s.d_state, inner, "row"),
            Weight("mamba.dt_proj", inner, s.dt_rank, "column", bias=True),
            Weight("mamba.A", inner, s.d_state, "column", bytes_each=4),
            Weight("mamba.D", inner, split="vector"),
            Weight("mamba.out_proj", h, inner, "row", quantizable=True),
            Weight("mamba.dt_layernorm", s.dt_rank),
            Weight("mamba.b_layernorm", s.d_state),
            Weight("mamba.c_layernorm", s.d_state),
        ]

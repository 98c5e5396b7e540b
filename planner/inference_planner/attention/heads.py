"""Attention with K and V of their own heads: as many as queries (MHA), shared by groups (GQA), or one (MQA).

Source: vLLM 0.25.1, v1/kv_cache_interface.py FullAttentionSpec; model_executor/models/llama.py.
"""

# m model, t traits, h hidden size, d head dim, q rows of queries, kv rows of K and V
from collections.abc import Iterator

from inference_planner.attention.base import Attention, Widths
from inference_planner.catalog.config import ModelConfig
from inference_planner.weight import Weight


class Heads(Attention):
    """K and V of shape [kv_heads, head_dim] a token, for the whole context."""

    key = "full"

    def sizes(self, m: ModelConfig) -> tuple[int, int, int]:
        """Return KV heads, head dim of K, and of V."""
        return m.num_key_value_heads, m.head_dim, m.v_head_dim or m.head_dim

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return self.kv_heads(m, tp) * sum(self.sizes(m)[1:])

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        return max(1, self.sizes(m)[0] // tp)

    def split_problem(self, m: ModelConfig, tp: int) -> str:
        kv = m.num_key_value_heads
        if kv >= tp and kv % tp:
            return f"{tp} does not divide the {kv} KV heads"
        if kv < tp and tp % kv:
            return f"{tp} is not a multiple of the {kv} KV heads, so they cannot be copied evenly"
        return ""

    def held(self, m: ModelConfig, tp: int) -> str:
        kv = m.num_key_value_heads
        return (
            f"{kv // tp} of {kv} KV heads"
            if kv >= tp
            else f"1 of {kv} KV heads, each copied {tp // kv} times"
        )

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        q = m.num_attention_heads // tp * m.head_dim
        return Widths(q, q, self.kv_heads(m, tp) * m.head_dim)

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        t, h, (kv_heads, d, v) = m.traits, m.hidden_size, self.sizes(m)
        q, kv = m.num_attention_heads * d * (1 + t.gated_attention), kv_heads * (d + v)
        fused = {"shards": 3, "kv_heads": kv_heads, "kv_rows": kv}
        yield Weight(
            "self_attn.qkv_proj", q + kv, h, "qkv", quantizable=True, bias=t.qkv_bias, **fused
        )
        yield Weight(
            "self_attn.o_proj", h, m.num_attention_heads * v, "row", quantizable=True, bias=t.o_bias
        )
        if t.qk_norm:
            yield Weight("self_attn.q_norm", d if t.qk_norm == "head" else q)
            yield Weight("self_attn.k_norm", d if t.qk_norm == "head" else kv // 2)
        if t.sinks:
            yield Weight("self_attn.sinks", m.num_attention_heads, split="vector")

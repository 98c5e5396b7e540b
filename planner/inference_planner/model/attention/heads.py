"""Attention with K and V of their own heads: MHA, GQA or MQA.

There are as many of them as queries (MHA), one for a group of queries (GQA), or a single one (MQA).

Source: vLLM 0.25.1, v1/kv_cache_interface.py FullAttentionSpec; model_executor/models/llama.py.
"""

# m model
from collections.abc import Iterator

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.weight import Weight
from inference_planner.model.attention.base import Attention, Widths

FLASHINFER_HEADS = (64, 128, 256, 512)  # sizes of heads that FlashInfer has kernels for
FLASHINFER_CAPABILITY = 8.0


class Heads(Attention):
    """K and V of shape [kv_heads, head_dim] a token, for the whole context."""

    key = "full"
    spec_names = ("FullAttentionSpec", "SinkFullAttentionSpec")

    def is_main(self, model: ModelConfig) -> bool:
        return True

    def sizes(self, m: ModelConfig) -> tuple[int, int, int]:
        """Return KV heads, head dim of K, and of V."""
        return m.num_key_value_heads, m.head_dim, m.v_head_dim or m.head_dim

    def label(self, m: ModelConfig) -> str:
        if m.num_key_value_heads == m.num_attention_heads:
            return "MHA"
        return "MQA" if m.num_key_value_heads == 1 else "GQA"

    def describe(self, m: ModelConfig) -> str:
        return f"{self.label(m)} {m.num_attention_heads}/{m.num_key_value_heads}"

    def describe_token(self, m: ModelConfig) -> str:
        return f"2 × {m.num_key_value_heads} heads × {m.head_dim}"

    def describe_cache(self, m: ModelConfig) -> str:
        return f"{m.num_key_value_heads} KV heads"

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return self.kv_heads(m, tp) * sum(self.sizes(m)[1:])

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        return max(1, self.sizes(m)[0] // tp)

    def split_problem(self, m: ModelConfig, tp: int) -> str:
        kv_heads = m.num_key_value_heads
        if kv_heads >= tp and kv_heads % tp:
            return f"{tp} does not divide the {kv_heads} KV heads"
        if kv_heads < tp and tp % kv_heads:
            return (
                f"{tp} is not a multiple of the {kv_heads} KV heads, "
                "so they cannot be copied evenly"
            )
        return ""

    def copies(self, m: ModelConfig, tp: int) -> int:
        return max(1, tp // m.num_key_value_heads)

    def context_sizes(self, m: ModelConfig, tp: int) -> list[int]:
        query_heads_of_one = m.num_attention_heads // m.num_key_value_heads
        sizes = range(2, tp // m.num_key_value_heads + 1)
        return [n for n in sizes if tp % n == 0 and query_heads_of_one % n == 0]

    def describe_share(self, m: ModelConfig, tp: int) -> str:
        kv_heads = m.num_key_value_heads
        if kv_heads >= tp:
            return f"{kv_heads // tp} of {kv_heads} KV heads"
        return f"1 of {kv_heads} KV heads, each copied {tp // kv_heads} times"

    def cache_capability(self, m: ModelConfig, kv_cache_dtype: str) -> float:
        has_flashinfer = not m.traits.sinks and m.head_dim in FLASHINFER_HEADS
        if kv_cache_dtype.startswith("fp8") and has_flashinfer:
            return FLASHINFER_CAPABILITY
        return super().cache_capability(m, kv_cache_dtype)

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        queries = m.num_attention_heads // tp * m.head_dim
        return Widths(attn=queries, q=queries, kv=self.kv_heads(m, tp) * m.head_dim)

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        traits = m.traits
        kv_heads, head_dim, v_head_dim = self.sizes(m)
        query_rows = m.num_attention_heads * head_dim
        if traits.gated_attention:
            query_rows *= 2
        kv_rows = kv_heads * (head_dim + v_head_dim)
        yield Weight(
            "self_attn.qkv_proj",
            query_rows + kv_rows,
            m.hidden_size,
            "qkv",
            quantizable=True,
            bias=traits.qkv_bias,
            shards=3,
            kv_heads=kv_heads,
            kv_rows=kv_rows,
        )
        yield Weight(
            "self_attn.o_proj",
            m.hidden_size,
            m.num_attention_heads * v_head_dim,
            "row",
            quantizable=True,
            bias=traits.o_bias,
        )
        if traits.qk_norm == "head":
            yield Weight("self_attn.q_norm", head_dim)
            yield Weight("self_attn.k_norm", head_dim)
        elif traits.qk_norm:
            yield Weight("self_attn.q_norm", query_rows)
            yield Weight("self_attn.k_norm", kv_rows // 2)
        if traits.sinks:
            yield Weight("self_attn.sinks", m.num_attention_heads, split="vector")

"""Attention with K and V of their own heads: one a query (MHA), a group (GQA), or all (MQA).

Source: vLLM 0.25.1, v1/kv_cache_interface.py FullAttentionSpec; model_executor/models/llama.py.
"""

from collections.abc import Iterator

from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.weight import Weight
from inference_planner.model.attention.base import Attention, Widths


class Heads(Attention):
    """K and V of shape [kv_heads, head_dim] a token, for the whole context."""

    key = "full"
    captures_mixed_steps = True
    spec_names = ("FullAttentionSpec", "SinkFullAttentionSpec")

    def is_main(self, model: ModelConfig) -> bool:
        return True

    def sizes(self, model: ModelConfig) -> tuple[int, int, int]:
        """Return KV heads, head dim of K, and of V."""
        return model.num_key_value_heads, model.head_dim, model.v_head_dim or model.head_dim

    def label(self, model: ModelConfig) -> str:
        if model.num_key_value_heads == model.num_attention_heads:
            return "MHA"
        return "MQA" if model.num_key_value_heads == 1 else "GQA"

    def describe(self, model: ModelConfig) -> str:
        return f"{self.label(model)} {model.num_attention_heads}/{model.num_key_value_heads}"

    def describe_token(self, model: ModelConfig) -> str:
        return f"2 × {model.num_key_value_heads} KV heads × {model.head_dim}"

    def token_elements(self, model: ModelConfig, tp: int = 1) -> int:
        """Return K and V of each head: in all layers and in 16 bits, the line of notebook 1."""
        return 2 * self.kv_heads(model, tp) * model.head_dim

    def kv_heads(self, model: ModelConfig, tp: int) -> int:
        return max(1, self.sizes(model)[0] // tp)

    def split_problem(self, model: ModelConfig, tp: int) -> str:
        kv_heads = model.num_key_value_heads
        if kv_heads >= tp and kv_heads % tp:
            return f"{tp} does not divide the {kv_heads} KV heads"
        if kv_heads < tp and tp % kv_heads:
            return (
                f"{tp} is not a multiple of the {kv_heads} KV heads, "
                "so they cannot be copied evenly"
            )
        return ""

    def context_sizes(self, model: ModelConfig, tp: int) -> list[int]:
        query_heads_of_one = model.num_attention_heads // model.num_key_value_heads
        sizes = range(2, tp // model.num_key_value_heads + 1)
        return [n for n in sizes if tp % n == 0 and query_heads_of_one % n == 0]

    def describe_share(self, model: ModelConfig, tp: int) -> str:
        kv_heads = model.num_key_value_heads
        if kv_heads >= tp:
            return f"{kv_heads // tp} of {kv_heads} KV heads"
        return f"1 of {kv_heads} KV heads, each copied {tp // kv_heads} times"

    def selected_by(self, model: ModelConfig, size: int) -> tuple[str, int] | None:
        _, head_dim, v_head_dim = self.sizes(model)
        if head_dim != v_head_dim:
            return None
        kind = "window" if size else "heads"
        if model.traits.sinks:
            kind = "sinks"
        return kind, head_dim

    def widths(self, model: ModelConfig, tp: int) -> Widths:
        queries = model.num_attention_heads // tp * model.head_dim
        return Widths(attn=queries, q=queries, kv=self.kv_heads(model, tp) * model.head_dim)

    def weights(self, model: ModelConfig) -> Iterator[Weight]:
        traits = model.traits
        kv_heads, head_dim, v_head_dim = self.sizes(model)
        query_rows = model.num_attention_heads * head_dim
        if traits.gated_attention:
            query_rows *= 2
        kv_rows = kv_heads * (head_dim + v_head_dim)
        yield Weight(
            "self_attn.qkv_proj",
            query_rows + kv_rows,
            model.hidden_size,
            "qkv",
            quantizable=True,
            bias=traits.qkv_bias,
            shards=3,
            kv_heads=kv_heads,
            kv_rows=kv_rows,
        )
        yield Weight(
            "self_attn.o_proj",
            model.hidden_size,
            model.num_attention_heads * v_head_dim,
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
            yield Weight("self_attn.sinks", model.num_attention_heads, split="vector")


class UnequalHeads(Heads):
    """Heads whose K and V have sizes of their own (MiMo)."""

    spec_names = ()

    def is_main(self, model: ModelConfig) -> bool:
        return model.v_head_dim > 0

    def token_elements(self, model: ModelConfig, tp: int = 1) -> int:
        _, head_dim, v_head_dim = self.sizes(model)
        return self.kv_heads(model, tp) * (head_dim + v_head_dim)

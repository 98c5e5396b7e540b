"""Multi-head latent attention (MLA): one latent a token, from which the heads' K and V are made when they are needed.

Source: DeepSeek-V2 (arXiv 2405.04434); vLLM 0.25.1, v1/kv_cache_interface.py MLAAttentionSpec.
"""

# m model, a sizes of the latent, n attention heads, h hidden size
from collections.abc import Iterator

from inference_planner.attention.base import Attention, Widths
from inference_planner.attention.heads import Heads
from inference_planner.catalog.config import ModelConfig, present
from inference_planner.weight import Weight


class Latent(Attention):
    """One latent of kv_lora_rank + qk_rope_head_dim a token; every rank keeps all of it."""

    key = "latent"
    deep_gemm = True
    kernels_us = (
        26.0  # projections into and out of the latent; fitted with plan/speed.py's constants
    )

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return m.latent.kv_lora_rank + m.latent.qk_rope_head_dim

    def token_bytes(self, m: ModelConfig, tp: int, each: int) -> int:
        """A sparse one has keys of its indexer, in FP8 with a 32-bit scale; in FP8 its own scales, and positions in 16 bit.

        Source: vLLM 0.32.0, v1/kv_cache_interface.py MLAAttentionSpec (fp8_ds_mla), models/deepseek_v2.py.
        """
        a = m.latent
        if not a.index_heads:
            return super().token_bytes(m, tp, each)
        fp8 = a.kv_lora_rank * 33 // 32 + 2 * a.qk_rope_head_dim
        return (fp8 if each == 1 else self.token_elements(m) * each) + int(
            a.index_head_dim * 33 / 32 * a.index_share
        )

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        return 1

    def held(self, m: ModelConfig, tp: int) -> str:
        return "the one latent, copied to every GPU"

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        a, heads = m.latent, m.num_attention_heads // tp
        qk = a.qk_nope_head_dim + a.qk_rope_head_dim
        return Widths(heads * a.v_head_dim, heads * qk, a.kv_lora_rank + a.qk_rope_head_dim)

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        return latent_weights(m)


def latent_weights(m: ModelConfig) -> Iterator[Weight]:
    """Yield the matrices that make the latent, and the heads' K and V of it."""
    a, n, h = present(m.mla or m.latent_projections), m.num_attention_heads, m.hidden_size
    qk, kv = a.qk_nope_head_dim + a.qk_rope_head_dim, a.qk_nope_head_dim + a.v_head_dim
    latent = a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank:
        yield Weight(
            "self_attn.fused_qkv_a_proj", a.q_lora_rank + latent, h, quantizable=True, shards=2
        )
        yield Weight("self_attn.q_a_layernorm", a.q_lora_rank)
        yield Weight("self_attn.q_b_proj", n * qk, a.q_lora_rank, "column", quantizable=True)
    else:
        yield Weight("self_attn.q_proj", n * qk, h, "column", quantizable=True)
        yield Weight("self_attn.kv_a_proj_with_mqa", latent, h, quantizable=True)
    if a.index_heads:  # every rank has the whole indexer
        width = a.index_head_dim
        sizes = (
            (a.index_heads * width, a.q_lora_rank or h, True),
            (width, h, True),
            (a.index_heads, h, False),
        )
        # as many rows as in the mean of all layers
        for i, (rows, cols, quantizable) in enumerate(sizes):
            yield Weight(
                f"self_attn.indexer.{i}", int(rows * a.index_share), cols, quantizable=quantizable
            )
    yield Weight("self_attn.kv_a_layernorm", a.kv_lora_rank)
    yield Weight("self_attn.kv_b_proj", n * kv, a.kv_lora_rank, "column", quantizable=True)
    yield Weight("self_attn.o_proj", h, n * a.v_head_dim, "row", quantizable=True)


class LatentProjections(Heads):
    """MLA's weights, but the engine keeps K and V of every head (MiniCPM3)."""

    def weights(self, m: ModelConfig) -> Iterator[Weight]:
        return latent_weights(m)

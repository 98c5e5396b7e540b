"""Kinds of attention, a class each: what a layer keeps of a token, its weights, how it splits, its blocks, its time.

`kind_of` says which kind a layer is; everything that depends on the kind asks the kind. All sizes are of one layer.

Source: vLLM 0.25.1, v1/kv_cache_interface.py, the KVCacheSpec of each kind; model_executor/models/llama.py.
"""

# m model, t traits, h hidden size, d head dim, q rows of queries, kv rows of K and V, a sizes of a latent,
# n attention heads, s sizes of a state space
from dataclasses import dataclass
from functools import lru_cache

from workshop.plan.catalog.config import ModelConfig
from workshop.plan.weight import Weight


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
    """A kind of layer; the most common one itself: K and V of shape [kv_heads, head_dim] a token, for the whole context.

    There are as many heads of K and V as of queries (MHA), one for each group of them (GQA), or one (MQA). `size` is what
    a kind is limited by (tokens of a window or chunk); 0 where it is not.
    """

    key = "full"
    deep_gemm = False  # its kernels load DeepGEMM on Hopper, whatever the dtype
    kernels_us = 0.0  # small kernels of a layer and step beside those that every layer has (plan/speed.py)

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        """Return the elements that one token leaves in the cache of one of `tp` ranks."""
        return 2 * self.kv_heads(m, tp) * m.head_dim

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        """Return the heads of K and V that each of `tp` ranks keeps."""
        return max(1, m.num_key_value_heads // tp)

    def split_problem(self, m: ModelConfig, tp: int) -> str:
        """Return why `tp` ranks cannot share it beyond the attention heads, or an empty string."""
        kv = m.num_key_value_heads
        if kv >= tp and kv % tp:
            return f"{tp} does not divide the {kv} KV heads"
        if kv < tp and tp % kv:
            return f"{tp} is not a multiple of the {kv} KV heads, so they cannot be copied evenly"
        return ""

    def held(self, m: ModelConfig, tp: int) -> str:
        """Say what each of `tp` ranks keeps."""
        kv = m.num_key_value_heads
        return f"{kv // tp} of {kv} KV heads" if kv >= tp else f"1 of {kv} KV heads, each copied {tp // kv} times"

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        """Return what the profile run holds of it."""
        q = m.num_attention_heads // tp * m.head_dim
        return Widths(q, q, self.kv_heads(m, tp) * m.head_dim)

    def weights(self, m: ModelConfig) -> list[Weight]:
        """Return the layer's weights of attention, as vLLM builds them and in that order."""
        t, h, d, kv_heads = m.traits, m.hidden_size, m.head_dim, m.num_key_value_heads
        q, kv = m.num_attention_heads * d, 2 * kv_heads * d
        fused = {"shards": 3, "kv_heads": kv_heads, "kv_rows": kv}
        out = [
            Weight("self_attn.qkv_proj", q + kv, h, "qkv", quantizable=True, bias=t.qkv_bias, **fused),
            Weight("self_attn.o_proj", h, q, "row", quantizable=True, bias=t.o_bias),
        ]
        if t.qk_norm == "head":
            out += [Weight("self_attn.q_norm", d), Weight("self_attn.k_norm", d)]
        elif t.qk_norm == "full":
            out += [Weight("self_attn.q_norm", q), Weight("self_attn.k_norm", kv // 2)]
        if t.sinks:
            out.append(Weight("self_attn.sinks", m.num_attention_heads, split="vector"))
        return out

    def kept(self, tokens: int, size: int) -> int:
        """Return how many of `tokens` of context stay in the cache at least."""
        return tokens

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        """Return the blocks of `block` tokens that one request of max_model_len may hold; `in_flight` are computed."""
        return ceil_div(max_model_len, block)


class Sliding(Attention):
    """A window slides along the context; blocks outside of it are given back."""

    key = "sliding"

    def kept(self, tokens: int, size: int) -> int:
        return min(tokens, size)

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size - 1 + in_flight, max_model_len), block) + 1


class Chunked(Sliding):
    """A token sees its own chunk only (Llama 4); chunks that are over are given back."""

    key = "chunked"

    def blocks(self, size: int, block: int, max_model_len: int, in_flight: int) -> int:
        return ceil_div(min(size + in_flight, max_model_len), block)


class LatentProjections(Attention):
    """MLA's weights, but the engine keeps K and V of every head (MiniCPM3)."""

    def weights(self, m: ModelConfig) -> list[Weight]:
        """Return the projections into and out of the latent."""
        a, n, h = m.mla or m.latent_projections, m.num_attention_heads, m.hidden_size
        qk, kv = a.qk_nope_head_dim + a.qk_rope_head_dim, a.qk_nope_head_dim + a.v_head_dim
        latent = a.kv_lora_rank + a.qk_rope_head_dim
        if a.q_lora_rank:
            out = [
                Weight("self_attn.fused_qkv_a_proj", a.q_lora_rank + latent, h, quantizable=True, shards=2),
                Weight("self_attn.q_a_layernorm", a.q_lora_rank),
                Weight("self_attn.q_b_proj", n * qk, a.q_lora_rank, "column", quantizable=True),
            ]
        else:
            out = [
                Weight("self_attn.q_proj", n * qk, h, "column", quantizable=True),
                Weight("self_attn.kv_a_proj_with_mqa", latent, h, quantizable=True),
            ]
        return [
            *out,
            Weight("self_attn.kv_a_layernorm", a.kv_lora_rank),
            Weight("self_attn.kv_b_proj", n * kv, a.kv_lora_rank, "column", quantizable=True),
            Weight("self_attn.o_proj", h, n * a.v_head_dim, "row", quantizable=True),
        ]


class Latent(LatentProjections):
    """Multi-head latent attention (MLA): one latent of kv_lora_rank + qk_rope_head_dim a token, all of it on every rank.

    The heads' K and V are made of it when they are needed. Source: DeepSeek-V2 (arXiv 2405.04434).
    """

    key = "latent"
    deep_gemm = True
    kernels_us = 26.0  # projections into and out of the latent; fitted with plan/speed.py's constants

    def token_elements(self, m: ModelConfig, tp: int = 1) -> int:
        return m.mla.kv_lora_rank + m.mla.qk_rope_head_dim

    def kv_heads(self, m: ModelConfig, tp: int) -> int:
        return 1

    def split_problem(self, m: ModelConfig, tp: int) -> str:
        return ""

    def held(self, m: ModelConfig, tp: int) -> str:
        return "the one latent, copied to every GPU"

    def widths(self, m: ModelConfig, tp: int) -> Widths:
        a, heads = m.mla, m.num_attention_heads // tp
        qk = a.qk_nope_head_dim + a.qk_rope_head_dim
        return Widths(heads * a.v_head_dim, heads * qk, a.kv_lora_rank + a.qk_rope_head_dim)


class Mamba(Attention):
    """A state-space layer of a hybrid model: a convolution's window and the recurrence's state, one block a request.

    Its size is fixed, where a cache grows. Source: Mamba (arXiv 2312.00752).
    """

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


full, latent, projections = Attention(), Latent(), LatentProjections()
sliding, chunked, mamba = Sliding(), Chunked(), Mamba()


def main_kind(m: ModelConfig) -> Attention:
    """Return the kind of the layers that see the whole context: what a token costs, how heads split."""
    return latent if m.mla else projections if m.latent_projections else full


def kind_of(m: ModelConfig, layer: int) -> Attention:
    """Return the kind of one layer."""
    return layers(m)[layer][0]


@lru_cache(maxsize=512)
def layers(m: ModelConfig) -> tuple[tuple[Attention, int], ...]:
    """Return each layer's kind, and the tokens of its window or chunk (0 where it has none)."""
    return tuple(_layer(m, i) for i in range(m.num_hidden_layers))


def _layer(m: ModelConfig, i: int) -> tuple[Attention, int]:
    if m.mamba and i in m.mamba.layers:
        return mamba, 0
    if m.layer_windows and m.layer_windows[i]:
        return sliding, m.layer_windows[i]
    if m.layer_chunks and m.layer_chunks[i]:
        return chunked, m.layer_chunks[i]
    return main_kind(m), 0


@lru_cache(maxsize=512)
def grouped(m: ModelConfig) -> tuple[tuple[Attention, int, tuple[int, ...]], ...]:
    """Return (kind, size, the layers that are so), in the order in which they first come."""
    found: dict[tuple[Attention, int], list[int]] = {}
    for i, kind in enumerate(layers(m)):
        found.setdefault(kind, []).append(i)
    return tuple((kind, size, tuple(mine)) for (kind, size), mine in found.items())

"""Model families: what their architecture fixes, and how each config.json spells its sizes.

One function a family turns config.json into the fields that differ from a Llama. Names of architectures are
those of `architectures` in config.json and of vLLM's registry (vllm/model_executor/models/registry.py, 0.25.1).
"""

from __future__ import annotations

from collections.abc import Callable

from workshop.plan.catalog.config import Mamba, Mla, Moe, Traits
from workshop.plan.catalog.fields import Fields


def llama(f: Fields) -> dict:
    bias = f.flag("attention_bias") or f.flag("bias")
    qkv_bias = f.flag("qkv_bias") if f.has("qkv_bias") else bias
    return {"traits": Traits(qkv_bias=qkv_bias, o_bias=bias, mlp_bias=f.flag("mlp_bias"))}


def mistral(f: Fields) -> dict:
    return {**llama(f), "window": f.optional_int("sliding_window")}


def mixtral(f: Fields) -> dict:
    experts = f.first_int("num_local_experts", "num_experts")
    moe = Moe(experts, f.int("num_experts_per_tok"), f.int("intermediate_size"), 0, f.all_layers())
    return {"traits": Traits(), "moe": moe, "window": f.optional_int("sliding_window")}


def qwen2(f: Fields) -> dict:
    return {"traits": Traits(qkv_bias=True), "window": _qwen_window(f)}


def qwen3(f: Fields) -> dict:
    bias = f.flag("attention_bias")
    return {"traits": Traits(qk_norm="head", qkv_bias=bias, o_bias=bias), "window": _qwen_window(f), "head_dim": 128}


def _qwen_window(f: Fields) -> int | None:
    """Qwen's `sliding_window` counts only with `use_sliding_window`."""
    return f.optional_int("sliding_window") if f.flag("use_sliding_window") else None


def _sparse_layers(f: Fields) -> frozenset[int]:
    step = f.int("decoder_sparse_step", 1)
    dense = set(f.list("mlp_only_layers", int))
    return frozenset(i for i in range(f.layers) if i not in dense and (i + 1) % step == 0)


def qwen2_moe(f: Fields) -> dict:
    moe = Moe(
        f.first_int("num_experts", "num_local_experts"),
        f.int("num_experts_per_tok"),
        f.int("moe_intermediate_size"),
        f.int("shared_expert_intermediate_size", least=0),
        _sparse_layers(f),
        shared_gate=True,
    )
    return {"traits": Traits(qkv_bias=True), "moe": moe, "window": _qwen_window(f)}


def qwen3_moe(f: Fields) -> dict:
    bias = f.flag("attention_bias")
    moe = Moe(
        f.first_int("num_experts", "num_local_experts"),
        f.int("num_experts_per_tok"),
        f.int("moe_intermediate_size"),
        0,
        _sparse_layers(f),
    )
    return {"traits": Traits(qk_norm="head", qkv_bias=bias, o_bias=bias), "moe": moe, "window": _qwen_window(f)}


def gemma(f: Fields) -> dict:
    return {"traits": Traits(embedding_scaled=True), "tie": True, "head_dim": 256}


def gemma2(f: Fields) -> dict:
    window = f.int("sliding_window", 4096)
    windows = f.layer_windows(window) or tuple(window if i % 2 == 0 else None for i in range(f.layers))
    return {"traits": Traits(norms=4, embedding_scaled=True), "tie": True, "windows": windows, "head_dim": 256}


def gemma3(f: Fields) -> dict:
    window, pattern = f.int("sliding_window", 4096), f.int("sliding_window_pattern", 6)
    windows = f.layer_windows(window) or tuple(None if (i + 1) % pattern == 0 else window for i in range(f.layers))
    return {
        "traits": Traits(norms=4, qk_norm="head", embedding_scaled=True),
        "tie": True,
        "windows": windows,
        "head_dim": 256,
        "kv_heads": 4,
        "heads": 8,
        "vocab": 262208,
        "positions": 131072,
        "rope_tables": 2,
    }


def phi3(f: Fields) -> dict:
    return {"traits": Traits(), "window": None}


def phi(f: Fields) -> dict:
    return {
        "traits": Traits(
            gated_mlp=False,
            qkv_bias=True,
            o_bias=True,
            mlp_bias=True,
            norms=1,
            norm_bias=True,
            lm_head_bias=True,
            parallel_block=True,
        ),
        "partial_rotary": 0.5,
    }


def falcon(f: Fields) -> dict:
    new = f.flag("new_decoder_architecture")
    heads = f.first_int("num_attention_heads", "n_head")
    kv = f.first_int("num_kv_heads", "n_head_kv", default=8) if new else 1 if f.flag("multi_query", True) else heads
    parallel = f.flag("parallel_attn", True)
    norms = (f.int("num_ln_in_parallel_attn", 2) if new else 1) if parallel else 2
    bias = f.flag("bias")
    traits = Traits(
        gated_mlp=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        norms=norms,
        norm_bias=True,
        parallel_block=parallel,
        alibi=f.flag("alibi"),
        rope=not f.flag("alibi"),
    )
    hidden = f.first_int("hidden_size", "n_embed")
    return {
        "traits": traits,
        "tie": f.flag("tie_word_embeddings", True),
        "heads": heads,
        "kv_heads": kv,
        "intermediate": f.int("ffn_hidden_size", 4 * hidden),
        "positions": 2048,
    }


def opt(f: Fields) -> dict:
    before = f.flag("do_layer_norm_before", True)
    bias = f.flag("enable_bias", True)
    if f.int("word_embed_proj_dim", f.int("hidden_size")) != f.int("hidden_size"):
        f.refuse("word_embed_proj_dim", "differs from hidden_size, which only OPT-350M has: not planned")
    traits = Traits(
        gated_mlp=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bias,
        norms=2,
        norm_bias=True,
        rope=False,
        learned_positions=f.int("max_position_embeddings") + 2,
        final_norm=before,
    )
    return {"traits": traits, "tie": f.flag("tie_word_embeddings", True), "intermediate": f.int("ffn_dim")}


def gpt2(f: Fields) -> dict:
    hidden, positions = f.int("n_embd"), f.first_int("n_positions", "n_ctx")
    traits = Traits(
        gated_mlp=False,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        norms=2,
        norm_bias=True,
        rope=False,
        learned_positions=positions,
    )
    inner = f.optional_int("n_inner")
    return {
        "traits": traits,
        "tie": f.flag("tie_word_embeddings", True),
        "positions": positions,
        "hidden": hidden,
        "heads": f.int("n_head"),
        "intermediate": inner or 4 * hidden,
    }


def gpt_neox(f: Fields) -> dict:
    bias = f.flag("attention_bias", True)
    traits = Traits(
        gated_mlp=False,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=True,
        norms=2,
        norm_bias=True,
        parallel_block=f.flag("use_parallel_residual", True),
    )
    return {"traits": traits, "partial_rotary": f.number("rotary_pct", 0.25, 1)}


def starcoder2(f: Fields) -> dict:
    bias = f.flag("use_bias", True)
    traits = Traits(gated_mlp=False, qkv_bias=bias, o_bias=bias, mlp_bias=bias, norms=2, norm_bias=True)
    return {"traits": traits, "tie": f.flag("tie_word_embeddings", True), "window": f.optional_int("sliding_window")}


def olmo2(f: Fields) -> dict:
    return {"traits": Traits(qk_norm="full")}


def granite(f: Fields) -> dict:
    return {**llama(f), "tie": f.flag("tie_word_embeddings", True)}


def minicpm(f: Fields) -> dict:
    if f.int("num_experts", 0, least=0):
        f.refuse("num_experts", "makes this a MiniCPM-MoE, which is not planned")
    return {"traits": Traits(embedding_scaled=True), "tie": f.flag("tie_word_embeddings", True)}


def minicpm3(f: Fields) -> dict:
    """MLA's projections; but vLLM 0.32.0's minicpm3.py keeps K and V of every head, V padded to the width of K."""
    heads = f.int("num_attention_heads")
    latent = Mla(
        f.int("kv_lora_rank"),
        f.optional_int("q_lora_rank"),
        f.int("qk_nope_head_dim"),
        f.int("qk_rope_head_dim"),
        f.int("v_head_dim", f.int("hidden_size") // heads),
    )
    return {
        "traits": Traits(embedding_scaled=True),
        "tie": f.flag("tie_word_embeddings", True),
        "kv_heads": heads,
        "latent_projections": latent,
        "head_dim": latent.qk_nope_head_dim + latent.qk_rope_head_dim,
        "rotary_dim": latent.qk_rope_head_dim,
    }


def deepseek(f: Fields) -> dict:
    mla = Mla(
        f.int("kv_lora_rank"),
        f.optional_int("q_lora_rank"),
        f.int("qk_nope_head_dim"),
        f.int("qk_rope_head_dim"),
        f.int("v_head_dim"),
    )
    experts = f.int("n_routed_experts", 0, least=0)
    moe = None
    if experts:
        first, freq = f.int("first_k_dense_replace", 0, least=0), f.int("moe_layer_freq", 1)
        layers = frozenset(i for i in range(f.layers) if i >= first and i % freq == 0)
        each = f.int("moe_intermediate_size")
        moe = Moe(
            experts,
            f.int("num_experts_per_tok"),
            each,
            each * f.int("n_shared_experts", 0, least=0),
            layers,
            router_bias=f.text("topk_method", "") == "noaux_tc",
        )
    return {
        "traits": Traits(),
        "mla": mla,
        "moe": moe,
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        "kv_heads": f.int("num_attention_heads"),
        "rotary_dim": mla.qk_rope_head_dim,
    }


def gpt_oss(f: Fields) -> dict:
    window = f.int("sliding_window")
    windows = f.layer_windows(window) or tuple(window if i % 2 == 0 else None for i in range(f.layers))
    moe = Moe(
        f.first_int("num_local_experts", "num_experts"),
        f.int("num_experts_per_tok"),
        f.int("intermediate_size"),
        0,
        f.all_layers(),
        router_bias=True,
    )
    traits = Traits(qkv_bias=True, o_bias=True, mlp_bias=True, sinks=True, rope_float32=True)
    return {"traits": traits, "moe": moe, "windows": windows}


def llama4(f: Fields) -> dict:
    chunk = f.optional_int("attention_chunk_size")
    no_rope = f.list("no_rope_layers", int) or [int((i + 1) % 4 != 0) for i in range(f.layers)]
    if len(no_rope) != f.layers:
        f.refuse("no_rope_layers", f"names {len(no_rope)} layers, num_hidden_layers {f.layers}")
    step = f.int("interleave_moe_layer_step", 1, least=0)
    layers = frozenset(f.list("moe_layers", int) or [i for i in range(f.layers) if step and (i + 1) % step == 0])
    moe = Moe(
        f.int("num_local_experts"),
        f.int("num_experts_per_tok"),
        f.int("intermediate_size"),
        f.int("intermediate_size"),
        layers,
    )
    return {
        "traits": Traits(),
        "moe": moe,
        "intermediate": f.int("intermediate_size_mlp"),
        "chunks": tuple(chunk if no_rope[i] else None for i in range(f.layers)),
    }


def jamba(f: Fields) -> dict:
    offset, period = f.int("attn_layer_offset", least=0), f.int("attn_layer_period")
    mamba_layers = frozenset(i for i in range(f.layers) if i % period != offset)
    e_off, e_period = f.int("expert_layer_offset", least=0), f.int("expert_layer_period")
    moe = Moe(
        f.int("num_experts"),
        f.int("num_experts_per_tok"),
        f.int("intermediate_size"),
        0,
        frozenset(i for i in range(f.layers) if i % e_period == e_off),
    )
    hidden = f.int("hidden_size")
    rank = -(-hidden // 16) if f.text("mamba_dt_rank", "") == "auto" else f.int("mamba_dt_rank", -(-hidden // 16))
    mamba = Mamba(mamba_layers, f.int("mamba_d_state", 16), f.int("mamba_d_conv", 4), f.int("mamba_expand", 2), rank)
    return {"traits": Traits(rope=False), "moe": moe if moe.num_experts > 1 else None, "mamba": mamba}


# architecture -> (reader, the model_type values it comes with)
FAMILIES: dict[str, tuple[Callable[[Fields], dict], tuple[str, ...]]] = {
    "LlamaForCausalLM": (llama, ("llama",)),
    "MistralForCausalLM": (mistral, ("mistral",)),
    "Mistral3ForConditionalGeneration": (mistral, ("mistral3",)),
    "MixtralForCausalLM": (mixtral, ("mixtral",)),
    "Qwen2ForCausalLM": (qwen2, ("qwen2",)),
    "Qwen2MoeForCausalLM": (qwen2_moe, ("qwen2_moe",)),
    "Qwen3ForCausalLM": (qwen3, ("qwen3",)),
    "Qwen3MoeForCausalLM": (qwen3_moe, ("qwen3_moe",)),
    "GemmaForCausalLM": (gemma, ("gemma",)),
    "Gemma2ForCausalLM": (gemma2, ("gemma2",)),
    "Gemma3ForCausalLM": (gemma3, ("gemma3_text",)),
    "Gemma3ForConditionalGeneration": (gemma3, ("gemma3",)),
    "PhiForCausalLM": (phi, ("phi", "phi-msft")),
    "Phi3ForCausalLM": (phi3, ("phi3",)),
    "FalconForCausalLM": (falcon, ("falcon", "RefinedWeb", "RefinedWebModel")),
    "OPTForCausalLM": (opt, ("opt",)),
    "GPT2LMHeadModel": (gpt2, ("gpt2",)),
    "GPTNeoXForCausalLM": (gpt_neox, ("gpt_neox",)),
    "Starcoder2ForCausalLM": (starcoder2, ("starcoder2",)),
    "Olmo2ForCausalLM": (olmo2, ("olmo2",)),
    "GraniteForCausalLM": (granite, ("granite",)),
    "MiniCPMForCausalLM": (minicpm, ("minicpm",)),
    "MiniCPM3ForCausalLM": (minicpm3, ("minicpm3",)),
    "DeepseekV2ForCausalLM": (deepseek, ("deepseek_v2",)),
    "DeepseekV3ForCausalLM": (deepseek, ("deepseek_v3", "kimi_k2")),
    "GptOssForCausalLM": (gpt_oss, ("gpt_oss",)),
    "Llama4ForCausalLM": (llama4, ("llama4_text",)),
    "Llama4ForConditionalGeneration": (llama4, ("llama4",)),
    "JambaForCausalLM": (jamba, ("jamba",)),
}
# Configs whose text model is nested under this key, with the architecture that reads it.
NESTED = {"Mistral3ForConditionalGeneration", "Gemma3ForConditionalGeneration", "Llama4ForConditionalGeneration"}

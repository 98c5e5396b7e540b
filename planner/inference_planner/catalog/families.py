"""Model families: what their architecture fixes, and how each config.json spells its sizes.

One function a family turns config.json into the fields that differ from a Llama. Names of
architectures are those of `architectures` in config.json and of vLLM's registry
(vllm/model_executor/models/registry.py, 0.25.1).
"""

# f the fields of a config.json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from inference_planner.catalog.config import Mamba, Mla, Moe, Traits
from inference_planner.catalog.fields import Fields


def _moe(f: Fields, width: str, layers: Iterable[int] | None = None, **more: Any) -> Moe:
    """Return the experts as most configs spell them.

    `width` names the field of one expert's size. Without `layers` all layers have experts.
    """
    count = f.first_int("num_experts", "num_local_experts")
    if layers is None:
        layers = range(f.layers)
    return Moe(count, f.int("num_experts_per_tok"), f.int(width), frozenset(layers), **more)


def _mla(f: Fields, v_head_dim: int | None = None) -> Mla:
    return Mla(
        f.int("kv_lora_rank"),
        f.optional_int("q_lora_rank"),
        f.int("qk_nope_head_dim"),
        f.int("qk_rope_head_dim"),
        f.int("v_head_dim", v_head_dim),
    )


def _latent(f: Fields, mla: Mla) -> dict[str, Any]:
    """Return the sizes that follow from a latent.

    K of every head is a part without and a part with positions.
    """
    return {
        "kv_heads": f.int("num_attention_heads"),
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        "rotary_dim": mla.qk_rope_head_dim,
    }


def _plain(bias: bool, **more: Any) -> Traits:
    """Return the traits of a block as before Llama.

    It has two matrices in the MLP, LayerNorm with its bias, and a bias on all products or on none.
    """
    traits: dict[str, Any] = {
        "gated_mlp": False,
        "norm_bias": True,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
    }
    traits.update(more)
    return Traits(**traits)


def llama(f: Fields) -> dict[str, Any]:
    bias = f.flag("attention_bias") or f.flag("bias")
    return {
        "traits": Traits(
            qkv_bias=f.flag("qkv_bias", bias), o_bias=bias, mlp_bias=f.flag("mlp_bias")
        )
    }


def mistral(f: Fields) -> dict[str, Any]:
    return {**llama(f), "window": f.optional_int("sliding_window")}


def mixtral(f: Fields) -> dict[str, Any]:
    return {"moe": _moe(f, "intermediate_size"), "window": f.optional_int("sliding_window")}


def qwen2(f: Fields) -> dict[str, Any]:
    """Its `sliding_window` counts only with `use_sliding_window`."""
    window = None
    if f.flag("use_sliding_window"):
        window = f.optional_int("sliding_window")
    return {"traits": Traits(qkv_bias=True), "window": window}


def qwen3(f: Fields) -> dict[str, Any]:
    bias = f.flag("attention_bias")
    return {
        **qwen2(f),
        "traits": Traits(qk_norm="head", qkv_bias=bias, o_bias=bias),
        "head_dim": 128,
    }


def _sparse_layers(f: Fields) -> list[int]:
    step, dense = f.int("decoder_sparse_step", 1), set(f.list("mlp_only_layers", int))
    return [i for i in range(f.layers) if i not in dense and (i + 1) % step == 0]


def qwen2_moe(f: Fields) -> dict[str, Any]:
    shared = f.int("shared_expert_intermediate_size", least=0)
    moe = _moe(
        f,
        "moe_intermediate_size",
        _sparse_layers(f),
        shared_intermediate_size=shared,
        shared_gate=True,
    )
    return {**qwen2(f), "moe": moe}


def qwen3_moe(f: Fields) -> dict[str, Any]:
    return {
        **qwen3(f),
        "head_dim": None,
        "moe": _moe(f, "moe_intermediate_size", _sparse_layers(f)),
    }


def gemma(f: Fields) -> dict[str, Any]:
    return {"tie": True, "head_dim": 256}


def gemma2(f: Fields) -> dict[str, Any]:
    window = f.int("sliding_window", 4096)
    return {**gemma(f), "traits": Traits(norms=4), "window": window, "full_attention_every": 2}


def gemma3(f: Fields) -> dict[str, Any]:
    return {
        **gemma2(f),
        "traits": Traits(norms=4, qk_norm="head"),
        "full_attention_every": f.int("sliding_window_pattern", 6),
        "kv_heads": 4,
        "heads": 8,
        "vocab": 262208,
        "positions": 131072,
        "rope_tables": 2,
    }


def phi3(f: Fields) -> dict[str, Any]:
    return {"window": f.optional_int("sliding_window")}


def phi(f: Fields) -> dict[str, Any]:
    return {
        "traits": _plain(True, norms=1, lm_head_bias=True, parallel_block=True),
        "partial_rotary": 0.5,
    }


def falcon(f: Fields) -> dict[str, Any]:
    new = f.flag("new_decoder_architecture")
    heads = f.first_int("num_attention_heads", "n_head")
    if new:
        kv = f.first_int("num_kv_heads", "n_head_kv", default=8)
    elif f.flag("multi_query", True):
        kv = 1
    else:
        kv = heads
    parallel = f.flag("parallel_attn", True)
    norms = 2
    if parallel and new:
        norms = f.int("num_ln_in_parallel_attn", 2)
    elif parallel:
        norms = 1
    return {
        "traits": _plain(
            f.flag("bias"), norms=norms, parallel_block=parallel, rope=not f.flag("alibi")
        ),
        "tie": True,
        "heads": heads,
        "kv_heads": kv,
        "intermediate": f.int("ffn_hidden_size", 4 * f.first_int("hidden_size", "n_embed")),
        "positions": 2048,
    }


def opt(f: Fields) -> dict[str, Any]:
    if f.int("word_embed_proj_dim", f.int("hidden_size")) != f.int("hidden_size"):
        f.refuse(
            "word_embed_proj_dim", "differs from hidden_size, which only OPT-350M has: not planned"
        )
    positions, final = f.int("max_position_embeddings") + 2, f.flag("do_layer_norm_before", True)
    traits = _plain(
        f.flag("enable_bias", True), rope=False, learned_positions=positions, final_norm=final
    )
    return {"traits": traits, "tie": True, "intermediate": f.int("ffn_dim")}


def gpt2(f: Fields) -> dict[str, Any]:
    hidden, positions = f.int("n_embd"), f.first_int("n_positions", "n_ctx")
    return {
        "traits": _plain(True, rope=False, learned_positions=positions),
        "tie": True,
        "positions": positions,
        "hidden": hidden,
        "heads": f.int("n_head"),
        "intermediate": f.optional_int("n_inner") or 4 * hidden,
    }


def gpt_neox(f: Fields) -> dict[str, Any]:
    parallel = f.flag("use_parallel_residual", True)
    traits = _plain(f.flag("attention_bias", True), mlp_bias=True, parallel_block=parallel)
    return {"traits": traits, "partial_rotary": f.number("rotary_pct", 0.25, 1)}


def starcoder2(f: Fields) -> dict[str, Any]:
    return {
        "traits": _plain(f.flag("use_bias", True)),
        "tie": True,
        "window": f.optional_int("sliding_window"),
    }


def olmo2(f: Fields) -> dict[str, Any]:
    return {"traits": Traits(qk_norm="full")}


def granite(f: Fields) -> dict[str, Any]:
    return {**llama(f), "tie": True}


def minicpm(f: Fields) -> dict[str, Any]:
    if f.int("num_experts", 0, least=0):
        f.refuse("num_experts", "makes this a MiniCPM-MoE, which is not planned")
    return {"tie": True}


def minicpm3(f: Fields) -> dict[str, Any]:
    """Return MLA's projections, beside a cache of K and V of every head.

    vLLM 0.32.0's minicpm3.py keeps them so, with V padded to the width of K.
    """
    latent = _mla(f, f.int("hidden_size") // f.int("num_attention_heads"))
    return {**_latent(f, latent), "tie": True, "latent_projections": latent}


def deepseek(f: Fields) -> dict[str, Any]:
    mla, experts = _mla(f), f.int("n_routed_experts", 0, least=0)
    facts = {**_latent(f, mla), "mla": mla, "own_kv_heads": True}
    if not experts:
        return facts
    first, every = f.int("first_k_dense_replace", 0, least=0), f.int("moe_layer_freq", 1)
    expert_width = f.int("moe_intermediate_size")
    moe = Moe(
        experts,
        f.int("num_experts_per_tok"),
        expert_width,
        frozenset(i for i in range(f.layers) if i >= first and i % every == 0),
        shared_intermediate_size=expert_width * f.int("n_shared_experts", 0, least=0),
        router_bias=f.text("topk_method", "") == "noaux_tc",
    )
    return {**facts, "moe": moe}


def gpt_oss(f: Fields) -> dict[str, Any]:
    return {
        "traits": Traits(qkv_bias=True, o_bias=True, mlp_bias=True, sinks=True, rope_float32=True),
        "moe": _moe(f, "intermediate_size", router_bias=True),
        "window": f.int("sliding_window"),
        "full_attention_every": 2,
    }


def llama4(f: Fields) -> dict[str, Any]:
    chunk = f.optional_int("attention_chunk_size")
    no_rope = f.list("no_rope_layers", int) or [int((i + 1) % 4 != 0) for i in range(f.layers)]
    if len(no_rope) != f.layers:
        f.refuse("no_rope_layers", f"names {len(no_rope)} layers, num_hidden_layers {f.layers}")
    step = f.int("interleave_moe_layer_step", 1, least=0)
    layers = f.list("moe_layers", int) or [
        i for i in range(f.layers) if step and (i + 1) % step == 0
    ]
    return {
        "moe": _moe(
            f, "intermediate_size", layers, shared_intermediate_size=f.int("intermediate_size")
        ),
        "intermediate": f.int("intermediate_size_mlp"),
        "chunks": tuple(chunk if rope else None for rope in no_rope),
    }


def jamba(f: Fields) -> dict[str, Any]:
    def every(kind: str) -> list[int]:
        offset, period = f.int(f"{kind}_layer_offset", least=0), f.int(f"{kind}_layer_period")
        return [i for i in range(f.layers) if i % period == offset]

    moe = _moe(f, "intermediate_size", every("expert"))
    hidden = f.int("hidden_size")
    rank = -(-hidden // 16)
    if f.text("mamba_dt_rank", "") != "auto":
        rank = f.int("mamba_dt_rank", rank)
    layers = frozenset(range(f.layers)) - frozenset(every("attn"))
    mamba = Mamba(
        layers,
        f.int("mamba_d_state", 16),
        f.int("mamba_d_conv", 4),
        f.int("mamba_expand", 2) * hidden,
        rank,
    )
    return {
        "traits": Traits(rope=False),
        "moe": moe if moe.num_experts > 1 else None,
        "mamba": mamba,
    }


# architecture -> (reader, the model_type values it comes with)
FAMILIES: dict[str, tuple[Callable[[Fields], dict[str, Any]], tuple[str, ...]]] = {
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
# What vLLM does for one architecture, whatever its config says.
ARCHITECTURE_TRAITS: dict[str, dict[str, bool]] = {
    "DeepseekV2ForCausalLM": {"experts_in_runner_v2": True},
    "Qwen2MoeForCausalLM": {"experts_in_runner_v2": True, "cuts_shared_experts": True},
    "GptOssForCausalLM": {"mxfp4_kernels": True},
}
# Multimodal configs, whose text model is nested under text_config.
NESTED = {
    "Mistral3ForConditionalGeneration",
    "Gemma3ForConditionalGeneration",
    "Llama4ForConditionalGeneration",
}


def has_formulas(architecture: str) -> bool:
    """Return True if the whole model follows from its config.

    Of a multimodal model only the language part does.
    """
    return architecture in FAMILIES and architecture not in NESTED


def with_architecture(traits: Traits, architecture: str) -> Traits:
    """Return the traits that a reader found, with those of the architecture itself."""
    return replace(traits, **ARCHITECTURE_TRAITS.get(architecture, {}))


def positions_are_scaled(architecture: str) -> bool:
    """Return True if max_position_embeddings already includes rope scaling.

    Source: vLLM 0.25.1, config/model.py.
    """
    return architecture.startswith("Gemma3")


def reads_images(architecture: str) -> bool:
    """Return True if vLLM's name of an architecture says that it reads images beside text."""
    return architecture.endswith(("ForConditionalGeneration", "VLForCausalLM"))

"""Model families: what their architecture fixes, and how each config.json spells its sizes.

One function a family turns config.json into the fields that differ from a Llama. Names of
architectures are those of `architectures` in config.json and of vLLM's registry
(vllm/model_executor/models/registry.py, 0.25.1).
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from inference_planner.catalog.config import FamilyFacts, Mamba, Mla, Moe, Traits
from inference_planner.catalog.fields import Fields


def _moe(fields: Fields, width: str, layers: Iterable[int] | None = None, **more: Any) -> Moe:
    """Return the experts as most configs spell them, in `layers` (all without), `width` wide."""
    count = fields.first_int("num_experts", "num_local_experts")
    if layers is None:
        layers = range(fields.layers)
    return Moe(
        count, fields.int("num_experts_per_tok"), fields.int(width), frozenset(layers), **more
    )


def _mla(fields: Fields, v_head_dim: int | None = None) -> Mla:
    return Mla(
        fields.int("kv_lora_rank"),
        fields.optional_int("q_lora_rank"),
        fields.int("qk_nope_head_dim"),
        fields.int("qk_rope_head_dim"),
        fields.int("v_head_dim", v_head_dim),
    )


def _latent(fields: Fields, mla: Mla) -> FamilyFacts:
    """Return the sizes by a latent: K of a head has a part without and one with positions."""
    return FamilyFacts(
        kv_heads=fields.int("num_attention_heads"),
        head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        rotary_dim=mla.qk_rope_head_dim,
    )


def _plain(bias: bool, **more: Any) -> Traits:
    """Return the traits of a block as before Llama: an MLP without gate, biases."""
    traits: dict[str, Any] = {
        "gated_mlp": False,
        "norm_bias": True,
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": bias,
    }
    traits.update(more)
    return Traits(**traits)


def llama(fields: Fields) -> FamilyFacts:
    bias = fields.flag("attention_bias") or fields.flag("bias")
    return FamilyFacts(
        traits=Traits(
            qkv_bias=fields.flag("qkv_bias", bias), o_bias=bias, mlp_bias=fields.flag("mlp_bias")
        )
    )


def mistral(fields: Fields) -> FamilyFacts:
    return replace(llama(fields), window=fields.optional_int("sliding_window"))


def mixtral(fields: Fields) -> FamilyFacts:
    return FamilyFacts(
        moe=_moe(fields, "intermediate_size"), window=fields.optional_int("sliding_window")
    )


def qwen2(fields: Fields) -> FamilyFacts:
    """Its `sliding_window` counts only with `use_sliding_window`."""
    window = None
    if fields.flag("use_sliding_window"):
        window = fields.optional_int("sliding_window")
    return FamilyFacts(traits=Traits(qkv_bias=True), window=window)


def qwen3(fields: Fields) -> FamilyFacts:
    bias = fields.flag("attention_bias")
    return replace(
        qwen2(fields), traits=Traits(qk_norm="head", qkv_bias=bias, o_bias=bias), head_dim=128
    )


def _sparse_layers(fields: Fields) -> list[int]:
    step, dense = fields.int("decoder_sparse_step", 1), set(fields.list("mlp_only_layers", int))
    return [i for i in range(fields.layers) if i not in dense and (i + 1) % step == 0]


def qwen2_moe(fields: Fields) -> FamilyFacts:
    shared = fields.int("shared_expert_intermediate_size", least=0)
    moe = _moe(
        fields,
        "moe_intermediate_size",
        _sparse_layers(fields),
        shared_intermediate_size=shared,
        shared_gate=True,
    )
    return replace(qwen2(fields), moe=moe)


def qwen3_moe(fields: Fields) -> FamilyFacts:
    return replace(
        qwen3(fields),
        head_dim=None,
        moe=_moe(fields, "moe_intermediate_size", _sparse_layers(fields)),
    )


def gemma(fields: Fields) -> FamilyFacts:
    return FamilyFacts(tie=True, head_dim=256)


def gemma2(fields: Fields) -> FamilyFacts:
    window = fields.int("sliding_window", 4096)
    return replace(gemma(fields), traits=Traits(norms=4), window=window, full_attention_every=2)


def gemma3(fields: Fields) -> FamilyFacts:
    return replace(
        gemma2(fields),
        traits=Traits(norms=4, qk_norm="head"),
        full_attention_every=fields.int("sliding_window_pattern", 6),
        kv_heads=4,
        heads=8,
        vocab=262208,
        positions=131072,
        rope_tables=2,
    )


def phi3(fields: Fields) -> FamilyFacts:
    return FamilyFacts(window=fields.optional_int("sliding_window"))


def phi(fields: Fields) -> FamilyFacts:
    return FamilyFacts(
        traits=_plain(True, norms=1, lm_head_bias=True, parallel_block=True), partial_rotary=0.5
    )


def falcon(fields: Fields) -> FamilyFacts:
    new = fields.flag("new_decoder_architecture")
    heads = fields.first_int("num_attention_heads", "n_head")
    if new:
        kv = fields.first_int("num_kv_heads", "n_head_kv", default=8)
    elif fields.flag("multi_query", True):
        kv = 1
    else:
        kv = heads
    parallel = fields.flag("parallel_attn", True)
    norms = 2
    if parallel and new:
        norms = fields.int("num_ln_in_parallel_attn", 2)
    elif parallel:
        norms = 1
    return FamilyFacts(
        traits=_plain(
            fields.flag("bias"), norms=norms, parallel_block=parallel, rope=not fields.flag("alibi")
        ),
        tie=True,
        heads=heads,
        kv_heads=kv,
        intermediate=fields.int("ffn_hidden_size", 4 * fields.first_int("hidden_size", "n_embed")),
        positions=2048,
    )


def opt(fields: Fields) -> FamilyFacts:
    if fields.int("word_embed_proj_dim", fields.int("hidden_size")) != fields.int("hidden_size"):
        fields.refuse(
            "word_embed_proj_dim", "differs from hidden_size, which only OPT-350M has: not planned"
        )
    positions, final = (
        fields.int("max_position_embeddings") + 2,
        fields.flag("do_layer_norm_before", True),
    )
    traits = _plain(
        fields.flag("enable_bias", True), rope=False, learned_positions=positions, final_norm=final
    )
    return FamilyFacts(traits=traits, tie=True, intermediate=fields.int("ffn_dim"))


def gpt2(fields: Fields) -> FamilyFacts:
    hidden, positions = fields.int("n_embd"), fields.first_int("n_positions", "n_ctx")
    return FamilyFacts(
        traits=_plain(True, rope=False, learned_positions=positions),
        tie=True,
        positions=positions,
        hidden=hidden,
        heads=fields.int("n_head"),
        intermediate=fields.optional_int("n_inner") or 4 * hidden,
    )


def gpt_neox(fields: Fields) -> FamilyFacts:
    parallel = fields.flag("use_parallel_residual", True)
    traits = _plain(fields.flag("attention_bias", True), mlp_bias=True, parallel_block=parallel)
    return FamilyFacts(traits=traits, partial_rotary=fields.number("rotary_pct", 0.25, 1))


def starcoder2(fields: Fields) -> FamilyFacts:
    return FamilyFacts(
        traits=_plain(fields.flag("use_bias", True)),
        tie=True,
        window=fields.optional_int("sliding_window"),
    )


def olmo2(fields: Fields) -> FamilyFacts:
    return FamilyFacts(traits=Traits(qk_norm="full"))


def granite(fields: Fields) -> FamilyFacts:
    return replace(llama(fields), tie=True)


def minicpm(fields: Fields) -> FamilyFacts:
    if fields.int("num_experts", 0, least=0):
        fields.refuse("num_experts", "makes this a MiniCPM-MoE, which is not planned")
    return FamilyFacts(tie=True)


def minicpm3(fields: Fields) -> FamilyFacts:
    """Return MLA's projections, beside a cache of K and V of every head.

    vLLM 0.32.0's minicpm3.py keeps them so, with V padded to the width of K.
    """
    latent = _mla(fields, fields.int("hidden_size") // fields.int("num_attention_heads"))
    return replace(_latent(fields, latent), tie=True, latent_projections=latent)


def deepseek(fields: Fields) -> FamilyFacts:
    mla, experts = _mla(fields), fields.int("n_routed_experts", 0, least=0)
    facts = replace(_latent(fields, mla), mla=mla, own_kv_heads=True)
    if not experts:
        return facts
    first, every = fields.int("first_k_dense_replace", 0, least=0), fields.int("moe_layer_freq", 1)
    expert_width = fields.int("moe_intermediate_size")
    moe = Moe(
        experts,
        fields.int("num_experts_per_tok"),
        expert_width,
        frozenset(i for i in range(fields.layers) if i >= first and i % every == 0),
        shared_intermediate_size=expert_width * fields.int("n_shared_experts", 0, least=0),
        router_bias=fields.text("topk_method", "") == "noaux_tc",
    )
    return replace(facts, moe=moe)


def gpt_oss(fields: Fields) -> FamilyFacts:
    return FamilyFacts(
        traits=Traits(qkv_bias=True, o_bias=True, mlp_bias=True, sinks=True, rope_float32=True),
        moe=_moe(fields, "intermediate_size", router_bias=True),
        window=fields.int("sliding_window"),
        full_attention_every=2,
    )


def llama4(fields: Fields) -> FamilyFacts:
    chunk = fields.optional_int("attention_chunk_size")
    no_rope = fields.list("no_rope_layers", int) or [
        int((i + 1) % 4 != 0) for i in range(fields.layers)
    ]
    if len(no_rope) != fields.layers:
        fields.refuse(
            "no_rope_layers", f"names {len(no_rope)} layers, num_hidden_layers {fields.layers}"
        )
    step = fields.int("interleave_moe_layer_step", 1, least=0)
    layers = fields.list("moe_layers", int) or [
        i for i in range(fields.layers) if step and (i + 1) % step == 0
    ]
    return FamilyFacts(
        moe=_moe(
            fields,
            "intermediate_size",
            layers,
            shared_intermediate_size=fields.int("intermediate_size"),
        ),
        intermediate=fields.int("intermediate_size_mlp"),
        chunks=tuple(chunk if rope else None for rope in no_rope),
    )


def jamba(fields: Fields) -> FamilyFacts:
    def every(kind: str) -> list[int]:
        offset, period = (
            fields.int(f"{kind}_layer_offset", least=0),
            fields.int(f"{kind}_layer_period"),
        )
        return [i for i in range(fields.layers) if i % period == offset]

    moe = _moe(fields, "intermediate_size", every("expert"))
    hidden = fields.int("hidden_size")
    rank = -(-hidden // 16)
    if fields.text("mamba_dt_rank", "") != "auto":
        rank = fields.int("mamba_dt_rank", rank)
    layers = frozenset(range(fields.layers)) - frozenset(every("attn"))
    mamba = Mamba(
        layers,
        fields.int("mamba_d_state", 16),
        fields.int("mamba_d_conv", 4),
        fields.int("mamba_expand", 2) * hidden,
        rank,
    )
    return FamilyFacts(
        traits=Traits(rope=False), moe=moe if moe.num_experts > 1 else None, mamba=mamba
    )


# architecture -> (reader, the model_type values it comes with)
FAMILIES: dict[str, tuple[Callable[[Fields], FamilyFacts], tuple[str, ...]]] = {
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
    """Return True if the whole model follows from its config, an encoder included."""
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

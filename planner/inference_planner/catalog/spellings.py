"""The fields of a config.json under our names, whatever its authors call them.

Of a multimodal config they are those of the language model inside it.
"""

import math
from collections.abc import Mapping
from typing import Any

from inference_planner.catalog.fields import LARGEST_FACTOR, Fields
from inference_planner.files import as_list, as_object

# our name -> how other families spell it, the first that is there
SPELLINGS = {
    "hidden_size": ("n_embd", "n_embed", "d_model", "dim"),
    "num_hidden_layers": ("n_layer", "num_layers", "n_layers", "decoder_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads", "decoder_attention_heads"),
    "num_key_value_heads": (
        "num_kv_heads",
        "n_head_kv",
        "num_query_groups",
        "multi_query_group_num",
    ),
    "head_dim": ("attention_head_dim", "kv_channels", "head_size"),
    "intermediate_size": (
        "ffn_dim",
        "n_inner",
        "ffn_hidden_size",
        "d_ff",
        "dim_ffn",
        "decoder_ffn_dim",
    ),
    "vocab_size": ("padded_vocab_size", "n_vocab"),
    "max_position_embeddings": (
        "n_positions",
        "seq_length",
        "max_sequence_length",
        "max_seq_len",
        "n_ctx",
        "max_target_positions",
    ),
    "sliding_window": ("sliding_window_size", "window_size", "attention_window_size"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"),
    "moe_intermediate_size": (
        "expert_intermediate_size",
        "moe_ffn_hidden_size",
        "expert_ffn_hidden_size",
        "ffn_hidden_size_per_expert",
    ),
    "n_shared_experts": ("moe_num_shared_experts", "num_shared_expert", "num_shared_experts"),
    "moe_latent_size": ("routed_expert_hidden_size",),
    "shared_expert_intermediate_size": (
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
    "first_k_dense_replace": ("moe_layer_start_index", "num_dense_layers"),
    "ssm_state_size": ("mamba_d_state", "state_size", "linear_key_head_dim", "d_state"),
    "conv_kernel": ("mamba_d_conv", "linear_conv_kernel_dim", "conv_L_cache", "d_conv"),
    "mamba_num_heads": ("mamba_n_heads", "linear_num_value_heads"),
    "n_groups": ("mamba_n_groups", "mamba_ngroups", "linear_num_key_heads"),
    "mamba_ssm_dtype": ("mamba_ssm_cache_dtype",),
    "mamba_head_dim": ("mamba_d_head", "linear_value_head_dim"),
}
DELTA_NET = {
    "mamba_num_heads": "num_heads",
    "n_groups": "num_heads",
    "mamba_head_dim": "head_dim",
    "ssm_state_size": "head_dim",
    "conv_kernel": "short_conv_kernel_size",
}
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
KEPT_OUTSIDE = ("quantization_config", "torch_dtype", "dtype")  # beside the nested config
NARROW = 64  # width of an MLP in place of none


def fields(config: Fields) -> Fields:
    """Return the fields of the language model under our names, its number of layers filled in."""
    where = config.where
    text = _language_model(config.raw)
    text |= _delta_net_groups(text, where)
    text |= _delta_net_layers(text, where)
    text |= _window_pattern(text)
    text |= _dbrx_sizes(text)
    if isinstance(text.get("block_configs"), list):
        text |= _unlike_layers(Fields(text, where), where)
    text |= _two_head_sizes(text)
    states_alone = text.get("num_attention_heads") is None and text.get("state_size") is not None
    text |= _our_spellings(text)
    entries = _entries(text.get("layers_block_type") or text.get("hybrid_override_pattern"))
    if text["num_hidden_layers"] is None and entries is not None:
        text["num_hidden_layers"] = len(entries)
    text |= _mlp_width(Fields(text, where))
    if states_alone:
        text |= _mamba_model(Fields(text, where))
    language = Fields(text, where)
    language.layers = language.int("num_hidden_layers")
    return language


def _language_model(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the innermost config, with those that belong to it and stand outside."""
    text = dict(raw)
    inner = nested(text)
    while inner:
        outer = {name: text[name] for name in KEPT_OUTSIDE if name in text}
        text = {**inner, **outer}
        inner = nested(text)
    return text


def _delta_net_groups(text: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the delta net of Ling 3.0 as Kimi has it: the last layer of a group attends."""
    if text.get("layer_group_size") is None or text.get("short_conv_kernel_size") is None:
        return {}
    fields = Fields(text, where)
    size, layers = fields.int("layer_group_size"), fields.int("num_hidden_layers")
    delta = {
        "num_heads": fields.int("num_attention_heads"),
        "head_dim": fields.int("head_dim"),
        "short_conv_kernel_size": fields.int("short_conv_kernel_size"),
        "full_attn_layers": list(range(size, layers + 1, size)),
    }
    return {"linear_attn_config": delta}


def _delta_net_layers(text: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of Kimi's delta net, which counts its layers from 1; {} for other models."""
    delta = as_object(text.get("linear_attn_config"))
    if delta is None:
        return {}
    sizes = {ours: delta.get(theirs) for ours, theirs in DELTA_NET.items()}
    full = set(Fields(delta, where, "linear_attn_config.").list("full_attn_layers", int))
    layer_types: list[str] = []
    for layer in range(1, Fields(text, where).int("num_hidden_layers") + 1):
        if layer in full:
            layer_types.append("full_attention")
        else:
            layer_types.append("linear_attention")
    return sizes | {"layer_types": layer_types}


def _window_pattern(text: dict[str, Any]) -> dict[str, Any]:
    """Return the kind of each layer where the config has a 1 for each layer with a window."""
    pattern = as_list(text.get("hybrid_layer_pattern"))
    if pattern is None:
        return {}
    layer_types: list[str] = []
    for has_window in pattern:
        if has_window:
            layer_types.append("sliding_attention")
        else:
            layer_types.append("full_attention")
    return {"layer_types": layer_types}


def _dbrx_sizes(text: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes that DBRX nests in one config for attention and one for its experts."""
    attention = as_object(text.get("attn_config")) or {}
    experts = as_object(text.get("ffn_config")) or {}
    if "moe_num_experts" not in experts:
        return {}
    return {
        "num_key_value_heads": attention.get("kv_n_heads"),
        "num_experts": experts["moe_num_experts"],
        "num_experts_per_tok": experts.get("moe_top_k"),
        "moe_intermediate_size": experts.get("ffn_hidden_size"),
        "intermediate_size": experts.get("ffn_hidden_size"),
    }


def _two_head_sizes(text: dict[str, Any]) -> dict[str, Any]:
    """Return the heads of both kinds of layers; what is not called global is of a window."""
    if not text.get("global_head_dim"):
        return {}
    kv_heads = text.get("num_key_value_heads")
    return {
        "swa_num_key_value_heads": kv_heads,
        "swa_head_dim": text.get("head_dim"),
        "num_key_value_heads": text.get("num_global_key_value_heads") or kv_heads,
        "head_dim": text["global_head_dim"],
    }


def _our_spellings(text: dict[str, Any]) -> dict[str, Any]:
    """Return our name of every field that is spelled otherwise, of lists the mean."""
    spelled: dict[str, Any] = {}
    for ours, others in SPELLINGS.items():
        value = text.get(ours)
        if value is None:
            value = _first_value(text | spelled, others)
        sizes = as_list(value)
        if sizes and all(type(size) is int for size in sizes):
            value = sum(sizes) // len(sizes)
        spelled[ours] = value
    return spelled


def _mlp_width(fields: Fields) -> dict[str, Any]:
    """Return the width of the MLP where the config has another number in its place."""
    if named_architecture(fields) == "MolmoForCausalLM":  # gate and up in one number (molmo.py)
        return {"intermediate_size": fields.int("intermediate_size") // 2}
    if fields.raw.get("use_double_wide_mlp"):  # Gemma 4 E2B, in layers without a cache of their own
        width = fields.int("intermediate_size")
        shared = fields.int("num_kv_shared_layers", 0, least=0)
        return {"intermediate_size": width + width * shared // fields.int("num_hidden_layers")}
    if fields.raw.get("block_auto_adjust_ff_dim"):  # LFM2
        width = 2 * fields.int("intermediate_size") / 3
        step = fields.int("block_multiple_of", 256)
        width *= fields.number("block_ffn_dim_multiplier", 1.0, LARGEST_FACTOR)
        return {"intermediate_size": math.ceil(int(width) / step) * step}
    return {}


def _mamba_model(fields: Fields) -> dict[str, Any]:
    """Return the fields of a Mamba or Mamba 2, which has neither attention nor an MLP."""
    model: dict[str, Any] = {
        "num_attention_heads": 1,
        "layer_types": ["mamba"] * fields.int("num_hidden_layers"),
        "intermediate_size": NARROW,
    }
    if fields.raw.get("num_heads"):  # Mamba 2
        model |= {
            "mamba_num_heads": fields.raw["num_heads"],
            "mamba_head_dim": fields.raw["head_dim"],
        }
    return model


def nested(text: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the config of the language model inside a multimodal config; None if there is none."""
    for name in NESTED:
        inner = as_object(text.get(name))
        if inner is not None:
            return inner
    return None


def _first_value(text: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first field of `names` that has a value, or None."""
    for name in names:
        if text.get(name) is not None:
            return text[name]
    return None


def _entries(value: object) -> str | list[Any] | None:
    """Return the entries of a list of layers, or of a pattern with a letter for each layer."""
    if isinstance(value, str):
        return value
    return as_list(value)


def _unlike_layers(fields: Fields, where: str) -> dict[str, Any]:
    """Return the fields of Nemotron NAS, whose layers differ; widths of MLPs become their mean."""
    kinds: list[str] = []
    widths: list[int] = []
    shared = 0
    for block in fields.raw["block_configs"]:
        parts = Fields({"block": block}, where).object("block")
        attention = parts.object("attention")
        mlp = parts.object("ffn")
        if attention.has("n_heads_in_group"):
            kinds.append("attention")
            shared = attention.int("n_heads_in_group")
        if mlp.has("ffn_mult"):
            width = 2 * mlp.number("ffn_mult", 0, LARGEST_FACTOR) * fields.int("hidden_size") / 3
            kinds.append("mlp")
            widths.append(math.ceil(int(width) / 256) * 256)
    if not shared or not widths:
        return {}
    heads = fields.int("num_attention_heads")
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": max(1, heads // shared),
        "intermediate_size": sum(widths) // len(widths),
    }


def named_architecture(fields: Fields) -> str:
    """Return the architecture that the config names first."""
    names = as_list(fields.raw.get("architectures"))
    if not names:
        return ""
    return str(names[0])

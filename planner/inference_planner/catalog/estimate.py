"""An architecture without formulas: what its config.json says in the usual spellings, to be shown as an estimate.

A decoder is taken for what most are: attention with K and V of its heads (or the kind that its list of layers names),
and a gated MLP or experts.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference_planner.catalog.config import DTYPE_BYTES, Mamba, Mla, Moe, Traits
from inference_planner.catalog.fields import LARGEST, LARGEST_FACTOR, Fields
from inference_planner.catalog.kinds import is_multimodal, keeps_no_cache
from inference_planner.json_values import as_list, as_object
from inference_planner.tower import has_tower

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
        *(
            "n_positions",
            "seq_length",
            "max_sequence_length",
            "max_seq_len",
            "n_ctx",
            "max_target_positions",
        ),
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
# fields with one entry or letter a layer, or a part of it
OF_EACH_LAYER = (
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "block_configs",
    "indexer_types",
    *SPELLINGS,
    *(name for names in SPELLINGS.values() for name in names),
)
MOST_BLOCKS = 2 * LARGEST["num_hidden_layers"]  # mixers and MLPs may be counted apart
DELTA_NET = {
    "mamba_num_heads": "num_heads",
    "n_groups": "num_heads",
    "mamba_head_dim": "head_dim",
    "ssm_state_size": "head_dim",
    "conv_kernel": "short_conv_kernel_size",
}
NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
UNGATED = ("relu", "relu2", "gelu_new", "gelu_fast", "xielu")
MLP_ALONE, EXPERTS_ALONE = ("mlp", "-"), ("moe", "E")  # layers that mix no tokens
NARROWEST, NARROW = 512, 64  # of an MLP: every tensor parallel size divides it; in place of none
COMPOSED = {  # a field -> what each layer of its family is made of
    "mamba_d_ssm": ["mamba", "attention", "mlp"],  # Falcon-H1
    "zero_expert_num": ["attention", "mlp", "attention", "mlp", "moe"],  # LongCat Flash
}
COMPRESSED = ("compress_ratios",)  # fields of configs whose attention keeps a compressed context
ENCODERS = ("vision", "audio", "image", "video", "speech", "encoder")  # in names of their configs
ATTENTION = ("*", "f", "global", "local")


def fields(raw: Mapping[str, Any], where: str) -> Fields:
    """Return the fields of the language model under our names, its number of layers filled in."""
    text = dict(raw)
    while inner := next(
        (text[name] for name in NESTED if as_object(text.get(name)) is not None), None
    ):
        text = {
            **inner,
            **{k: text[k] for k in ("quantization_config", "torch_dtype", "dtype") if k in text},
        }
    for name in OF_EACH_LAYER:
        _refuse_longer(text, name, where)
    delta = as_object(text.get("linear_attn_config"))
    if delta is not None:  # Kimi's delta net; layers are counted from 1
        text |= {ours: delta.get(theirs) for ours, theirs in DELTA_NET.items()}
        full = set(Fields(delta, where, "linear_attn_config.").list("full_attn_layers", int))
        layers = range(1, Fields(text, where).int("num_hidden_layers") + 1)
        text["layer_types"] = [
            "full_attention" if i in full else "linear_attention" for i in layers
        ]
    pattern = as_list(text.get("hybrid_layer_pattern"))
    if pattern is not None:
        text["layer_types"] = [
            "sliding_attention" if kind else "full_attention" for kind in pattern
        ]
    if isinstance(text.get("block_configs"), list):
        text |= _unlike_layers(Fields(text, where), where)
    if text.get("global_head_dim"):  # what has no other name is that of layers with a window
        text |= {
            "swa_num_key_value_heads": text.get("num_key_value_heads"),
            "swa_head_dim": text.get("head_dim"),
        }
        text["num_key_value_heads"] = text.get("num_global_key_value_heads") or text.get(
            "num_key_value_heads"
        )
        text["head_dim"] = text["global_head_dim"]
    # Mamba, Mamba 2
    states_alone = text.get("num_attention_heads") is None and text.get("state_size") is not None
    for ours, others in SPELLINGS.items():
        if text.get(ours) is None:
            text[ours] = next((text[name] for name in others if text.get(name) is not None), None)
        sizes = as_list(text[ours])
        if sizes and all(type(size) is int for size in sizes):
            # one a layer (Gemma 3n) or a kind of token (Ernie VL)
            text[ours] = sum(sizes) // len(sizes)
    blocks = text.get("layers_block_type") or text.get("hybrid_override_pattern")
    entries = blocks if isinstance(blocks, str) else as_list(blocks)
    if text["num_hidden_layers"] is None and entries is not None:
        text["num_hidden_layers"] = len(entries)
    f = Fields(text, where)
    if _named(f) == "MolmoForCausalLM":  # gate and up in one number (molmo.py)
        text["intermediate_size"] = f.int("intermediate_size") // 2
    if text.get("block_auto_adjust_ff_dim"):  # LFM2
        width, step = 2 * f.int("intermediate_size") / 3, f.int("block_multiple_of", 256)
        width *= f.number("block_ffn_dim_multiplier", 1.0, LARGEST_FACTOR)
        text["intermediate_size"] = math.ceil(int(width) / step) * step
    if states_alone:
        text |= {"num_attention_heads": 1, "layer_types": ["mamba"] * f.int("num_hidden_layers")}
        text["intermediate_size"] = NARROW  # they have no MLP
        if text.get("num_heads"):  # Mamba 2
            text |= {"mamba_num_heads": text["num_heads"], "mamba_head_dim": text["head_dim"]}
    f.layers = f.int("num_hidden_layers")
    return f


def _refuse_longer(text: Mapping[str, Any], name: str, where: str) -> None:
    """Raise BadInput for a list or a pattern with more entries than a model has layers."""
    value = text.get(name)
    entries = value if isinstance(value, str) else as_list(value)
    if entries is not None and len(entries) > MOST_BLOCKS:
        Fields(text, where).refuse(
            name, f"has {len(entries):,} entries, and must have at most {MOST_BLOCKS:,}"
        )


def _unlike_layers(f: Fields, where: str) -> dict[str, Any]:
    """Nemotron NAS: every layer has an MLP of its own width, and attention or none; the width is their mean."""
    kinds: list[str] = []
    widths: list[int] = []
    shared = 0
    for block in f.raw["block_configs"]:
        parts = Fields({"block": block}, where).object("block")
        attends, mlp = parts.object("attention"), parts.object("ffn")
        if attends.has("n_heads_in_group"):
            kinds, shared = [*kinds, "attention"], attends.int("n_heads_in_group")
        if mlp.has("ffn_mult"):
            width = 2 * mlp.number("ffn_mult", 0, LARGEST_FACTOR) * f.int("hidden_size") / 3
            kinds, widths = [*kinds, "mlp"], [*widths, math.ceil(int(width) / 256) * 256]
    if not shared or not widths:
        return {}
    heads, mean = f.int("num_attention_heads"), sum(widths) // len(widths)
    return {
        "layers_block_type": kinds,
        "num_key_value_heads": max(1, heads // shared),
        "intermediate_size": mean,
    }


def unknown_part(raw: Mapping[str, Any], has_checkpoint: bool) -> str:
    """Return the part of the model that an estimate leaves out or gets wrong by more than 5 %, or an empty string.

    Measured over the recorded builds (tests/plan/test_estimate_error.py): without an encoder the weights are up to 18 %
    too small; with compressed attention (DeepSeek V4) weights are up to 90 % and the cache 74 % off.

    Args:
        raw: the whole config.json.
        has_checkpoint: the size of the checkpoint is known, which includes the encoder.
    """
    if any(name in raw for name in COMPRESSED):
        return "its compressed attention"
    if has_checkpoint or has_tower(_named(Fields(raw, ""))):
        return ""
    names_encoder = any(_is_encoder(name, value) for name, value in raw.items())
    if names_encoder or is_multimodal(_named(Fields(raw, ""))):
        return "its encoder of images or sound"
    return ""


def _is_encoder(name: str, value: object) -> bool:
    if name == "encoder_layers":  # of an encoder-decoder, such as Whisper
        return bool(value)
    is_config = as_object(value) is not None
    return is_config and any(word in name for word in ENCODERS)


def decoder(f: Fields) -> dict[str, Any]:
    """Return the facts of a decoder of which nothing but the config is known."""
    blocks = _blocks(f)
    kinds = [kind for kind in blocks if kind not in (*MLP_ALONE, *EXPERTS_ALONE)] or _kinds(f)
    f.layers = len(kinds)
    act = next(
        (
            f.text(n, "")
            for n in ("mlp_hidden_act", "hidden_act", "activation_function")
            if f.has(n)
        ),
        "",
    )
    bias, gate = (
        f.raw.get("attention_bias") is True,
        f.flag("attn_output_gate", f.has("linear_num_key_heads")),
    )
    shared, table = (
        f.int("num_kv_shared_layers", 0, least=0),
        f.int("hidden_size_per_layer_input", 0, least=0),
    )
    if keeps_no_cache(_named(f)):
        return _looking_both_ways(f, _named(f))
    facts = {
        "traits": Traits(gated_mlp=act not in UNGATED, qkv_bias=bias, gated_attention=gate),
        "intermediate": f.int("intermediate_size", 4 * f.int("hidden_size")),
        "moe": _moe(f),
        **_alone(f, blocks),
        "positions": 4096,
        "kv_shared": min(shared, f.layers - 1),
        "per_layer": (f.int("vocab_size_per_layer_input", f.int("vocab_size")), table)
        if table
        else None,
        "mamba": _states(f, frozenset(i for i, kind in enumerate(kinds) if not _attends(kind))),
    }
    if f.has("kv_lora_rank") and f.has("qk_rope_head_dim"):
        part = f.int("qk_nope_head_dim", 128)
        mla = Mla(
            f.int("kv_lora_rank"),
            f.optional_int("q_lora_rank"),
            part,
            f.int("qk_rope_head_dim"),
            f.int("v_head_dim", part),
        )
        mla = _with_indexer(f, mla)
        return {
            **facts,
            "mla": mla,
            "own_kv_heads": True,  # whatever the config says
            "head_dim": part + mla.qk_rope_head_dim,
            "rotary_dim": mla.qk_rope_head_dim,
        }
    if f.has("sliding_window") and "sliding_attention" in kinds:
        facts["window"] = f.int("sliding_window")
    facts["v_head_dim"] = f.optional_int("v_head_dim") or 0
    if f.has("swa_head_dim"):
        kv, width = (
            f.int("swa_num_key_value_heads", f.int("num_key_value_heads", 1)),
            f.int("swa_head_dim"),
        )
        facts["window_heads"] = kv, width, f.int("swa_v_head_dim", width)
    return facts


def _named(f: Fields) -> str:
    """Return the architecture that the config names first."""
    names = as_list(f.raw.get("architectures"))
    return str(names[0]) if names else ""


def _looking_both_ways(f: Fields, architecture: str) -> dict[str, Any]:
    """Return the facts of an encoder such as BERT: no head, and in the older ones learned positions and two matrices an MLP."""
    is_newer = any(name in architecture for name in ("ModernBert", "Nomic", "Gte"))
    if is_newer:
        return {"traits": Traits(), "tie": True, "positions": 8192}
    positions = f.int("max_position_embeddings", 512)
    traits = Traits(
        gated_mlp=False,
        rope=False,
        learned_positions=positions,
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        norm_bias=True,
    )
    return {"traits": traits, "tie": True, "positions": positions}


def _with_indexer(f: Fields, mla: Mla) -> Mla:
    """Add the indexer that chooses the tokens of sparse attention, if the config has one."""
    kinds = f.list("indexer_types", str)
    if not f.has("index_topk"):
        return mla
    return replace(
        mla,
        index_heads=f.int("index_n_heads", 64),
        index_head_dim=f.int("index_head_dim", 128),
        index_share=kinds.count("full") / len(kinds) if kinds else 1.0,
    )


def _attends(kind: str) -> bool:
    """True for a kind of layer that keeps a cache, such as deepseek_sparse_attention; linear attention keeps a state."""
    return kind in ATTENTION or (kind.endswith("attention") and "linear" not in kind)


def _blocks(f: Fields) -> list[str]:
    """The kind of every layer, by a list or a pattern of letters; [] where the config has neither."""
    if both := next((parts for name, parts in COMPOSED.items() if f.has(name)), None):
        return both * f.layers
    if f.has("layer_types") or f.has("layers_block_type"):
        return f.layer_types() or f.list("layers_block_type", str)
    return [letter for letter in f.text("hybrid_override_pattern", "") if letter in "M*-E"]


def _alone(f: Fields, blocks: list[str]) -> dict[str, Any]:
    """MLPs and experts that are layers of their own, given to those that mix tokens: as many, or as wide in the mean."""
    mlps, experts = (sum(kind in alone for kind in blocks) for alone in (MLP_ALONE, EXPERTS_ALONE))
    if not mlps + experts:
        return {}
    moe, n, rest = _moe(f), f.layers, max(1, f.layers - experts)
    width = f.int("intermediate_size", 4 * f.int("hidden_size")) * mlps / rest
    # evenly, for pipeline stages
    layers = frozenset(i for i in range(n) if (i + 1) * experts // n > i * experts // n)
    return {
        "intermediate": max(1, round(width / NARROWEST)) * NARROWEST,
        "moe": replace(moe, layers=layers) if moe and layers else None,
    }


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer where no list says it: every so many are of another one."""
    every, offset = (
        f.optional_int(name) for name in ("full_attention_interval", "attn_layer_offset")
    )
    every, other = (every or f.optional_int("attn_layer_period")), "linear_attention"
    if not every and f.has("sliding_window") and f.raw.get("use_sliding_window", True):
        every, other = f.raw.get("sliding_window_pattern"), "sliding_attention"
        every = f.int("sliding_window_pattern") if isinstance(every, int) else f.layers + 1
    if not every:
        return ["full_attention"] * f.layers
    at = every - 1 if offset is None else offset
    return ["full_attention" if i % every == at else other for i in range(f.layers)]


def _moe(f: Fields) -> Moe | None:
    if not f.has("num_experts") or f.int("num_experts", least=0) < 2:
        return None
    expert_width = f.int(
        "moe_intermediate_size", f.int("intermediate_size", 4 * f.int("hidden_size"))
    )
    if f.has("moe_latent_size"):  # experts read and write so many elements, not hidden_size
        expert_width = max(1, expert_width * f.int("moe_latent_size") // f.int("hidden_size"))
    shared = f.int(
        "shared_expert_intermediate_size",
        expert_width * f.int("n_shared_experts", 0, least=0),
        least=0,
    )
    if f.raw.get("enable_moe_block"):  # Gemma 4: beside a dense MLP
        shared = f.int("intermediate_size")
    first = f.int("first_k_dense_replace", 0, least=0)
    layers = frozenset(range(min(first, f.layers - 1), f.layers))
    return Moe(
        f.int("num_experts"),
        f.int("num_experts_per_tok", 1),
        expert_width,
        layers,
        shared_intermediate_size=shared,
    )


def _states(f: Fields, layers: frozenset[int]) -> Mamba | None:
    """Return the layers with a state instead of a cache; a state's size is heads × head size × state size."""
    if not layers:
        return None
    hidden, heads = f.int("hidden_size"), f.int("mamba_num_heads", 1)
    # LFM2: gates and a short convolution, whose window is all that is kept
    if f.has("conv_L_cache"):
        return Mamba(layers, 0, f.int("conv_L_cache"), hidden, hidden, 1, blocks=2)
    inner = heads * f.int("mamba_head_dim", f.int("mamba_expand", 2) * hidden // heads)
    sizes = f.int("ssm_state_size", 16), f.int("conv_kernel", 4), inner
    if heads == 1:
        return Mamba(layers, *sizes, -(-hidden // 16))
    # Nemotron-H, whose letters name the layers, and Kimi's delta net keep it in 32 bit where nothing is said
    usual = "bfloat16"
    if f.has("hybrid_override_pattern") or f.has("linear_attn_config"):
        usual = "float32"
    is_delta = f.has("linear_num_key_heads") or f.has("linear_attn_config")
    return Mamba(
        layers,
        *sizes,
        heads,
        groups=f.int("n_groups", 1),
        state_bytes_each=DTYPE_BYTES.get(f.text("mamba_ssm_dtype", usual), 2),
        blocks=2 if is_delta else 3,
        delta=is_delta,
    )

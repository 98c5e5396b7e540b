"""Turn config.json into a ModelConfig, checked field by field; or by estimate.py, if unknown."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_planner.catalog import estimate, spellings
from inference_planner.catalog import quantization as quant
from inference_planner.catalog.architectures import pooling_of
from inference_planner.catalog.config import DTYPE_BYTES, FamilyFacts, ModelConfig, Quantization
from inference_planner.catalog.families import (
    FAMILIES,
    NESTED,
    positions_are_scaled,
    with_architecture,
)
from inference_planner.catalog.fields import LARGEST, LARGEST_FACTOR, Fields, json_object
from inference_planner.errors import BadInput, plain
from inference_planner.files import as_list, as_object, json_setting

DRAFT_LAYER_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
LARGEST_FILE_BYTES = 16 << 20  # of a config.json; those of models have some 10 kB
# fields that say where tokens stand, and change no size
POSITIONS = (
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "max_position_embeddings",
    "original_max_position_embeddings",
)


def existing(name: str | Path) -> Path | None:
    """Return the file or folder of that name (`~` is one's home); None if there can be none."""
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError, ValueError):  # too long, the home of nobody, half a character
        pass
    return None


def read_file(path: Path) -> ModelConfig:
    """Read a config.json, or the one in a folder.

    Raises BadInput for a file that is missing, cut or wrong.
    """
    file = path
    if path.is_dir():
        file = path / "config.json"
    gguf: list[Path] = []
    if file.suffix.lower() == ".gguf":
        gguf = [file]
    if path.is_dir() and not file.exists():
        gguf = sorted(path.glob("*.gguf"))
    if gguf:
        quant.check_readable("gguf", f"{gguf[0]}:")
    if not file.exists():
        raise BadInput(
            f"{path} holds no config.json.",
            "Give a folder with a Hugging Face config.json, or the file.",
        )
    raw = json_object(file, LARGEST_FILE_BYTES)
    beside = file.with_name("hf_quant_config.json")  # ModelOpt's, which vLLM reads as well
    if file.name == "config.json" and not raw.get("quantization_config") and beside.exists():
        raw["quantization_config"] = json_object(beside, LARGEST_FILE_BYTES)
    name = file.stem
    if file.name == "config.json":
        name = name_of(file.absolute().parent)
    model = from_dict(raw, name=plain(name or str(file)), where=str(file))
    model = replace(model, location=str(file.parent))
    if file.name == "config.json":
        pooling = pooling_of(model.architecture, model.name, file.parent)
        model = replace(model, pooling=pooling)
    return model


def name_of(folder: Path) -> str:
    """Return a folder's name, or NAME in the Hub's cache (models--ORG--NAME/snapshots/HASH)."""
    model = folder.parent.parent.name
    if folder.parent.name == "snapshots" and model.startswith("models--"):
        return model.split("--")[-1]
    return folder.name


def from_dict(raw: Mapping[str, Any], *, name: str, where: str = "config.json") -> ModelConfig:
    """Turn the fields of a config.json into a ModelConfig.

    Raises BadInput: names the field that is missing or impossible.
    """
    fields = Fields(raw, where)
    architecture = _architecture(fields)
    if architecture not in FAMILIES:
        language = spellings.fields(fields)
        return _build(language, estimate.decoder(language), architecture, name, raw)
    if architecture in NESTED:  # a multimodal config; it keeps some fields outside its text_config
        text = fields.object("text_config").raw or fields.refuse("text_config", "is missing")
        outer = {field: raw[field] for field in spellings.KEPT_OUTSIDE if fields.has(field)}
        fields = Fields({**text, **outer}, where)
    fields.layers = fields.first_int("num_hidden_layers", "n_layer")
    fields.layer_types()
    return _build(fields, FAMILIES[architecture][0](fields), architecture, name, raw)


def overridden(model: ModelConfig, overrides: str | Mapping[str, Any]) -> ModelConfig:
    """Return a model with fields of its config.json replaced, as vLLM's --hf-overrides does.

    Raises BadInput: no object of fields, or one with which the config is wrong.
    """
    example = '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, …}}'
    remedy = f"Give an object of fields, such as '{example}'."
    fields = json_setting("hf_overrides", overrides, remedy)
    raw = _merged(model.raw, fields)
    # the same fields by their older and their newer name: the one that is given counts
    for name, other in (("rope_scaling", "rope_parameters"), ("rope_parameters", "rope_scaling")):
        if name in fields and other not in fields:
            raw.pop(other, None)
    changed = from_dict(raw, name=model.name, where=f"{model.name} with --hf-overrides")
    derived_from = ""
    if not model.location and _are_of_positions(fields):
        derived_from = model.derived_from or model.name  # whose sizes it has
    return replace(
        changed,
        derived_from=derived_from,
        hub_ids=model.hub_ids,
        source=model.source,
        location=model.location,
        published_parameters=model.published_parameters,
        text_of=model.text_of,
        pooling=model.pooling,
        overrides=json.dumps(fields),
    )


def _are_of_positions(fields: Mapping[str, Any]) -> bool:
    """Return True for fields that say where tokens stand, as YaRN's, and change no size."""
    return all(
        name in POSITIONS
        or (name.endswith("_config") and _are_of_positions(as_object(value) or {}))
        for name, value in fields.items()
    )


def _merged(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with changes; nested configs (text_config) are merged."""
    merged = dict(raw)
    for name, value in changes.items():
        inner, old = as_object(value), as_object(raw.get(name))
        if inner is not None and old is not None and name.endswith("_config"):
            merged[name] = _merged(old, inner)
        else:
            merged[name] = value
    return merged


def _of_type(model_type: object) -> str | None:
    """Return the architecture with formulas that has this model_type, or None."""
    for architecture, (_, model_types) in FAMILIES.items():
        if model_type in model_types:
            return architecture
    return None


def _architecture(fields: Fields) -> str:
    """Return the architecture by its own name or by model_type.

    Raises BadInput: the two contradict each other, or both are missing.
    """
    model_type = fields.raw.get("model_type")
    names = fields.raw.get("architectures")
    typed = _of_type(model_type)
    if not names:
        if model_type is None:
            fields.refuse("architectures", "is missing, and so is model_type")
        names = [typed or str(model_type)]
    names = as_list(names)
    if names is None or not isinstance(names[0], str):
        fields.is_not("architectures", fields.raw.get("architectures"), "a list of names")
    # e.g. Llama in architectures, mixtral in model_type
    if typed and names[0] in FAMILIES and model_type not in FAMILIES[names[0]][1]:
        fields.refuse(
            "architectures", f"says {names[0]}, but model_type {model_type} belongs to {typed}"
        )
    return names[0]


def _build(
    fields: Fields, facts: FamilyFacts, architecture: str, name: str, raw: Mapping[str, Any]
) -> ModelConfig:
    hidden = facts.hidden or fields.first_int("hidden_size", "n_embed")
    heads = fields.first_int("num_attention_heads", "n_head", default=facts.heads)
    kv = fields.int("num_key_value_heads", facts.kv_heads or heads)
    if facts.own_kv_heads:
        kv = heads
    if kv > heads or heads % kv:
        fields.refuse(
            "num_key_value_heads", f"is {kv}, which does not divide num_attention_heads {heads}"
        )
    head_dim = _head_dim(fields, facts, hidden, heads)
    traits = with_architecture(facts.traits, architecture)
    position_names = ("max_position_embeddings", "n_positions", "max_sequence_length")
    positions = fields.first_int(*position_names, default=facts.positions)
    rope = _rope(fields)
    share = "partial_rotary_factor"
    place = rope if rope.has(share) else fields
    turned = place.number(share, facts.partial_rotary, 1)
    rotary = facts.rotary_dim or int(head_dim * turned)
    tables: tuple[tuple[int, int], ...] = ()
    if traits.rope:
        tables = _rope_tables(fields, rope, facts, positions, rotary)
    # vLLM multiplies the positions by rope scaling, except where the config already has
    longest = positions
    if not positions_are_scaled(architecture):
        longest = _scaled(fields, rope, positions)
    moe = facts.moe
    if moe and moe.experts_per_token > moe.num_experts:
        fields.refuse(
            "num_experts_per_tok",
            f"is {moe.experts_per_token}, and there are {moe.num_experts} experts",
        )
    return ModelConfig(
        name=name,
        architecture=architecture,
        model_type=str(raw.get("model_type", "")),
        hidden_size=hidden,
        num_hidden_layers=fields.layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=head_dim,
        intermediate_size=facts.intermediate or fields.int("intermediate_size"),
        vocab_size=fields.int("vocab_size", facts.vocab),
        dtype=_dtype(fields),
        max_position_embeddings=longest,
        default_model_len=_default_length(fields, rope),
        unscaled_positions=positions if _is_yarn(rope) else 0,
        tie_word_embeddings=fields.flag("tie_word_embeddings", facts.tie),
        rope_tables=tables,
        layer_windows=_windows(fields, facts),
        layer_chunks=facts.chunks,
        traits=traits,
        raw=raw,
        quantization=_quantization(fields),
        v_head_dim=facts.v_head_dim,
        window_heads=facts.window_heads,
        kv_shared_layers=facts.kv_shared,
        per_layer_input=facts.per_layer,
        moe=moe,
        mla=facts.mla,
        latent_projections=facts.latent_projections,
        mamba=facts.mamba,
        pooling=pooling_of(architecture, name),
        attention_sizes=facts.attention_sizes,
    )


def _quantization(fields: Fields) -> Quantization | None:
    """Return how the weights are quantized; None where the config names no quantization."""
    name = "quantization_config" if fields.has("quantization_config") else "compression_config"
    quantized = fields.object(name)
    return quant.from_config(quantized) if quantized.raw else None


def _head_dim(fields: Fields, facts: FamilyFacts, hidden: int, heads: int) -> int:
    if fields.has("head_dim") and not facts.own_kv_heads:
        return fields.int("head_dim")
    if facts.head_dim:
        return facts.head_dim
    if hidden % heads:
        fields.refuse(
            "num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}"
        )
    return hidden // heads


def _windows(fields: Fields, facts: FamilyFacts) -> tuple[int | None, ...]:
    """Each layer's window: by the config's own list, or as the family has it."""
    window = facts.window
    if window is None:
        return ()
    listed = fields.layer_windows(window)
    if listed:
        return listed
    every = facts.full_attention_every or fields.layers + 1
    full = fields.int("max_window_layers", 0, least=0)  # Qwen: the first layers see everything
    windows: list[int | None] = []
    for layer in range(fields.layers):
        if layer < full or (layer + 1) % every == 0:
            windows.append(None)
        else:
            windows.append(window)
    return tuple(windows)


def _dtype(fields: Fields) -> str:
    value = fields.raw.get("torch_dtype") or fields.raw.get("dtype") or "float16"
    value = str(value).removeprefix("torch.")
    if value not in DTYPE_BYTES:
        fields.is_not("torch_dtype", value, f"one of {', '.join(DTYPE_BYTES)}")
    # vLLM's --dtype auto runs 32-bit checkpoints in 16 bit (vllm/config/model.py, 0.25.1).
    if value in ("float32", "float", "float64"):
        return "bfloat16"
    return value


def _rope(fields: Fields) -> Fields:
    name = "rope_scaling"
    if fields.raw.get("rope_parameters"):
        name = "rope_parameters"
    rope = fields.object(name)
    nested = [name for name, value in rope.raw.items() if isinstance(value, Mapping)]
    if not nested:
        return rope
    # Transformers 5 keeps one a kind of layer.
    if rope.has("full_attention"):
        return rope.object("full_attention")
    return rope.object(nested[0])


def _rope_type(rope: Fields) -> str:
    kind = rope.text("rope_type", "") or rope.text("type", "")
    if kind == "su":
        return "longrope"
    return kind


def _is_yarn(rope: Fields) -> bool:
    return _rope_type(rope) in ("yarn", "deepseek_yarn")


def _original(fields: Fields, rope: Fields) -> int:
    """The positions before scaling; 0 where neither the rope nor the config says it."""
    name = "original_max_position_embeddings"
    return rope.optional_int(name) or fields.optional_int(name) or 0


def _scaled(fields: Fields, rope: Fields, positions: int) -> int:
    """Return the scaled positions: YaRN multiplies the original ones, others the config's."""
    kind = _rope_type(rope)
    factor = rope.number("factor", 0.0, LARGEST_FACTOR)
    original = _original(fields, rope)
    if _is_yarn(rope) and original:
        positions = int(original * (factor or 1))
    elif kind in ("linear", "dynamic", "ntk") and factor:
        positions = int(positions * factor)
    if not 1 <= positions <= LARGEST["max_position_embeddings"]:
        fields.refuse("rope_scaling", f"makes {positions} positions")
    return positions


def _rope_tables(
    fields: Fields, rope: Fields, facts: FamilyFacts, positions: int, rotary: int
) -> tuple[tuple[int, int], ...]:
    """(positions, rotary_dim) of each cos/sin table that vLLM keeps on the GPU (layers share them).

    YaRN builds its table for original · factor positions; LongRoPE keeps a short and a long one
    (vLLM rotary_embedding/*.py, 0.25.1).
    """
    if _rope_type(rope) == "longrope":
        scaled = positions + _original(fields, rope)
    else:
        scaled = _scaled(fields, rope, positions)
    if facts.rope_tables == 2:  # Gemma 3: sliding layers have an unscaled table of their own
        return (positions, rotary), (scaled, rotary)
    return ((scaled, rotary),)


def _default_length(fields: Fields, rope: Fields) -> int:
    """Return the length with which LongRoPE models start; 0 for others.

    It is their original length, which spares short requests (vllm/config/model.py, 0.25.1).
    """
    if _rope_type(rope) != "longrope":
        return 0
    return fields.optional_int("original_max_position_embeddings") or _original(fields, rope)

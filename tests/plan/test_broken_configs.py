"""A config.json that is broken, or means harm, gives a plan or one sentence: no traceback, no endless search."""

from __future__ import annotations

import copy
import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inference_planner.catalog import list_gpus, list_models, load_model
from inference_planner.catalog.read import from_dict

from workshop.engine.exact import plan
from workshop.errors import BadInput

GONE = "(taken out)"
BLOCKS = {
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}}
    },
    "weight_block_size": [128, 128],
    "ignore": ["lm_head", "re:.*gate"],
    "bits": 4,
    "group_size": -1,
}
QUANTIZED = [
    {"quant_method": method, **more}
    for more in ({}, BLOCKS)
    for method in (
        "fp8",
        "awq",
        "gptq",
        "compressed-tensors",
        "modelopt",
        "mxfp4",
        "fbgemm_fp8",
        "magic",
        None,
        5,
    )
]
ROPES = [
    {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
    for kind in ("yarn", "linear", "longrope", ["x"])
    for factor in (2.0, 1e300, "x")
    for original in (4096, "x")
]
PATTERNS = [
    ["re:("],
    ["re:(a+)+$"],
    ["re:(.*.)*y"],
    ["re:" + ".*" * 9 + "y"],
    ["re:" + "(?:" * 3000],
    ["model.layers." + "9" * 5000],
    ["x"] * 5000,
]
VALUES = [
    GONE,
    None,
    -1,
    0,
    1,
    2,
    3,
    7,
    10**12,
    10**40,
    10**4000,
    -(10**4000),
    0.0,
    0.5,
    3.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "8",
    "many",
    "x[/]",
    "\x1b[31m",
    "\ud800",
    True,
    False,
    [],
    [None],
    [1],
    [-1],
    ["a"],
    [[1]],
    {},
    {"": {}},
    {"a": 1},
    {"full_attention": 3},
    {"partial_rotary_factor": []},
    *PATTERNS,
    *QUANTIZED,
    *ROPES,
]
# What some family, some quantization or some rope reads, whether the model's own config has it or not.
NAMES = [
    "quantization_config",
    "compression_config",
    "rope_scaling",
    "rope_parameters",
    "text_config",
    "layer_types",
    "torch_dtype",
    "dtype",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "head_dim",
    "mlp_only_layers",
    "decoder_sparse_step",
    "no_rope_layers",
    "moe_layers",
    "interleave_moe_layer_step",
    "rotary_pct",
    "attention_chunk_size",
    "moe_layer_freq",
    "first_k_dense_replace",
    "n_shared_experts",
    "q_lora_rank",
    "model_type",
    "architectures",
    "num_key_value_heads",
    "num_experts_per_tok",
    "attn_layer_period",
    "expert_layer_period",
    "mamba_dt_rank",
    "topk_method",
    "n_inner",
    "sliding_window_pattern",
    "tie_word_embeddings",
]


def paths(value: object, before: tuple = ()) -> list[tuple]:
    """Where something stands in nested data: every key, and the first items of lists."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value[:3])
        if isinstance(value, list)
        else ()
    )
    return [
        path for key, inner in items for path in ((*before, key), *paths(inner, (*before, key)))
    ]


@st.composite
def changes(draw) -> tuple[str, list[tuple[tuple, object]]]:
    """A model of the catalog, and up to three fields of its config.json with other values."""
    model = draw(st.sampled_from(list_models()))
    places = st.sampled_from(paths(dict(load_model(model).raw))) | st.sampled_from(NAMES).map(
        lambda name: (name,)
    )
    return model, draw(st.lists(st.tuples(places, st.sampled_from(VALUES)), min_size=1, max_size=3))


def changed(model: str, edits: list[tuple[tuple, object]]) -> dict:
    raw = copy.deepcopy(dict(load_model(model).raw))
    for (*way, last), value in edits:
        inner = raw
        for key in way:
            inner = inner[key] if isinstance(inner, dict) and key in inner else {}
        if value == GONE and isinstance(inner, dict):
            inner.pop(last, None)
        elif isinstance(inner, dict):
            inner[last] = copy.deepcopy(value)
    return raw


def field_example(model: str, name: str, value: object):
    return example((model, [((name,), value)]), "h100")


QUANT, GROUP = "quantization_config", "config_groups"


@settings(max_examples=int(os.environ.get("WORKSHOP_EXAMPLES", "100")), deadline=None)
@given(changes(), st.sampled_from(list_gpus()))
@field_example("llama-3.1-8b", QUANT, -1)
@field_example("llama-3.1-8b", QUANT, ["fp8"])
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "modules_to_not_convert": [{}]})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "modules_to_not_convert": [10**12]})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "modules_to_not_convert": ["re:("]})
@field_example(
    "llama-3.1-8b", QUANT, {"quant_method": "fp8", "modules_to_not_convert": ["re:(.*.)*y"]}
)
@field_example(
    "llama-3.1-8b",
    QUANT,
    {"quant_method": "fp8", "modules_to_not_convert": ["model.layers." + "9" * 5000]},
)
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "weight_block_size": ["128", "128"]})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "weight_block_size": [128]})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "fp8", "weight_block_size": [0, 0]})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "awq", "bits": {}})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "modelopt", "quantization": 5})
@field_example("llama-3.1-8b", QUANT, {"quant_method": "compressed-tensors", GROUP: []})
@field_example(
    "llama-3.1-8b", QUANT, {"quant_method": "compressed-tensors", GROUP: {"group_0": []}}
)
@field_example(
    "llama-3.1-8b",
    QUANT,
    {"quant_method": "compressed-tensors", GROUP: {"group_0": {"weights": True}}},
)
@field_example(
    "llama-3.1-8b",
    QUANT,
    {"quant_method": "compressed-tensors", GROUP: {"a": {"weights": {"num_bits": "8"}}}},
)
@field_example(
    "llama-3.1-8b",
    QUANT,
    {
        "quant_method": "compressed-tensors",
        "kv_cache_scheme": 3,
        GROUP: {"a": {"weights": {"num_bits": 8, "strategy": {}}, "input_activations": 3.0}},
    },
)
@field_example("llama-3.1-8b", "partial_rotary_factor", {"rope_type": ["x"]})
@field_example("llama-3.1-8b", "rope_scaling", {"partial_rotary_factor": []})
@field_example("llama-3.1-8b", "rope_scaling", {"rope_type": "linear", "factor": float("inf")})
@field_example(
    "llama-3.1-8b",
    "rope_scaling",
    {"rope_type": "yarn", "factor": 10**4000, "original_max_position_embeddings": 8},
)
@field_example(
    "llama-3.1-8b",
    "rope_scaling",
    {"rope_type": "longrope", "original_max_position_embeddings": "x"},
)
@field_example("llama-3.1-8b", "max_position_embeddings", 10**4000)
@field_example("gpt2", "n_layer", 10**12)
@field_example("gemma-3-1b", "sliding_window_pattern", 0)
@field_example("qwen3-30b-a3b", "decoder_sparse_step", 0)
@field_example("qwen3-30b-a3b", "mlp_only_layers", [[1]])
@field_example("qwen3-30b-a3b", "num_experts_per_tok", 2**31)
@field_example("deepseek-v3", "moe_layer_freq", 0)
@field_example("jamba-v0.1", "attn_layer_period", 0)
@field_example("jamba-v0.1", "mamba_dt_rank", {})
def test_changed_config_gives_a_plan_or_one_short_sentence(given_changes, gpu):
    try:
        config_plan = plan(
            from_dict(changed(*given_changes), name="m", where="m/config.json"), gpu, exact=False
        )
    except BadInput as error:
        assert error.remedy and error.message.isprintable() and len(error.message) < 500
    else:
        json.dumps(config_plan.to_dict(), allow_nan=False)
        assert (
            config_plan.reasons
            and config_plan.kv_bytes_per_token > 0
            and config_plan.weights_gib_per_gpu > 0
        )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe{",
        b"\xef\xbb\xbf{}",
        b"\0" * 64,
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"hidden_size": ' + b"9" * 5000 + b"}",
        b'{"hidden_size": NaN}',
        b"5",
        b'"text"',
        b"null",
        b"{}" * 2,
    ],
)
def test_file_that_is_no_config_is_one_sentence(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadInput) as caught:
        load_model(tmp_path)
    assert caught.value.message.isprintable() and len(caught.value.message) < 500


def test_file_of_many_megabytes_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInput, match="too large"):
        load_model(tmp_path)


def test_pipe_is_no_config_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for place in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(BadInput, match="is a pipe, not a file"):
            load_model(place)


@pytest.mark.parametrize(
    "name", ["x" * 5000, "x/" * 3000, "a\0b", "~nobody-of-that-name/m", "\x1b[31mred", "\ud800"]
)
def test_name_that_no_file_can_have_is_not_in_the_catalog(name):
    with pytest.raises(BadInput, match="not in the catalog") as caught:
        load_model(name)
    assert caught.value.message.isprintable()

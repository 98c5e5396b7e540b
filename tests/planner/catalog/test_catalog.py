"""Models and GPUs of the catalog; config.json read, checked, and refused by field."""

from __future__ import annotations

import json

import pytest
from inference_planner.catalog import list_models, load_gpu, load_model, with_encoder
from inference_planner.catalog.read import from_dict
from inference_planner.model.weights import (
    active_parameters,
    is_quantized,
    layer_weights,
    parameters,
    tensor_bytes,
)

from workshop.engine.planning import plan
from workshop.errors import BadInput


def test_parameters_from_the_config_equal_the_published_count():
    for name in [n for n in list_models() if load_model(n).published_parameters]:
        m = load_model(name)
        assert parameters(m) == m.published_parameters, name


def test_the_catalog_has_the_models_that_the_course_talks_about():
    names = set(list_models())
    assert len(names) >= 40
    assert {
        "llama-2-7b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "llama-3.1-405b-fp8",
        "llama-3.2-1b",
        "llama-3.3-70b",
        "mistral-7b-v0.1",
        "mixtral-8x7b",
        "mixtral-8x22b",
        "falcon-7b",
        "falcon-40b",
        "falcon-180b",
        "opt-13b",
        "gpt2",
        "yi-34b",
        "minicpm-2b",
        "jamba-v0.1",
        "qwen2.5-7b",
        "qwen3-30b-a3b",
        "gemma-2-9b",
        "gemma-3-12b",
        "deepseek-v2-lite",
        "deepseek-v3",
        "deepseek-r1",
        "phi-4",
        "gpt-oss-20b",
    } <= names


# the models' own cards, embeddings included where the card does
def test_active_parameters_of_experts():
    for name, billions in [
        ("mixtral-8x7b", 12.9),
        ("qwen3-30b-a3b", 3.3),
        ("deepseek-v3", 37.6),
        ("gpt-oss-120b", 5.1),
        ("deepseek-v2-lite", 2.7),
    ]:
        assert active_parameters(load_model(name)) / 1e9 == pytest.approx(billions, rel=0.17), name


def compressed(strategy: str = "tensor", **more) -> dict:
    weights = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": weights}},
        **more,
    }


def quantized(name: str, config: dict):
    return from_dict({**load_model(name).raw, "quantization_config": config}, name=name)


TENSORS = [
    # qweight [4096, 512] int32, scales [32, 4096] float16, qzeros [32, 512] int32
    (
        "llama-3.1-8b",
        {"quant_method": "awq", "bits": 4, "group_size": 128},
        "o_proj",
        [4096 * 2048, 262144, 65536],
    ),
    # weight_scale [4096, 1] float32: one of each row; or one of q, one of k and one of v
    ("llama-3.1-8b", compressed("channel"), "o_proj", [4096 * 4096, 4 * 4096]),
    ("llama-3.1-8b", compressed("tensor"), "qkv_proj", [6144 * 4096, 4 * 3]),
    # weight_scale_inv of q_a_proj is [12, 56], of kv_a_proj_with_mqa [5, 56]: 576 rows in blocks of 128
    ("deepseek-v3", None, "fused_qkv_a_proj", [(1536 + 576) * 7168, 4 * (12 + 5) * 56]),
    ("deepseek-v3", None, "q_b_proj", [24576 * 1536, 4 * 192 * 12]),
    # and unpacked, for decoding
    ("deepseek-v3", None, "kv_b_proj", [32768 * 512, 4 * 256 * 4, 2 * 32768 * 512]),
    ("deepseek-v3", None, "o_proj", [7168 * 16384, 4 * 56 * 128]),
]


def test_scales_are_as_large_as_in_the_checkpoints():
    for model, config, name, tensors in TENSORS:
        m = quantized(model, config) if config else load_model(model)
        [weight] = [w for w in layer_weights(m, 1) if w.name == f"self_attn.{name}"]
        assert tensor_bytes(m, weight, 1, 1) == tensors, (model, name)


# as vLLM's compressed_tensors/utils.py and modelopt.py read them
def test_what_a_checkpoint_leaves_in_16_bit_is_left():
    for pattern, left in [
        ("model.layers.1.mlp.down_proj", {"mlp.down_proj"}),
        ("model.layers.1.mlp", {"mlp.gate_up_proj", "mlp.down_proj"}),
        ("model.layers.1.self_attn.q_proj", {"self_attn.qkv_proj"}),
        ("mlp.down_proj", {"mlp.down_proj"}),
        ("*self_attn*", {"self_attn.qkv_proj", "self_attn.o_proj"}),
        (r"re:.*layers\.1\.mlp.*", {"mlp.gate_up_proj", "mlp.down_proj"}),
        ("model.layers.10.mlp", set()),
        ("lm_head", set()),
    ]:
        m = quantized("llama-3.1-8b", compressed(ignore=[pattern]))
        projections = [w for w in layer_weights(m, 1) if w.name.endswith("_proj")]
        assert (
            len(projections) == 4
            and {w.name for w in projections if not is_quantized(m, w, 1)} == left
        ), pattern


def test_hub_ids_of_known_models_work_offline():
    assert load_model("meta-llama/Llama-3.1-70B-Instruct").name == "llama-3.1-70b"


def test_unknown_names_offer_the_nearest():
    for call, near in [
        (lambda: load_model("lama-3.1-8b"), "llama-3.1-8b"),
        (lambda: load_gpu("h2000"), "h200"),
        (lambda: load_model(""), "llama-3.1-8b"),
    ]:
        with pytest.raises(BadInput) as caught:
            call()
            pytest.fail(f"{near} was taken")
        assert near in caught.value.remedy, near


@pytest.fixture
def config() -> dict:
    return dict(load_model("llama-3.1-8b").raw)


def write(tmp_path, config: dict):
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_folder_and_a_file_give_the_same_model(tmp_path, config):
    folder = write(tmp_path, config)
    assert (
        parameters(load_model(folder))
        == parameters(load_model(folder / "config.json"))
        == 8_030_261_248
    )


def test_a_nested_text_config_is_read():
    """Gemma 3 12B's config.json nests the text model, and leaves out what is the family's default."""
    nested = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "hidden_size": 3840,
            "intermediate_size": 15360,
            "model_type": "gemma3_text",
            "num_attention_heads": 16,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }
    m = from_dict(nested, name="gemma-3-12b-it")
    assert parameters(m) == load_model("gemma-3-12b").published_parameters
    assert m.rope_tables == load_model("gemma-3-12b").rope_tables
    assert m.layer_windows.count(None) == 8 and m.max_position_embeddings == 131072


FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
          "intermediate_size", "max_position_embeddings")  # fmt: skip


def test_a_lying_field_is_refused_by_name(tmp_path, config):
    for field in FIELDS:
        with pytest.raises(BadInput, match=field):
            load_model(write(tmp_path, {**config, field: "many"}))
            pytest.fail(f"{field} many was taken")
        without = {name: value for name, value in config.items() if name != field}
        with pytest.raises(BadInput, match=field):
            load_model(write(tmp_path, without))
            pytest.fail(f"a config without {field} was taken")


def test_contradictions_are_refused_by_name(tmp_path, config):
    for change, named in [
        ({"hidden_size": 4097}, "num_attention_heads"),
        ({"torch_dtype": "decimal"}, "torch_dtype"),
        ({"architectures": "Llama"}, "architectures"),
        ({"model_type": "mixtral"}, "model_type"),
        ({"quantization_config": {"quant_method": "magic"}}, "magic"),
        ({"architectures": None, "model_type": None}, "architectures"),
        ({"rope_scaling": "yes"}, "rope_scaling"),
    ]:
        with pytest.raises(BadInput, match=named):
            load_model(write(tmp_path, {**config, **change}))
            pytest.fail(f"{change} was taken")


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"config\.json"):
        load_model(tmp_path)


def test_other_spellings_of_the_same_config_give_the_same_plan(tmp_path, config):
    """Transformers 5 writes dtype and rope_parameters; fields may be there with null."""
    for change in [
        {
            "dtype": "bfloat16",
            "torch_dtype": None,
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0},
            "rope_scaling": None,
        },
        {"head_dim": 128},
        {"head_dim": None, "sliding_window": None, "layer_types": None},
    ]:
        respelled_plan = plan(write(tmp_path, {**config, **change}), "h200", usage="llm")
        # the recorded run "8b" of vLLM 0.32.0: 902,784
        assert respelled_plan.kv_cache_tokens == 902_752, change


def test_longrope_starts_with_its_original_length(tmp_path):
    raw = {
        **load_model("phi-3-mini-4k").raw,
        "max_position_embeddings": 131072,
        "sliding_window": None,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48},
    }
    folder = write(tmp_path, raw)
    assert plan(folder, "h200").deployment.settings.max_model_len == 4096
    assert plan(folder, "h200", max_model_len=131072).fits


def test_a_model_in_a_cache_of_the_hub_has_its_own_name_not_its_hash(tmp_path):
    model = load_model("llama-3.1-8b")
    snapshot = tmp_path / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "0e9e39f249a16976"
    blobs = tmp_path / "models--meta-llama--Llama-3.1-8B" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "abc").write_text(json.dumps(model.raw))
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    assert (
        load_model(str(snapshot)).name
        == load_model(str(snapshot / "config.json")).name
        == "Llama-3.1-8B"
    )
    plain = tmp_path / "snapshots" / "mine"
    plain.mkdir(parents=True)
    (plain / "config.json").write_text(json.dumps(model.raw))
    assert load_model(str(plain)).name == "mine"


def test_a_text_model_can_be_planned_as_it_is_published():
    for model, published in [
        ("gemma-3-4b", 4_300_079_472),
        ("gemma-3-12b", 12_187_325_040),
        ("gemma-3-27b", 27_432_406_640),
    ]:
        whole = with_encoder(load_model(model))
        assert (
            whole.architecture == "Gemma3ForConditionalGeneration" == load_model(model).text_of
        ), model
        assert whole.name not in list_models() and not whole.text_of, model
        sizes = [
            plan(part, "h200", tensor_parallel_size=1, max_model_len=4096).weights_gib_per_gpu
            for part in (load_model(model), whole)
        ]
        encoder = published - load_model(model).published_parameters
        assert (sizes[1] - sizes[0]) * 2**30 == pytest.approx(2 * encoder, rel=0.03), model


def test_a_model_without_an_encoder_stays_as_it_is():
    assert with_encoder(load_model("llama-3.1-8b")) is load_model("llama-3.1-8b")

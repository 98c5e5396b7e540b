"""A config.json, or the index beside it, that does not tell the truth: one sentence that names what is wrong."""

from __future__ import annotations

import json

import pytest
from inference_planner.catalog import load_model

from workshop.engine.exact import plan
from workshop.errors import BadInput

LLAMA = dict(load_model("llama-3.2-1b").raw)  # 16 layers; formulas
NOVA = {**LLAMA, "architectures": ["SuperNovaForCausalLM"], "model_type": "supernova"}  # none
LAYERS = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(16)]
SIZE = {"total_size": 2_471_645_608}  # of its published index


def with_index(folder, config: dict, text: str | dict):
    (folder / "config.json").write_text(json.dumps(config))
    content = text if isinstance(text, str) else json.dumps(text)
    (folder / "model.safetensors.index.json").write_text(content)
    return folder


@pytest.mark.parametrize("config", [LLAMA, NOVA], ids=["formulas", "none"])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "\0",
        '{"metadata": {"total',
        '{"metadata": 5}',
        '{"weight_map": ["a"]}',
        "[" * 100_000,
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        *(
            {"metadata": {"total_size": size}}
            for size in (-1, "8", True, [1], 10**40, float("nan"))
        ),
    ],
    ids=repr,
)
def test_a_cut_or_garbled_index_is_one_sentence(tmp_path, config, text):
    with pytest.raises(BadInput, match=r"index\.json") as caught:
        plan(with_index(tmp_path, config, text), "h100", exact=False)
    assert caught.value.message.isprintable() and len(caught.value.message) < 500


@pytest.mark.parametrize("config", [LLAMA, NOVA], ids=["formulas", "none"])
@pytest.mark.parametrize(
    ("names", "has"),
    [
        (LAYERS[:12], 12),
        ([*LAYERS, "model.layers.31.mlp.up_proj.weight"], 32),
        (["h.3.attn.weight"], 4),
    ],
)
def test_an_index_with_other_layers_than_the_config_is_refused(tmp_path, config, names, has):
    index = {"metadata": SIZE, "weight_map": dict.fromkeys(names, "model.safetensors")}
    with pytest.raises(BadInput, match=f"says 16 layers.*names {has}"):
        plan(with_index(tmp_path, config, index), "h100", exact=False)


@pytest.mark.parametrize(
    "names",
    [
        LAYERS,
        [*LAYERS, "model.layers.16.eh_proj.weight"],  # one that drafts tokens
        [*LAYERS, *(f"visual.blocks.{i}.norm1.weight" for i in range(32))],  # a larger encoder
        [f"language_model.{name}" for name in LAYERS],
        [f"transformer.h.{i}.attn.weight" for i in range(16)],
        ["model.embed_tokens.weight"],
        [],
    ],
)
def test_an_index_of_the_model_is_no_reason_to_refuse(tmp_path, names):
    index = {"metadata": SIZE, "weight_map": dict.fromkeys(names, "model.safetensors")}
    assert plan(with_index(tmp_path, LLAMA, index), "h100", exact=False).fits
    assert plan(
        with_index(tmp_path, NOVA, index), "h100", exact=False
    ).weights_gib_per_gpu == pytest.approx(SIZE["total_size"] / 2**30, rel=0.01)


@pytest.mark.parametrize("size", [1, SIZE["total_size"] // 40, SIZE["total_size"] * 40])
def test_files_of_another_size_than_the_config_makes_are_refused(tmp_path, size):
    with pytest.raises(BadInput, match="its files hold"):
        plan(with_index(tmp_path, NOVA, {"metadata": {"total_size": size}}), "h100", exact=False)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (
            {"num_attention_heads": 24},
            "num_attention_heads is 24, which does not divide hidden_size 2048",
        ),
        ({"num_key_value_heads": 5}, "does not divide num_attention_heads"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"hidden_size": -2048}, "hidden_size is -2048"),
        ({"hidden_size": 2048.5}, "hidden_size is 2048.5"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"intermediate_size": "8192"}, "not a whole number"),
        ({"layer_types": ["full_attention"] * 7}, "names 7 layers, num_hidden_layers 16"),
    ],
)
@pytest.mark.parametrize("config", [LLAMA, NOVA], ids=["formulas", "none"])
def test_a_config_that_lies_names_the_field(tmp_path, config, lie, message):
    # which would free the heads from dividing
    without = {k: v for k, v in config.items() if k != "head_dim"}
    (tmp_path / "config.json").write_text(json.dumps({**without, **lie}))
    with pytest.raises(BadInput, match=message):
        plan(tmp_path, "h100", exact=False)


def test_code_of_a_models_own_is_never_run_and_the_plan_says_so(tmp_path):
    """The module that auto_map names would leave a file behind, were it imported."""
    left = tmp_path / "it was run"
    (tmp_path / "configuration_supernova.py").write_text(
        f"open({str(left)!r}, 'w').close()\nclass SuperNovaConfig: pass\n"
    )
    code = {
        "AutoConfig": "configuration_supernova.SuperNovaConfig",
        "AutoModel": "configuration_supernova.SuperNovaConfig",
    }
    (tmp_path / "config.json").write_text(json.dumps({**NOVA, "auto_map": code}))
    supernova_plan = plan(tmp_path, "h100", exact=False)
    assert any(
        "code of its own (auto_map), which was not run" in reason
        for reason in supernova_plan.reasons
    )
    assert not left.exists()

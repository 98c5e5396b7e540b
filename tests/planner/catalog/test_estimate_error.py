"""How far an estimate is from vLLM's own classes: at most 5 % for every kind that the planner still estimates."""

import json
from collections.abc import Iterator

import exact as benchmark
import pytest
import run_code
from inference_planner import plan
from inference_planner.answer import builds
from inference_planner.catalog import list_models, load_model
from inference_planner.catalog.config import Built, ModelConfig
from inference_planner.catalog.estimate import unknown_part
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.read import from_dict
from inference_planner.errors import BadInput
from inference_planner.model.attention import grouped
from inference_planner.model.weights import weight_bytes
from inference_planner.split.ranks import stage_bytes
from needs import lacking

from workshop.engine.exact import ask

WORST = 0.05
BENCHMARKS = benchmark.REGISTRY.parent
REGISTRY = json.loads(benchmark.REGISTRY.read_text())
# Writes the config.json with which each architecture of the registry was asked.
CONFIGS = """
import json, sys
sys.path.insert(0, FOLDER)
import exact
known = exact.registry_rows()
configs = {}
for architecture, row, config in exact.configs_of_registry([]):
    if config and known[architecture]["sizes"] == row["sizes"]:
        configs[architecture] = config
open(FILE, "w").write(json.dumps(configs))
"""


def recorded() -> Iterator[tuple[ModelConfig, Built]]:
    """Yield every recorded model without formulas, with its build on one rank."""
    for name in list_models():
        model = load_model(name)
        if model.architecture in FAMILIES:
            continue
        record = builds.records().get(builds.digest(model.raw), {})
        for described in record.get("builds", ()):
            build = builds.built(described)
            if build.tp == build.pp == 1:
                yield model, build


RECORDED = list(recorded())


def language_part(model: ModelConfig) -> ModelConfig:
    """Return a multimodal model without its encoder, with which there is no estimate; others as they are."""
    encoders = {"vision_config", "audio_config"} & set(model.raw)
    if not encoders:
        return model
    raw = {field: value for field, value in model.raw.items() if field not in encoders}
    nobodys = {"architectures": ["SuperNovaForCausalLM"], "model_type": "supernova"}
    return from_dict({**raw, **nobodys}, name=model.name)


def errors(model: ModelConfig, build: Built, text_only: bool = False) -> tuple[float, float]:
    """Return how far the estimate is off: (weights, KV cache of a token), as shares of what vLLM's class has."""
    weights = stage_bytes(model, 1, 1, 0) / build.stage_bytes(0, text_only) - 1
    token_bytes = sum(
        len(layers) * kind.token_bytes(model, 1, build.kv_bytes_each)
        for kind, _, layers in grouped(model)
    )
    return abs(weights), abs(token_bytes / build.bytes_per_token - 1)


def test_what_is_estimated_is_near_the_class():
    estimated = 0
    for model, build in RECORDED:
        language = language_part(model)
        if not unknown_part(language.raw, has_checkpoint=False):
            estimated += 1
            assert max(errors(language, build, text_only=True)) <= WORST, model.name
    assert estimated > 90


@pytest.fixture(scope="module")
def configs(vllm_is_imported, tmp_path_factory) -> dict[str, dict]:
    """Return the config.json of every architecture of the registry for which one is at hand."""
    if ask.version() != REGISTRY["vllm"]:
        lacking("vLLM of the registry's version is not installed: make workshop installs it")
    file = tmp_path_factory.mktemp("registry") / "configs.json"
    run_code.run(f"FOLDER, FILE = {str(BENCHMARKS)!r}, {str(file)!r}{CONFIGS}")
    return json.loads(file.read_text())


def test_no_architecture_of_the_registry_is_estimated_far_from_its_class(configs):
    """The weights and the number of layers with a cache of every estimate that is given without vLLM."""
    compared, far = 0, {}
    for architecture, config in configs.items():
        row = REGISTRY["architectures"][architecture]
        if row["class"] != "built" or row["formulas"] or unknown_part(config, False):
            continue
        model = from_dict(config, name=architecture)
        weights = weight_bytes(model) / row["weights_bytes"] - 1
        layers = sum(len(layers) for _, _, layers in grouped(model))
        caches = {layers}
        if model.mla and model.mla.index_heads:
            caches.add(2 * layers)  # the keys of an indexer are a cache of their own
        compared += 1
        if abs(weights) > WORST or sum(row["layers"].values()) not in caches:
            far[architecture] = f"weights {weights:+.1%}, {layers} layers, {row['layers']}"
    assert far == {}
    assert compared > 40


def test_the_registry_names_what_is_not_estimated(configs):
    """Its table in docs/exact.md is made from these rows: python benchmarks/exact.py ours, then page."""
    rows = {name: REGISTRY["architectures"][name] for name in configs}
    estimated = {name for name, row in rows.items() if not row["formulas"]}
    recorded = {name: rows[name]["ours"].get("not_estimated", "") for name in estimated}
    computed = {}
    for name in estimated:
        is_refused = "refused" in rows[name]["ours"]  # its sizes cannot be read at all
        computed[name] = "" if is_refused else unknown_part(configs[name], False)
    assert recorded == computed


def test_the_table_of_architectures_is_that_of_the_registry():
    assert benchmark.filled(benchmark.DOCS.read_text()) == benchmark.DOCS.read_text()


def test_what_is_not_estimated_would_be_far_off():
    for part in ["its encoder of images or sound", "its compressed attention"]:
        of_part = [(m, b) for m, b in RECORDED if unknown_part(m.raw, has_checkpoint=False) == part]
        assert max(max(errors(model, build)) for model, build in of_part) > WORST, part


def test_a_kind_without_an_estimate_gets_one_sentence_and_the_command():
    for name in ["qwen3-vl-2b", "deepseek-v4-flash"]:
        raw = {
            **load_model(name).raw,
            "architectures": ["SuperNovaForCausalLM"],
            "model_type": "nova",
        }
        with pytest.raises(BadInput, match="formulas do not know SuperNovaForCausalLM") as refused:
            plan(from_dict(raw, name=name), "h200")
            pytest.fail(f"{name} was taken")
        assert "workshop plan MODEL --exact" in refused.value.remedy, name


PLAIN = {
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "intermediate_size": 6144,
    "vocab_size": 32000,
}
# The fields that make these models what they are, from their config classes in Transformers 5.19
# (zamba2, hrm_text, minimax_m3_vl) and vLLM 0.32.0 (iquest_loopcoder.py); Ouro's by its config.json.
WITHOUT_AN_ESTIMATE = {
    "Zamba2ForCausalLM": (
        {
            "num_hidden_layers": 54,
            "num_mem_blocks": 1,
            "layers_block_type": ["mamba", "hybrid"] * 27,
        },
        "its shared or looped layers",
    ),
    "HrmTextForCausalLM": (
        {"num_hidden_layers": 128, "num_layers_per_stack": 16, "H_cycles": 2, "L_cycles": 3},
        "its shared or looped layers",
    ),
    "IQuestLoopCoderForCausalLM": ({"num_hidden_layers": 32}, "its shared or looped layers"),
    "OuroForCausalLM": (
        {"num_hidden_layers": 24, "total_ut_steps": 4},
        "its shared or looped layers",
    ),
    "MiniMaxM3SparseForCausalLM": (
        {"num_hidden_layers": 60, "sparse_attention_config": {"sparse_index_dim": 128}},
        "its sparse attention",
    ),
}


def test_layers_that_are_used_twice_or_keep_other_keys_are_not_estimated(tmp_path):
    """The size of the checkpoint would give the weights, and the cache would still be another."""
    size = {"metadata": {"total_size": 5 * 2**30}, "weight_map": {}}
    for architecture, (fields, part) in WITHOUT_AN_ESTIMATE.items():
        config = {"architectures": [architecture], "torch_dtype": "bfloat16", **PLAIN, **fields}
        folder = tmp_path / architecture
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        message = f"{architecture}, and cannot estimate {part}"
        for index in (None, size):
            if index:
                (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            with pytest.raises(BadInput, match=message) as refused:
                plan(folder, "h200")
                pytest.fail(f"{architecture} was estimated")
            assert "workshop plan MODEL --exact" in refused.value.remedy, architecture


def test_a_language_model_inside_another_config_is_looked_at():
    text = {**PLAIN, "num_hidden_layers": 60, "sparse_attention_config": {"sparse_index_dim": 128}}
    raw = {"architectures": ["NewForConditionalGeneration"], "text_config": text}
    assert unknown_part(raw, has_checkpoint=True) == "its sparse attention"


def test_what_vllm_takes_for_granted_needs_no_field():
    """vLLM 0.32.0, transformers_utils/configs/minimax_m3.py: the default of sparse_attention_config."""
    raw = {"architectures": ["MiniMaxM3SparseForCausalLM"], **PLAIN, "num_hidden_layers": 60}
    assert unknown_part(raw, has_checkpoint=True) == "its sparse attention"


def test_a_field_without_a_value_refuses_nothing():
    raw = {"architectures": ["NewForCausalLM"], **PLAIN, "loop_num": None, "layer_sharing": False}
    assert unknown_part(raw, has_checkpoint=False) == ""

"""A model folder that is broken, odd or lies gives a plan or one sentence, and nobody waits."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from inference_planner import catalog
from inference_planner.catalog import list_gpus, list_models, load_model
from inference_planner.catalog.architectures import keeps_no_cache
from inference_planner.catalog.fields import LARGEST
from inference_planner.catalog.read import from_dict

from workshop.engine.planning import plan
from workshop.errors import BadInput

LIMIT_S = 30  # a hang is for ever, and a loaded machine is slow
EXAMPLES = int(os.environ.get("WORKSHOP_EXAMPLES", "100"))
INDEX = "model.safetensors.index.json"
LLAMA = dict(load_model("llama-3.2-1b").raw)  # 16 layers; formulas
NOVA = {**LLAMA, "architectures": ["SuperNovaForCausalLM"], "model_type": "supernova"}  # none
PUBLISHED_BYTES = 2_471_645_608  # of its index


@pytest.fixture(autouse=True)
def nobody_waits():
    def stop(*_: object) -> None:
        raise TimeoutError(f"still not done after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def folder_with(folder: Path, config: object, **files: object) -> Path:
    """Write config.json, and files (`__` stands for a dot) of bytes or of what becomes JSON."""
    (folder / "config.json").write_text(json.dumps(config))
    for name, data in files.items():
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


def index(size: object) -> dict[str, object]:
    return {INDEX.replace(".", "__"): {"metadata": {"total_size": size}}}


def refused(model: object, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence) as caught:
        plan(model, "h100", exact=False)
        pytest.fail(f"it is planned, and not refused: {sentence}")
    message = caught.value.message
    assert caught.value.remedy and message.isprintable() and len(message) < 600


# config.json: any value at any place


PATTERNS = [["re:("], ["re:(?:" * 3000], ["x"] * 5000]
# Every name that the planner asks a config.json for, whether the model's own config has it or not.
READ = re.compile(
    r'\.(?:first_int|optional_int|int|flag|text|list|object|has|number|get)\(\s*"(\w+)"'
)
SOURCES = Path(catalog.__file__).parents[1].rglob("*.py")
NAMES = sorted({name for path in SOURCES for name in READ.findall(path.read_text())})
METHODS = ["fp8", "awq", "gptq", "compressed-tensors", "modelopt", "mxfp4", "fbgemm_fp8", "magic"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-1, 10)
    | st.floats()
    | st.sampled_from([10**12, 10**40, 10**4000, -(10**4000)])
    | st.sampled_from(["", "8", "many", "x[/]", "\x1b[31m", "\ud800"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    ),
    max_leaves=4,
)
GROUP = {"weights": {"num_bits": 4, "group_size": 128, "strategy": "group"}}
QUANTIZED = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(METHODS) | JSON},
    optional={
        "config_groups": st.just({"group_0": GROUP}) | JSON,
        "weight_block_size": st.just([128, 128]) | JSON,
        "ignore": st.sampled_from([["lm_head", "re:.*gate"], *PATTERNS]) | JSON,
        "bits": st.just(4) | JSON,
        "group_size": st.just(-1) | JSON,
    },
)
ROPES = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["yarn", "linear", "longrope", ["x"]])},
    optional={
        "factor": st.sampled_from([2.0, 1e300, "x"]),
        "original_max_position_embeddings": st.sampled_from([4096, "x"]),
    },
)
GONE = object()  # the field is taken out
VALUES = st.just(GONE) | JSON | st.sampled_from(PATTERNS) | QUANTIZED | ROPES


def paths(value: object, before: tuple = ()) -> list[tuple]:
    """Return where something stands in nested data: every key, and the first items of lists."""
    items: list[tuple] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value[:3]))
    inside: list[tuple] = []
    for key, inner in items:
        inside += [(*before, key), *paths(inner, (*before, key))]
    return inside


@st.composite
def changes(draw) -> tuple[str, list[tuple[tuple, object]]]:
    """A model of the catalog, and up to three fields of its config.json with other values."""
    model = draw(st.sampled_from(list_models()))
    own = st.sampled_from(paths(dict(load_model(model).raw)))
    places = own | st.sampled_from(NAMES).map(lambda name: (name,))
    return model, draw(st.lists(st.tuples(places, VALUES), min_size=1, max_size=3))


def changed(model: str, edits: list[tuple[tuple, object]]) -> dict:
    raw = copy.deepcopy(dict(load_model(model).raw))
    for (*way, last), value in edits:
        inner = raw
        for key in way:
            inner = inner[key] if isinstance(inner, dict) and key in inner else {}
        if value is GONE and isinstance(inner, dict):
            inner.pop(last, None)
        elif isinstance(inner, dict):
            inner[last] = copy.deepcopy(value)
    return raw


def groups(**fields: object) -> dict[str, object]:
    return {"quant_method": "compressed-tensors", "config_groups": {"a": fields}}


def left_out(*modules: object) -> dict[str, object]:
    return {"quant_method": "fp8", "modules_to_not_convert": list(modules)}


# Each was a traceback, or an endless search, once.
ONCE_BROKEN = [
    *(("llama-3.1-8b", "quantization_config", value) for value in (
        -1, ["fp8"], left_out({}), left_out(10**12), left_out("re:("),
        {"quant_method": "fp8", "weight_block_size": ["128", "128"]},
        {"quant_method": "fp8", "weight_block_size": [0, 0]},
        {"quant_method": "awq", "bits": {}}, {"quant_method": "modelopt", "quantization": 5},
        {"quant_method": "compressed-tensors", "config_groups": []},
        groups(weights=True), groups(weights={"num_bits": "8"}),
        {**groups(weights={"num_bits": 8, "strategy": {}}, input_activations=3.0), "kv_cache_scheme": 3},
    )),
    *(("llama-3.1-8b", "rope_scaling", value) for value in (
        {"partial_rotary_factor": []}, {"rope_type": "linear", "factor": float("inf")},
        {"rope_type": "yarn", "factor": 10**4000, "original_max_position_embeddings": 8},
        {"rope_type": "longrope", "original_max_position_embeddings": "x"},
    )),
    ("llama-3.1-8b", "partial_rotary_factor", {"rope_type": ["x"]}),
    ("llama-3.1-8b", "max_position_embeddings", 10**4000),
    ("gpt2", "n_layer", 10**12), ("gemma-3-1b", "sliding_window_pattern", 0),
    ("qwen3-30b-a3b", "decoder_sparse_step", 0), ("qwen3-30b-a3b", "mlp_only_layers", [[1]]),
    ("qwen3-30b-a3b", "num_experts_per_tok", 2**31), ("deepseek-v3", "moe_layer_freq", 0),
    ("jamba-v0.1", "attn_layer_period", 0), ("jamba-v0.1", "mamba_dt_rank", {}),
]  # fmt: skip


def once_broken(test: Callable) -> Callable:
    for model, name, value in ONCE_BROKEN:
        test = example((model, [((name,), value)]), "h100")(test)
    return test


@settings(max_examples=EXAMPLES, deadline=None)
@given(changes(), st.sampled_from(list_gpus()))
@once_broken
def test_changed_config_gives_a_plan_or_one_short_sentence(given_changes, gpu):
    try:
        config = from_dict(changed(*given_changes), name="m", where="m/config.json")
        config_plan = plan(config, gpu, exact=False)
    except BadInput as error:
        assert error.remedy and error.message.isprintable() and len(error.message) < 500
    else:
        json.dumps(config_plan.to_dict(), allow_nan=False)
        assert config_plan.reasons and config_plan.weights_gib_per_gpu > 0
        has_cache = config_plan.kv_bytes_per_token > 0
        assert has_cache != keeps_no_cache(config.architecture)


SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
         "intermediate_size", "head_dim")  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from([LLAMA, NOVA]),
    st.sampled_from(SIZES),
    st.integers(10**7, 10**400) | st.floats(1e9, allow_nan=False),
)
@example(LLAMA, "num_hidden_layers", 513)  # 512 are taken
@example(NOVA, "num_hidden_layers", 513)
def test_an_absurd_size_is_refused_before_anything_is_built(config, name, count):
    with pytest.raises(BadInput, match=r"must be|whole number"):
        from_dict({**config, name: count}, name="hostile")


def test_the_largest_number_of_layers_that_is_taken_is_planned(tmp_path):
    most = LARGEST["num_hidden_layers"]
    patterns = [f"model.layers.{i}.mlp.down_proj.{j}" for i in range(most) for j in range(8)]
    quantized = {"quant_method": "fp8", "ignored_layers": patterns[:4096]}
    config = {**LLAMA, "num_hidden_layers": most, "quantization_config": quantized}
    assert plan(str(folder_with(tmp_path, config)), "h100", exact=False).gpus >= 1


LIES = [
    ({"num_attention_heads": 24}, "24, which does not divide hidden_size 2048"),
    ({"num_key_value_heads": 5}, "does not divide num_attention_heads"),
    ({"num_key_value_heads": 64}, "num_key_value_heads is 64"),
    ({"vocab_size": -1}, "vocab_size is -1"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": True}, "num_hidden_layers is True, not a whole number"),
    ({"hidden_size": 2048.5}, "hidden_size is 2048.5"),
    ({"intermediate_size": "8192"}, "not a whole number"),
    ({"num_attention_heads_per_layer": ["64"]}, "num_attention_heads_per_layer is"),
    ({"num_attention_heads_per_layer": [10**400]}, "has a number above"),
    ({"layer_types": ["full_attention"] * 7}, "names 7 layers, num_hidden_layers 16"),
]


def test_a_config_that_lies_names_the_field(tmp_path):
    for config in (LLAMA, NOVA):
        # which would free the heads from dividing
        without = {name: value for name, value in config.items() if name != "head_dim"}
        for lie, message in LIES:
            refused(folder_with(tmp_path, {**without, **lie}), message)


def test_code_of_a_models_own_is_never_run_and_the_plan_says_so(tmp_path):
    """The module that auto_map names would leave a file behind, were it imported."""
    left = tmp_path / "it was run"
    module = f"open({str(left)!r}, 'w').close()\nclass SuperNovaConfig: pass\n"
    own = dict.fromkeys(("AutoConfig", "AutoModel"), "configuration_supernova.SuperNovaConfig")
    files = {"configuration_supernova__py": module.encode()}
    reasons = plan(folder_with(tmp_path, {**NOVA, "auto_map": own}, **files), "h100", exact=False)
    assert any("code of its own (auto_map), which was not run" in text for text in reasons.reasons)
    assert not left.exists()


# Files that are no JSON, no file, or not of this model

NO_JSON = [b"", b"\xff\xfe{", b"\0" * 64, b"[" * 100_000, b'{"a":' * 200_000, b"5",
           b'{"a": ' + b"9" * 5000 + b"}", b"null", b"[]", b"{}" * 2, b'{"metadata": {"total',
           b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"]  # fmt: skip


def test_a_file_that_is_no_object_of_json_is_one_sentence(tmp_path):
    for data in NO_JSON:
        folder_with(tmp_path, NOVA)
        (tmp_path / "config.json").write_bytes(data)
        refused(tmp_path, "config.json")
    for name in ("hf_quant_config.json", INDEX):
        folder_with(tmp_path, NOVA)
        (tmp_path / name).write_bytes(b'{"metadata": {"total')
        refused(tmp_path, name)
        (tmp_path / name).unlink()


def test_what_is_no_regular_file_is_never_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder_with(tmp_path, NOVA)
    os.mkfifo("model.safetensors")
    assert plan(tmp_path, "h100", exact=False).fits
    os.mkfifo(INDEX)
    refused(tmp_path, "is a pipe, not a file")
    os.unlink(INDEX)
    os.mkdir(INDEX)
    refused(tmp_path, "is a folder, not a file")
    os.rmdir(INDEX)
    os.symlink("/dev/zero", "hf_quant_config.json")
    refused(tmp_path, "is a device, not a file")
    os.unlink("config.json")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("config.json")
        refused(tmp_path, "is a socket, not a file")


def test_file_of_many_megabytes_is_not_read(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)
    refused(tmp_path, "too large")


def test_name_that_no_file_can_have_is_not_in_the_catalog():
    names = ("x" * 5000, "x/" * 3000, "a\0b", "~nobody-of-that-name/m", "\x1b[31mred", "\ud800")
    for name in names:
        refused(name, "not in the catalog")


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(JSON)
@example(10**400)
@example(True)
def test_an_index_that_says_no_size_leaves_the_sizes_of_the_files(size):
    assume(type(size) not in (int, float) or not 0 < size < 10**30)
    with tempfile.TemporaryDirectory() as name:
        folder = folder_with(Path(name), NOVA, **index(size))
        with (folder / "model.safetensors").open("wb") as file:
            file.truncate(PUBLISHED_BYTES)
        nova = plan(folder, "h100", exact=False)
    assert nova.weights_gib_per_gpu == pytest.approx(PUBLISHED_BYTES / 2**30, rel=0.01)


def test_files_of_another_size_than_the_config_makes_are_refused(tmp_path):
    for size in (1, PUBLISHED_BYTES // 40, PUBLISHED_BYTES * 40):
        refused(folder_with(tmp_path, NOVA, **index(size)), "its files hold")

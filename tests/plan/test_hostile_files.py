"""A model folder with files that are odd, or mean harm: one sentence each, and nobody waits."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from inference_planner.catalog import module_patterns
from inference_planner.catalog.fields import LARGEST
from inference_planner.catalog.module_patterns import is_searchable
from inference_planner.catalog.read import from_dict

from workshop.engine.exact import plan
from workshop.errors import BadInput

LIMIT_S = 30  # a hang is for ever, and a loaded machine is slow
CONFIG = {
    "architectures": ["NobodysForCausalLM"],
    "model_type": "nobodys",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 5632,
    "vocab_size": 50304,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
LLAMA = {**CONFIG, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def nobody_waits():
    def stop(*_: object) -> None:
        raise TimeoutError(f"still not done after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def folder_with(tmp_path: Path, config: object = CONFIG, **files: bytes) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, data in files.items():
        (tmp_path / name.replace("__", ".")).write_bytes(data)
    return tmp_path


def refused(folder: Path, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        plan(str(folder), "h100", exact=False)
    assert "\n" not in caught.value.message and len(caught.value.message) < 600


def shard(header: object) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    "name", ["config.json", "hf_quant_config.json", INDEX, "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device", "a folder"])
def test_what_is_no_regular_file_is_never_opened(kind, name, tmp_path, monkeypatch):
    folder = folder_with(tmp_path)
    (folder / name).unlink(missing_ok=True)
    if kind == "a pipe":
        os.mkfifo(folder / name)
    elif kind == "a folder":
        (folder / name).mkdir()
    elif kind == "a device":
        (folder / name).symlink_to("/dev/zero")
    else:
        monkeypatch.chdir(folder)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    refused(folder, f"is {kind}, not a file")


@pytest.mark.parametrize(
    "offsets",
    [
        ["0", "5"],
        [0, "5"],
        [0, 10**400],
        [0, 10**30],
        [5, 0],
        [-5, 5],
        [0, 1e300],
        [0, float("nan")],
        [0, True],
        [0],
        [],
        {},
        None,
        "05",
        [[0], [1]],
        [0, 5, 9],
    ],
)
def test_offsets_of_a_tensor_that_cannot_be_are_refused(offsets, tmp_path):
    header = {"a": {"dtype": "BF16", "shape": [1], "data_offsets": offsets}}
    refused(folder_with(tmp_path, model__safetensors=shard(header)), "header cannot be read")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 8,
        b"\xff" * 8,
        b"\0" * 100,
        shard(b"{"),
        shard(b"[]"),
        shard(b"5"),
        shard({}),
        shard({"__metadata__": {}}),
        shard({"a": 5}),
        shard(b"[" * 100_000),
        shard(b'{"a":' * 50_000),
        shard(b'{"a": {"data_offsets": [0, ' + b"9" * 5000 + b"]}}"),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n",
    ],
)
def test_headers_that_are_none_are_refused(data, tmp_path):
    refused(folder_with(tmp_path, model__safetensors=data), "header cannot be read")


@pytest.mark.parametrize(
    "size", ["5", "x", 10**400, 10**30, -1, True, [], {}, float("nan"), float("inf")]
)
def test_sizes_of_an_index_that_cannot_be_are_refused(size, tmp_path):
    index = {"metadata": {"total_size": size}, "weight_map": {"model.layers.23.a": "x"}}
    refused(
        folder_with(tmp_path, **{INDEX.replace(".", "__"): json.dumps(index).encode()}),
        "is garbled",
    )


@pytest.mark.parametrize(
    "data", [b"", b"[" * 100_000, b"\xff\xfe", b'{"a":' * 5000, b"9" * 5000, b"null", b"\0"]
)
def test_an_index_that_is_no_json_is_refused(data, tmp_path):
    refused(folder_with(tmp_path, **{INDEX.replace(".", "__"): data}), INDEX)


@pytest.mark.parametrize("place", ["config.json", "hf_quant_config.json"])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b"\xff\xfe",
        b"9" * 5000,
        b"\0" * 50,
        b"\xef\xbb\xbf{}",
    ],
)
def test_a_config_that_is_no_json_is_refused(data, place, tmp_path):
    folder = folder_with(tmp_path)
    (folder / place).write_bytes(data)
    refused(folder, place)


ABSURD = [513, 2000, 10**6, 10**9, 10**18, 10**400, 1e9, 1e300, float("inf")]


@pytest.mark.parametrize("config", [CONFIG, LLAMA], ids=["unknown", "llama"])
@pytest.mark.parametrize("count", ABSURD, ids=lambda count: f"{float(min(count, 1e307)):g}")
@pytest.mark.parametrize(
    "name", ["num_hidden_layers", "vision_config.num_hidden_layers", "num_nextn_predict_layers"]
)
def test_an_absurd_number_of_layers_is_refused_before_anything_is_built(name, count, config):
    place, _, field = name.rpartition(".")
    made = {**config, place: {field: count}} if place else {**config, field: count}
    with pytest.raises(BadInput, match=r"must be|whole number"):
        load_from(made)


def load_from(config: dict):
    return from_dict(config, name="hostile")


@pytest.mark.parametrize("count", [10**7, 10**18, 1e300])
@pytest.mark.parametrize(
    "name",
    [
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "head_dim",
        "num_experts",
    ],
)
def test_other_absurd_sizes_are_refused(name, count):
    for config in (CONFIG, LLAMA) if name != "num_experts" else (CONFIG,):
        with pytest.raises(BadInput, match=r"must be|whole number"):
            load_from({**config, name: count})


@pytest.mark.parametrize(
    "field",
    [
        {"layer_types": ["full_attention"] * 2_000_000},
        {"layers_block_type": ["attention", "mlp"] * 500_000},
        {"hybrid_override_pattern": "M*-E" * 500_000},
        {"hybrid_layer_pattern": [0, 1] * 500_000},
        {
            "block_configs": [{"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}}]
            * 200_000
        },
        {"num_key_value_heads": [8] * 1_000_000},
        {"indexer_types": ["full"] * 1_000_000},
        {
            "linear_attn_config": {
                "full_attn_layers": list(range(1_000_000)),
                "num_heads": 4,
                "head_dim": 64,
            }
        },
    ],
    ids=lambda field: next(iter(field)),
)
def test_lists_of_millions_of_layers_are_refused(field):
    with pytest.raises(BadInput, match="at most"):
        load_from({**CONFIG, **field})


def test_the_largest_number_of_layers_that_is_taken_is_planned(tmp_path):
    most = LARGEST["num_hidden_layers"]
    patterns = [f"model.layers.{i}.mlp.down_proj.{j}" for i in range(most) for j in range(8)]
    quantized = {"quant_method": "fp8", "ignored_layers": patterns[:4096]}
    config = {**LLAMA, "num_hidden_layers": most, "quantization_config": quantized}
    assert plan(str(folder_with(tmp_path, config)), "h100", exact=False).gpus >= 1


@pytest.mark.parametrize(
    "pattern",
    [
        r"(.|.)+#",
        r"(a|aa)+#",
        "(?:.|.)" * 30 + "#",
        ".?" * 40 + "#",
        r"(.?.?)+#",
        r"((.)+)+#",
        r"(?:(?:.*))+#",
        ".*" * 6 + "#",
        ".{0,60}" * 7 + "#",
        r"(?:.?){30}#",
        r"(?=(.*)*#)",
        r"(\w+\.?)+#",
    ],
)
def test_patterns_that_search_for_ever_are_refused(pattern):
    assert not is_searchable(pattern)
    quantized = {"quant_method": "fp8", "ignored_layers": [f"re:{pattern}"]}
    with pytest.raises(BadInput, match="an expression"):
        load_from({**LLAMA, "quantization_config": quantized})


@pytest.mark.parametrize(
    "pattern",
    [
        r".*self_attn.*",
        r"model\.layers\.(0|125)\..*",
        r".*mlp\.(gate|up|gate_up|down)_proj.*",
        rf".*\.({'|'.join(map(str, range(61)))})\..*",
        r"^(?!.*experts).*$",
        r"(?:\d+)\.x",
        r"[*+?(|]",
    ],
)
def test_patterns_of_real_checkpoints_are_taken(pattern):
    assert is_searchable(pattern)


def test_many_slow_patterns_end_in_a_sentence(monkeypatch):
    monkeypatch.setattr(module_patterns, "LONGEST_SEARCH_S", 0.001)
    slow = [f"re:.*{a}.*.*.*.*#{n}" for n, a in enumerate("abcdefgh" * 500)]
    model = load_from(
        {**LLAMA, "quantization_config": {"quant_method": "fp8", "ignored_layers": slow}}
    )
    with pytest.raises(BadInput, match="too long to search"):
        plan(model, "h100", exact=False)

"""`workshop plan` from the outside: exit codes, the keys of --json, errors in one sentence."""

from __future__ import annotations

import json

import pytest
from command_line import run
from inference_planner.catalog import load_model

KEYS = {
    "model",
    "gpu",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "nodes",
    "gpus",
    "fits",
    "weights_gib_per_gpu",
    "overhead_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_bytes_per_token",
    "kv_cache_tokens",
    "max_concurrency",
    "single_stream_tokens_per_s",
    "command",
    "reasons",
    "advice",
}


def test_json_has_the_promised_keys_and_types(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(dict(load_model("llama-3.1-70b").raw)))
    options = "--gpu h200 --tensor-parallel-size 4 --max-model-len 131072 --vllm-version 0.25.1"
    done = run(f"plan {tmp_path} {options} --json")
    data = json.loads(done.out)
    assert done.code == 0 and data.keys() >= KEYS
    for key in (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "nodes",
        "gpus",
        "kv_bytes_per_token",
        "kv_cache_tokens",
    ):
        assert isinstance(data[key], int) and not isinstance(data[key], bool)
    assert data["fits"] is True and isinstance(data["command"], str)
    # the recorded run of this model
    assert data["kv_cache_tokens"] == pytest.approx(1_229_264, rel=0.01)


def test_a_model_that_does_not_fit_exits_with_1():
    done = run("plan llama-3.1-405b --gpu h100 --gpus-per-node 8 --json")
    data = json.loads(done.out)
    assert done.code == 1
    assert (data["fits"], data["kv_cache_tokens"], data["max_concurrency"]) == (False, 0, 0)
    assert data["advice"]


def test_wrong_use_exits_with_2_and_one_sentence():
    for line, message in [
        ("llama-3.1-8 --gpu h100", "llama-3.1-8b"),
        ("llama-3.1-8b --gpu h101", "h100"),
        ("llama-3.1-8b", "--gpu"),
        ("--gpu h100", "MODEL"),
        ("llama-3.1-8b --gpu h100 --tensor-parallel-size 3", "32 attention heads"),
        ("llama-3.1-8b --gpu h100 --max-model-len 1M", "131072"),
        ("llama-3.1-8b --gpu h100 --max-model-len many", "whole number"),
        ("llama-3.1-8b --gpu h100 --vllm-version 9.9", "0.10 to 0.33.0"),
    ]:
        done = run(f"plan {line}")
        assert done.code == 2 and message in done.err and "Traceback" not in done.err, line


def test_the_text_for_people_has_the_verdict_the_bar_and_the_command():
    done = run("plan llama-3.1-70b --gpu h100 --gpus-per-node 4 --explain")
    assert done.code == 0
    for part in (
        "✓ fits",
        "█",
        "Why",
        "vllm serve meta-llama/Llama-3.1-70B",
        "all-reduce",
        "GiB a GPU",
    ):
        assert part in done.out


def test_one_request_is_no_number_of_simultaneous_requests():
    output = run("plan llama-3.1-8b --gpu h100 --max-num-batched-tokens 1").out
    assert "5 s for 1 request of 300 tokens" in " ".join(output.split())

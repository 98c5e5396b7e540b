"""Logs and records of two H200 with vLLM 0.33.0: what was predicted before the runs is near what vLLM said."""

import json
from pathlib import Path

import pytest
from predict import plan_of

from workshop.engine.reconcile.compare import reconcile

ROOT = Path(__file__).parents[2]
LOGS = Path(__file__).parent / "data" / "two_h200"
RUNS = json.loads((ROOT / "tests/data/gpu/records/two_h200_0.33.json").read_text())["runs"]
JOBS = json.loads((ROOT / "benchmarks/gpu/jobs/two_h200_0.33.json").read_text())

TOO_MANY = "h200_qwen3.5-27b_too-many-seqs_0.33"


def job(name: str) -> dict:
    (only,) = [job for job in JOBS if job["name"] == name]
    return only


@pytest.fixture
def config(tmp_path) -> Path:
    """The config.json of Qwen3.5 27B's language model, as the runs had it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(job(TOO_MANY)["config"]))
    return path


def kv_cache_error_percent(result) -> float:
    rows = {row["quantity"]: row for row in result.to_dict()["rows"]}
    return rows["available KV cache per GPU"]["error_percent"]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["name"])
def test_the_plan_of_a_recorded_start_is_within_one_per_cent(run):
    plan = plan_of(job(run["name"]))
    figures_of_vllm = run["measured"]
    assert plan.available_kv_gib_per_gpu == pytest.approx(
        figures_of_vllm["available_kv_gib_per_gpu"], rel=0.01
    )
    figures = plan.to_dict()
    low, high = (figures[f"available_kv_gib_per_gpu_{end}"] for end in ("low", "high"))
    assert low <= figures_of_vllm["available_kv_gib_per_gpu"] <= high
    if "single_tok_s" in figures_of_vllm:
        low, high = (figures[f"single_stream_tokens_per_s_{end}"] for end in ("low", "high"))
        assert low <= figures_of_vllm["single_tok_s"] <= high


def test_vllm_refused_the_start_that_the_plan_refuses():
    (run,) = [run for run in RUNS if run["name"] == TOO_MANY]
    assert "max_num_seqs (1024) exceeds available Mamba cache blocks (359)" in run["refused"]
    plan = plan_of(job(TOO_MANY))
    (refusal,) = plan.refusals
    assert not plan.fits
    assert "max_num_seqs 1,024 exceeds the 360 blocks" in refusal.what
    with_fewer = {**job(TOO_MANY), "extra": {**job(TOO_MANY)["extra"], "max_num_seqs": 256}}
    assert plan_of(with_fewer).fits


@pytest.mark.parametrize("name", ["llama-3.1-8b_pp2", "llama-3.1-8b_tp2"])
def test_kv_cache_of_a_log_is_predicted(name):
    result = reconcile(LOGS / f"{name}_vllm-0.33.0_h200.log", gpu="h200")
    assert abs(kv_cache_error_percent(result)) <= 0.5


def test_kv_cache_of_a_hybrid_s_log_is_predicted(config):
    result = reconcile(LOGS / "qwen3.5-27b_tp2_vllm-0.33.0_h200.log", config, gpu="h200")
    assert abs(kv_cache_error_percent(result)) <= 0.2


def test_the_log_of_the_refused_start_says_what_to_change(config):
    result = reconcile(LOGS / "qwen3.5-27b_too-many-seqs_vllm-0.33.0_h200.log", config, gpu="h200")
    text = json.dumps(result.to_dict())
    assert "--max-num-seqs" in text
    assert abs(kv_cache_error_percent(result)) <= 0.2

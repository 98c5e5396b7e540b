"""Logs of two H100 (vLLM 0.32.0) and two H200 (0.33.0): what was predicted first is near what vLLM said."""

import json
from pathlib import Path

import pytest
from predict import plan_of

from workshop.engine.reconcile.compare import reconcile

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "workshop" / "data" / "logs"
DATA = Path(__file__).parent / "data"  # these end when the memory was measured
RECORDS = ROOT / "tests/data/gpu/records"
RUNS = [
    run
    for name in ("two_h200_0.33.json", "two_h200_0.33_levers.json")
    for run in json.loads((RECORDS / name).read_text())["runs"]
]
JOBS = {
    job["name"]: job
    for file in ("truth_two_h100.json", "two_h200_0.33.json", "whole_two_h200_0.33.json")
    for job in json.loads((ROOT / "benchmarks/gpu/jobs" / file).read_text())
}
TOO_MANY = "h200_qwen3.5-27b_too-many-seqs_0.33"
# log, GPU, the job whose config.json the run had (None: the catalog's), error in per cent
REFUSED = DATA / "two_h200" / "qwen3.5-27b_too-many-seqs_vllm-0.33.0_h200.log"
COMPARED = [
    (LOGS / "llama-3.1-8b_pp2_vllm-0.32.0_h100.log", None, 0.5),
    (LOGS / "gpt-oss-20b_marlin_vllm-0.32.0_h100.log", None, 0.2),
    (DATA / "two_h100" / "llama-3.1-8b_lora_vllm-0.32.0_h100.log", None, 0.1),
    (DATA / "two_h100" / "llama-3.1-8b_eagle3_vllm-0.32.0_h100.log", None, 0.5),
    (DATA / "two_h100" / "qwen3.5-27b_mtp2_vllm-0.32.0_h100.log", "h100_qwen3.5-27b_mtp2", 2),
    (DATA / "two_h200" / "llama-3.1-8b_pp2_vllm-0.33.0_h200.log", None, 0.5),
    (DATA / "two_h200" / "llama-3.1-8b_tp2_vllm-0.33.0_h200.log", None, 0.5),
    (DATA / "two_h200" / "llama-3.1-70b_tp2_vllm-0.33.0_h200.log", None, 0.1),
    (DATA / "two_h200" / "qwen3.5-27b_tp2_vllm-0.33.0_h200.log", TOO_MANY, 0.2),
    (REFUSED, TOO_MANY, 0.2),
]


def test_the_kv_cache_of_a_log_is_predicted(tmp_path, subtests):
    for path, job, percent in COMPARED:
        with subtests.test(str(path)):
            config = None
            if job:
                config = tmp_path / "config.json"
                config.write_text(json.dumps(JOBS[job]["config"]))
            result = reconcile(path, config, gpu=path.stem.split("_")[-1])
            assert abs(result.row("available KV cache per GPU").error_percent) <= percent
            if path == REFUSED:
                assert result.advice[0].flag == "--max-num-seqs" and result.advice[0].value <= 359


def test_the_plan_of_a_recorded_start_is_within_one_per_cent(subtests):
    for run in RUNS:
        with subtests.test(run["name"]):
            figures = plan_of(JOBS[run["name"]]).to_dict()
            measured = {"available_kv_gib_per_gpu": run["measured"]["available_kv_gib_per_gpu"]}
            assert figures["available_kv_gib_per_gpu"] == pytest.approx(
                measured["available_kv_gib_per_gpu"], rel=0.01
            )
            if "single_tok_s" in run["measured"]:
                measured["single_stream_tokens_per_s"] = run["measured"]["single_tok_s"]
            for name, figure in measured.items():
                assert figures[f"{name}_low"] <= figure <= figures[f"{name}_high"], name


def test_vllm_refused_the_start_that_the_plan_refuses():
    (run,) = [run for run in RUNS if run["name"] == TOO_MANY]
    assert "max_num_seqs (1024) exceeds available Mamba cache blocks (359)" in run["refused"]
    job = JOBS[TOO_MANY]
    plan = plan_of(job)
    (refusal,) = plan.refusals
    assert not plan.fits
    assert "max_num_seqs 1,024 exceeds the 360 blocks" in refusal.what
    assert plan_of({**job, "extra": {**job["extra"], "max_num_seqs": 256}}).fits

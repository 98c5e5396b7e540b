"""vLLM's own classes, built here and now: one model a kind of attention says what the record says."""

from __future__ import annotations

import json
from contextlib import nullcontext

import exact as benchmark
import pytest
from inference_planner.catalog import load_model
from needs import lacking

from workshop.engine.exact import ask
from workshop.engine.planning import plan

RECORDS = {entry["name"]: entry for entry in benchmark.recorded()}
KINDS = {
    "heads": "llama-3.2-1b",
    "sliding windows": "command-r7b",
    "a latent": "deepseek-v2-lite",
    "Mamba": "nemotron-nano-9b-v2",
    "gated delta nets": "qwen3-next-80b-a3b-fp8",
    "sinks, and experts of 4 bits": "gpt-oss-20b",
    "a sparse latent": "deepseek-v3.2",
    "a vision encoder beside it": "qwen3-vl-2b",
    "experts of NVFP4 in a hybrid": "nemotron-3-nano-30b-a3b-nvfp4",
}
IN_STAGES = ("heads", "a latent", "Mamba")  # built as two pipeline stages as well


@pytest.fixture(scope="module")
def worker():
    """One worker for all models: its imports take longer than what it does."""
    if not ask.version():
        lacking("vLLM is not installed: make workshop installs it")
    if ask.version() != json.loads(benchmark.CATALOG.read_text())["vllm"]:
        lacking("another vLLM than the record's: python benchmarks/exact.py record")
    with ask.ExactWorker() as worker:
        yield worker


def test_a_class_says_what_the_record_says(worker, monkeypatch):
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    for kind, name in KINDS.items():
        config = dict(load_model(name).raw)
        builds = RECORDS[name]["builds"]
        stages = (1, 2) if kind in IN_STAGES else (1,)
        for split in [s for s in builds if s["tp"] == 1 and s["pp"] in stages]:
            length = split["kv_cache"]["max_model_len"]
            job = {"config": config, "tp": split["tp"], "pp": split["pp"], "max_model_len": length}
            answer = worker.build({**job, "max_num_batched_tokens": benchmark.BATCH})
            assert "error" not in answer, (kind, answer["error"])
            for part in ("stages", "kv_cache"):
                assert answer[part] == split[part], (kind, split["pp"])


def test_experts_are_dealt_out_over_all_ranks(worker):
    """48 layers of 128 experts of 3 × 768 × 2048 in 16 bit: half of them on each of 2 data-parallel ranks."""
    config = dict(load_model("qwen3-30b-a3b").raw)
    alone, dealt = (
        worker.build({"config": config, "tp": 1, "pp": 1, "dp": dp, "ep": dp > 1}) for dp in (1, 2)
    )
    saved = alone["stages"][0]["tensor_bytes"] - dealt["stages"][0]["tensor_bytes"]
    assert saved == pytest.approx(48 * 64 * 3 * 768 * 2048 * 2, rel=1e-5)


def test_a_plan_of_shared_experts_asks_the_class(tmp_path, monkeypatch, worker):
    """Qwen1.5-MoE with TP 2, DP 4 and expert parallelism: the bytes of tests/planner/split/test_wide.py's BUILT."""
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path))
    monkeypatch.delenv("WORKSHOP_VLLM_PYTHON", raising=False)
    monkeypatch.setattr(ask, "ExactWorker", lambda: nullcontext(worker))
    sizes = {"tensor_parallel_size": 2, "data_parallel_size": 4, "enable_expert_parallel": True}
    p = plan("qwen1.5-moe-a2.7b", "h100", exact=True, **sizes)
    assert (p.sizes_from, p.exact) == ("exact", True)
    assert p.weights_gib_per_gpu * 2**30 == 5_213_634_560


def test_what_this_vllm_does_not_know_and_what_asks_for_its_own_code_are_answered(worker):
    llama = dict(load_model("llama-3.2-1b").raw)
    nova = {**llama, "architectures": ["SuperNovaForCausalLM"], "model_type": "supernova"}
    assert "not supported" in worker.build({"config": nova, "tp": 1, "pp": 1})["error"]
    code = {**nova, "auto_map": {"AutoConfig": "configuration_supernova.SuperNovaConfig"}}
    assert "error" in worker.build({"config": code, "tp": 1, "pp": 1})
    assert "error" in worker.build(
        {"config": {**llama, "num_attention_heads": 7}, "tp": 1, "pp": 1}
    )


def test_a_class_without_pipeline_stages_is_refused_as_the_server_refuses_it(worker):
    config = dict(load_model("gemma-3n-e4b").raw)
    assert (
        "Pipeline parallelism is not supported"
        in worker.build({"config": config, "tp": 1, "pp": 2})["error"]
    )

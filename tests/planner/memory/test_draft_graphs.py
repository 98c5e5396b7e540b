"""The memory of a draft beside its weights, held against three runs on H100 (tests/data/gpu/records/two_h100_0.32*.json)."""

import json
from pathlib import Path

import pytest
from inference_planner import plan
from inference_planner.catalog import load_model
from inference_planner.catalog.read import from_dict

GIB = 1 << 30
ROOT = Path(__file__).parents[3]
JOBS = {
    job["name"]: job
    for job in json.loads((ROOT / "benchmarks/gpu/jobs/truth_two_h100.json").read_text())
}
RUNS = {
    run["name"]: run["measured"]
    for run in json.loads((ROOT / "tests/data/gpu/records/two_h100_0.32_second.json").read_text())[
        "runs"
    ]
}


def planned(name: str, folder: Path):
    """Return the plan of a measured job; an EAGLE head's config.json is written into the folder."""
    job = JOBS[name]
    model = from_dict(job["config"], name=name) if "config" in job else load_model(job["model"])
    speculation = dict(job["extra"]["speculative_config"])
    if "model" in speculation:
        (folder / "config.json").write_text(json.dumps(speculation["model"]))
        speculation["model"] = str(folder)
    return plan(
        model,
        "h100",
        usage="llm",
        vllm_version="0.32.0",
        tensor_parallel_size=1,
        max_model_len=job["max_model_len"],
        max_num_seqs=job["extra"].get("max_num_seqs"),
        speculative_config=speculation,
        enable_prefix_caching=False,
    )


@pytest.mark.parametrize("name", ["h100_llama-3.1-8b_eagle3", "h100_qwen3.5-27b_mtp2"])
def test_graphs_of_a_draft_are_those_that_vllm_estimated(name, tmp_path):
    graphs = {overhead.name: overhead.bytes for overhead in planned(name, tmp_path).overheads}
    (rank,) = RUNS[name]["ranks"]
    assert graphs["CUDA graphs"] == pytest.approx(rank["cudagraph_estimate"], abs=60 << 20)


def test_kv_cache_beside_an_eagle_head_is_within_a_per_cent(tmp_path):
    """Dummy weights share the model's lm_head; a head's checkpoint has its own, 32,000 rows of 4,096."""
    p = planned("h100_llama-3.1-8b_eagle3", tmp_path)
    own_lm_head = 32_000 * 4_096 * 2
    with_lm_head = RUNS["h100_llama-3.1-8b_eagle3"]["available_kv_gib_per_gpu"] * GIB - own_lm_head
    assert p.to_dict()["available_kv_gib_per_gpu"] * GIB == pytest.approx(with_lm_head, rel=0.01)
    assert p.to_dict()["available_kv_gib_per_gpu_low"] * GIB < with_lm_head

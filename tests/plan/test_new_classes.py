"""Classes whose graphs and speed no run had shown: predicted, then measured on one H200 (vLLM 0.33.0)."""

import json
from pathlib import Path

from inference_planner.answer.parallelism import Plan, plan
from inference_planner.catalog import load_model
from inference_planner.catalog.read import from_dict

RECORD = Path(__file__).parents[2] / "tests/data/gpu/records/kinds_h200_0.33.json"
RUNS = json.loads(RECORD.read_text(encoding="utf-8"))["runs"]
FIGURES = ("available_kv_gib_per_gpu", "kv_cache_tokens", "single_stream_tokens_per_s")


def plan_of(run: dict) -> Plan:
    model = from_dict({**load_model(run["model"]).raw, **run["config"]}, name=run["model"])
    return plan(
        model,
        "h200",
        usage="llm",
        tensor_parallel_size=1,
        max_model_len=run["max_model_len"],
        vllm_version=run["vllm_version"],
        **run["extra"],
    )


def test_each_figure_lies_in_its_interval_now(subtests):
    for run in RUNS:
        result = plan_of(run)
        for figure in FIGURES:
            with subtests.test(run=run["name"], figure=figure):
                assert run["measured"][figure] in result.intervals[figure]


def test_graphs_take_what_vllm_set_aside():
    """Laguna, Mellum 2 and Muse Glimmer were 230 to 1,070 MiB off before they ran."""
    for run in RUNS:
        graphs = next(item.bytes for item in plan_of(run).overheads if item.name == "CUDA graphs")
        assert abs(graphs - run["measured"]["cudagraph_estimate_bytes"]) < 130 * 2**20, run["name"]


def test_docs_say_how_many_lay_in_their_interval_before():
    """5 of 7 KV caches and 5 of 7 speeds: docs/gpu.md."""
    inside = dict.fromkeys(FIGURES, 0)
    for run in RUNS:
        predicted = run["predicted_before_measuring"]
        for figure in FIGURES:
            value = run["measured"][figure]
            inside[figure] += predicted[f"{figure}_low"] <= value <= predicted[f"{figure}_high"]
    assert len(RUNS) == 7
    assert inside == dict.fromkeys(FIGURES, 5)
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert "5 of 7 KV caches and 5 of 7 speeds" in page

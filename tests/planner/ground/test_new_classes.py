"""Classes whose graphs and speed no run had shown: predicted, then measured on one H200 (vLLM 0.33.0)."""

import json
from pathlib import Path

from inference_planner.answer.parallelism import Plan, plan
from inference_planner.catalog import load_model
from inference_planner.catalog.read import from_dict

RECORDS = Path(__file__).parents[3] / "tests/data/gpu/records"
FIGURES = ("available_kv_gib_per_gpu", "kv_cache_tokens", "single_stream_tokens_per_s")


def runs_of(name: str) -> list[dict]:
    return json.loads((RECORDS / name).read_text(encoding="utf-8"))["runs"]


FIRST = runs_of("kinds_h200_0.33.json")
SECOND = runs_of("kinds_h200_0.33_second.json")


def plan_of(run: dict) -> Plan:
    config = load_model(run["model"]).raw if run["model"] else {}
    model = from_dict({**config, **run["config"]}, name=run["model"] or run["name"])
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
    for run in FIRST + SECOND:
        result = plan_of(run)
        for figure in run["measured"].keys() & set(FIGURES):
            with subtests.test(run=run["name"], figure=figure):
                assert run["measured"][figure] in result.intervals[figure]


def test_graphs_take_what_vllm_set_aside():
    """Laguna, Mellum 2 and Muse Glimmer were 230 to 1,070 MiB off before they ran.

    So was Qwen3 32B with FP8 scales of blocks: 480.
    """
    for run in FIRST + SECOND:
        graphs = next(item.bytes for item in plan_of(run).overheads if item.name == "CUDA graphs")
        assert abs(graphs - run["measured"]["cudagraph_estimate_bytes"]) < 130 * 2**20, run["name"]


def test_docs_say_how_many_lay_in_their_interval_before():
    """5 of 7 KV caches and 5 of 7 speeds: docs/gpu.md."""
    inside = dict.fromkeys(FIGURES, 0)
    for run in FIRST:
        predicted = run["predicted_before_measuring"]
        for figure in FIGURES:
            value = run["measured"][figure]
            inside[figure] += predicted[f"{figure}_low"] <= value <= predicted[f"{figure}_high"]
    assert len(FIRST) == 7
    assert inside == dict.fromkeys(FIGURES, 5)
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert "5 of 7 KV caches and 5 of 7 speeds" in page


def test_every_figure_of_the_second_four_lay_in_its_interval_before():
    for run in SECOND:
        predicted = run["predicted_before_measuring"]
        for figure in run["measured"].keys() & set(FIGURES):
            value = run["measured"][figure]
            assert predicted[f"{figure}_low"] <= value <= predicted[f"{figure}_high"], run["name"]

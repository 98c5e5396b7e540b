"""The simulation against every load that was recorded on a GPU (tests/data/simulate/records)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted((ROOT / "tests/data/simulate/records").glob("*.json"))
COMPARISON = ROOT / "tests/data/simulate/comparison.json"
# What stands for each kind; `benchmarks/simulate/compare.py` simulates all 48 records, for 8 minutes.
LOADS = {
    "h100_glm-4.5-air-fp8_tp2_0.32": ["batch_64"],  # experts beside a shared one, over two GPUs
    "h100_llama-3.1-8b": ["light", "shared_prefix"],
    "h100_llama-3.1-8b_0.32": ["one", "batch_64", "long_prompts"],
    "h100_qwen3-30b-a3b_0.32": ["light"],  # experts
    "h100_qwen3-32b-awq_0.32": ["batch_64"],  # four bits
    "h200_agents_llama-3.1-70b-fp8_tp2_0.32": ["agents"],  # sessions
    "h200_gpt-oss-20b_0.32": ["light"],  # windows, experts of four bits
    "h200_llama-3.1-8b_0.32_two-replicas": ["bursty"],
    "h200_llama-3.1-8b_host_0.33": ["light"],
    "h200_llama-3.1-8b_prefill-apart": ["long_and_many"],
    "h200_nemotron-nano-9b-v2_0.32": ["long_prompts"],  # a state beside the KV cache
    "h200_qwen3-30b-a3b_dp2_0.32": ["long_prompts"],  # experts of two engines
    "h200_qwen3-next-80b-a3b-fp8": ["one"],  # linear attention
}


pytestmark = pytest.mark.usefixtures("vllm")


@pytest.mark.parametrize("name", LOADS)
def test_recorded_loads_come_out_as_docs_simulate_md_says(name):
    import compare

    record = json.loads((RECORDS[0].parent / f"{name}.json").read_text())
    record["workloads"] = [load for load in record["workloads"] if load["name"] in LOADS[name]]
    expected = {}
    for row in json.loads(COMPARISON.read_text()):
        expected[row["record"], row["load"]] = row["off_percent"]
    rows = compare.compared(name, record)
    assert [row["load"] for row in rows] == LOADS[name]
    for row in rows:
        assert row["off_percent"] == pytest.approx(expected[name, row["load"]], abs=0.5), (
            "benchmarks/simulate/compare.py"
        )


def test_so_many_figures_are_within_the_goals():
    import compare

    rows = json.loads(COMPARISON.read_text())
    met = [
        abs(row["off_percent"][key]) <= goal for row in rows for key, goal in compare.GOALS.items()
    ]
    assert {row["record"] for row in rows} == {path.stem for path in RECORDS}
    assert (
        f"{sum(met)} of {len(met)} figures are within the goals"
        in (ROOT / "docs/simulate.md").read_text()
    )
    assert sum(met) / len(met) > 0.76


@pytest.mark.parametrize(
    ("sweep", "count", "best"),
    [
        ("h100", 4, "h100_llama-3.1-8b_slo_kv8_512"),
        ("h100_fp8", 5, "h100_llama-3.1-8b_slo_w8_kv8_512"),
    ],
)
def test_the_best_of_the_settings_is_the_one_that_was_measured_as_the_best(sweep, count, best):
    """What `workshop simulate --search` rests on; compare.py prints the same of the H200."""
    import compare

    measured, simulated = compare.shares_in_time(*compare.SWEEPS[sweep])
    assert len(measured) == count
    assert max(simulated, key=simulated.get) == max(measured, key=measured.get) == best

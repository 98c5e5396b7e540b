"""Logs of two H100 hosts (vLLM 0.32.0): what a setting takes is predicted within a few per cent of what each log says."""

import json
from pathlib import Path

import pytest

from workshop.engine.reconcile.compare import reconcile

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "workshop" / "data" / "logs"
# these end when the memory was measured
ENDED = Path(__file__).parent / "data" / "two_h100"
HYBRID = ENDED / "qwen3.5-27b_mtp2_vllm-0.32.0_h100.log"
JOBS = json.loads((ROOT / "benchmarks/gpu/jobs/truth_two_h100.json").read_text())


def errors(result) -> dict[str, float]:
    """Return the error of each quantity in per cent, by name."""
    table = result.to_dict()["rows"]
    return {row["quantity"]: row["error_percent"] for row in table}


@pytest.mark.parametrize(
    "folder, name, percent",
    [
        (LOGS, "llama-3.1-8b_pp2", 0.5),
        (LOGS, "gpt-oss-20b_marlin", 0.2),
        (ENDED, "llama-3.1-8b_lora", 0.1),
        (ENDED, "llama-3.1-8b_eagle3", 0.5),
    ],
)
def test_kv_cache_of_a_recorded_setting_is_predicted(folder, name, percent):
    path = folder / f"{name}_vllm-0.32.0_h100.log"
    assert abs(errors(reconcile(path, gpu="h100"))["available KV cache per GPU"]) <= percent


def test_kv_cache_of_a_hybrid_with_two_draft_tokens_is_predicted(tmp_path):
    (job,) = [job for job in JOBS if job["name"] == "h100_qwen3.5-27b_mtp2"]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(job["config"]))
    result = reconcile(HYBRID, config, gpu="h100")
    assert abs(errors(result)["available KV cache per GPU"]) <= 2

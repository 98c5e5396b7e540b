"""Write down what the plan and the simulation say of jobs before they are measured.

python benchmarks/gpu/predict.py JOBS.json … > before.json

Of each job of benchmarks/gpu/measure.py: memory and one stream with their intervals, refusals, the first token after
each of its prompts, and a batch of 64 (128 tokens each after prompts of 256).
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu
from inference_planner.split.settings import Settings

from workshop.engine import measured_runs as recorded
from workshop.simulate.clock import of
from workshop.simulate.load import arriving, on_plan
from workshop.simulate.report import Simulation

KEYS = (
    "fits",
    "weights_gib_per_gpu",
    "overhead_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "available_kv_gib_per_gpu_low",
    "available_kv_gib_per_gpu_high",
    "kv_cache_tokens",
    "kv_cache_tokens_low",
    "kv_cache_tokens_high",
    "single_stream_tokens_per_s",
    "single_stream_tokens_per_s_low",
    "single_stream_tokens_per_s_high",
    "basis",
)
# arguments of LLM() alone
NOT_OF_THE_PLAN = (
    "compilation_config",
    "disable_custom_all_reduce",
    "gdn_prefill_backend",
    "skip_tokenizer_init",
)


def plan_of(job: dict[str, Any]) -> Plan:
    """Return the plan of a job, which runs without prefix caching."""
    extra = {key: value for key, value in job["extra"].items() if key not in NOT_OF_THE_PLAN}
    run = {"vllm_version": Settings.vllm_version, "pp": 1, "gpu": "h200", **job, "extra": extra}
    if job.get("env", {}).get("NCCL_P2P_DISABLE") == "1":  # the sums go through the host's memory
        run["gpu"] = replace(load_gpu(run["gpu"]), link="PCIe 5.0", link_gb_s=64)
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(extra.get("speculative_config", {}).get("model"), dict):
            draft = extra["speculative_config"]
            Path(folder, "config.json").write_text(json.dumps(draft["model"]))
            extra["speculative_config"] = {**draft, "model": folder}
        return recorded.plan_of(run, enable_prefix_caching=False)


def simulated(plan: Plan, load: dict[str, Any]) -> Simulation:
    """Return a load as it is measured here: in the engine's own process, without HTTP."""
    return on_plan(plan, arriving(load)[0], clock=of(plan.deployment, http=False))


def first_token_ms(plan: Plan, prompt_tokens: int) -> float:
    """Return the milliseconds to the first token after a lone prompt."""
    alone = {"burst": 1, "prompt": (prompt_tokens, prompt_tokens), "output": (1, 1)}
    return round(simulated(plan, alone).of("ttft")["p50"], 2)


def predicted(job: dict[str, Any]) -> dict[str, Any]:
    """Return all that is predicted of a job."""
    plan = plan_of(job)
    whole = plan.to_dict()
    figures: dict[str, Any] = {key: whole[key] for key in KEYS}
    figures["refusals"] = [refusal.what for refusal in plan.refusals]
    if figures["refusals"] or not job.get("speed", True):
        return figures
    for prompt_tokens in job.get("prompts", ()):
        figures[f"ttft_ms_{prompt_tokens}"] = first_token_ms(plan, prompt_tokens)
    batch = {"burst": 64, "prompt": (256, 256), "output": (128, 128)}
    figures["batch64_tok_s"] = round(simulated(plan, batch).tokens_per_s)
    return figures


def main() -> None:
    """Print one JSON object: job name → prediction."""
    predictions = {}
    for path in sys.argv[1:]:
        for job in json.loads(Path(path).read_text()):
            predictions[job["name"]] = predicted(job)
    print(json.dumps(predictions, indent=1))


if __name__ == "__main__":
    main()

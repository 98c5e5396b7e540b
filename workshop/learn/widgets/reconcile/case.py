"""The recorded logs that can be compared with the plan, and how far calculators are off on them. No widgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from workshop.engine import log as engine_log
from workshop.engine.reconcile import reconcile
from workshop.learn import recordings
from workshop.plan import calculators
from workshop.plan.catalog import load_gpu, load_model

LOGS = recordings.DATA / "logs"
OTHERS: dict[str, Callable] = {
    "llm-d-planner": calculators.llm_d_planner_tokens,
    "hf-mem": calculators.hf_mem_tokens,
    "rule of thumb": calculators.rule_tokens,
}


def recorded() -> dict[str, dict]:
    """Return the recorded logs that can be compared: label → {"path", "model", "gpu"}."""
    entries = recordings.read("logs/index.json")["logs"]
    choices = {}
    for name, entry in entries.items():
        if entry["model"] is None or (name.startswith("failures/") and entry["failure"] != "kv-cache-too-small"):
            continue
        local = LOGS / entry["model"]
        label = f"{entry['what']} ({entry['gpu'] or 'CPU'}, vLLM {entry['vllm_version']})"
        model = str(local) if local.exists() else entry["model"]
        choices[label] = {"path": LOGS / name, "model": model, "gpu": entry["gpu"] and entry["gpu"].lower()}
    return choices


@lru_cache(maxsize=1)
def recorded_errors() -> dict[str, dict[str, float]]:
    """Return {run: {calculator: error in percent of the KV-cache tokens}} for every recorded run on GPUs."""
    found = {}
    for label, run in recorded().items():
        row = reconcile(run["path"], run["model"], run["gpu"]).row("KV cache size") if run["gpu"] else None
        if row is None or not row.actual:
            continue
        log = engine_log.read(run["path"])
        split = (log.tensor_parallel_size or 1, log.pipeline_parallel_size or 1)
        asked = (load_model(run["model"]), load_gpu(run["gpu"]), *split)
        errors = {name: (tokens(*asked) / row.actual - 1) * 100 for name, tokens in OTHERS.items()}
        found[_short(label)] = {"workshop plan": row.error_percent, **errors}
    return found


def _short(label: str) -> str:
    """`llama-3.1-70b, tensor parallel 4 (H200, …)` → `llama-3.1-70b, TP 4`."""
    name = label.partition(" (")[0].replace("tensor parallel", "TP").replace("pipeline", "PP")
    return name.replace(", TP 1", "").replace("KV cache in FP8", "fp8 KV")

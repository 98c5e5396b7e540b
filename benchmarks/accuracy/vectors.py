"""Test vectors for any planner: inputs, and what vLLM said of them (conformance.json, by accuracy.py)."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from inference_planner.answer import builds
from inference_planner.catalog import load_model

from workshop.engine.measured_runs import model_of, plan_of, runs

VECTORS = Path(__file__).with_name("conformance.json")
KINDS = (  # one model a kind of attention, as vLLM's class has it (planner/inference_planner/data/exact)
    "llama-3.1-8b", "gemma-3-12b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3.2", "jamba-v0.1",
    "nemotron-nano-9b-v2", "qwen3-next-80b-a3b-fp8", "qwen3.5-35b-a3b", "llama-4-scout", "qwen3-vl-8b", "mixtral-8x7b",
)  # fmt: skip


@lru_cache(maxsize=1)
def vectors() -> dict:
    """Return what any planner may be tested with: inputs, and what vLLM said of them."""
    record = {
        entry["name"]: entry
        for entry in json.loads((builds.DATA / "exact/catalog.json").read_text())["models"]
    }
    return {
        "about": "bytes of one rank where nothing else is said; a block of every layer of the longest group; see docs/accuracy.md",
        "runs": [run_vector(run) for run in runs() if "ranks" in run and "kv_cache_tokens" in run],
        "classes": [
            class_vector(record[name], split) for name in KINDS for split in record[name]["builds"]
        ],
    }


def run_vector(run: dict) -> dict:
    """Return a run: what was measured on each rank, and what vLLM made of it."""
    p, sizes = plan_of(run), ("tp", "pp")
    return {
        "config": dict(model_of(run).raw),
        **{name: run[name] for name in sizes},
        "max_model_len": p.max_model_len,
        "max_num_batched_tokens": p.deployment.settings.max_num_batched_tokens,
        "kv_cache_dtype": p.deployment.settings.kv_cache_dtype,
        "weights_bytes": [r["weights_bytes"] for r in run["ranks"]],
        "available_kv_bytes": [r["available_kv_bytes"] for r in run["ranks"]],
        "kv_cache_tokens": run["kv_cache_tokens"],
        **({"max_concurrency": run["max_concurrency"]} if "max_concurrency" in run else {}),
    }


def class_vector(entry: dict, split: dict) -> dict:
    """Return a split as the class says."""
    cache = split["kv_cache"]
    return {
        "model": entry["name"],
        "config": dict(load_model(entry["name"]).raw),
        **{name: split[name] for name in ("tp", "pp")},
        "tensor_bytes": [stage["tensor_bytes"] for stage in split["stages"]],
        **{name: cache[name] for name in ("max_model_len", "max_in_flight_tokens")},
        **{
            name: cache[name]
            for name in ("pool_bytes_per_block", "blocks_per_request", "bytes_per_token")
        },
    }


def lines(content: dict) -> str:
    """Write vectors, one a line."""
    text = {k: ",\n".join(f"  {json.dumps(v)}" for v in content[k]) for k in ("runs", "classes")}
    return f'{{\n "about": {json.dumps(content["about"])},\n "runs": [\n{text["runs"]}\n ],\n "classes": [\n{text["classes"]}\n ]\n}}\n'

"""Turn what measure.py, or loads.py --memory, wrote into the records that the plan is held against (planner/inference_planner/data/runs).

    python benchmarks/gpu/write_record.py OUT/NAME.json … --predicted BEFORE.json --into planner/inference_planner/data/runs/FILE.json …

Each run keeps its settings, what vLLM said, the exact bytes of each rank, the speeds, and what the plan said before it
had seen the run (BEFORE.json, by benchmarks/gpu/predict.py). Of loads.py's record the loads "one" (256 tokens after a
prompt of 32) and "batch_64" (128 tokens each of 64 prompts of 256) are taken.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

SAID = (
    "start_s",
    "ttft_ms_32",
    "single_tok_s",
    "weights_gib_per_gpu",
    "available_kv_gib_per_gpu",
    "kv_cache_tokens",
    "max_concurrency",
    "cuda_graph_gib",
)


def rank_bytes(rank: dict) -> dict:
    """Return the exact bytes that the engine's memory profiling saw on one rank.

    0.32.0 counts what is gone from the device: its peak has CUDA graphs and the libraries' memory in it, and is left out.
    """
    figures = {
        "weights_bytes": rank["weights"],
        "cuda_graph_estimate_bytes": rank["cudagraph_estimate"],
        "available_kv_bytes": rank["available"],
    }
    if rank["non_torch"] is not None:
        figures |= {
            "activation_peak_bytes": rank["activation_peak"],
            "non_torch_bytes": rank["non_torch"],
        }
    elif "after_profile_run" in rank:  # PyTorch's own peak, above what was there before the run
        figures["profile_peak_bytes"] = (
            rank["after_profile_run"]["peak"] - rank["before"]["allocated"]
        )
    return figures


def of_loads(record: dict, path: Path) -> dict:
    """Return a record of loads.py as measure.py writes one; its settings are those of `vllm serve`."""
    loads = {load["name"]: load for load in record["workloads"]}
    ranks = [
        json.loads(rank.read_text()) for rank in sorted(path.parent.glob(f"{path.stem}.rank*.json"))
    ]
    result = {
        **{key: record[key] for key in ("model", "tp", "max_model_len", "config", "start_s")},
        **{"name": path.stem, "pp": 1, "gpu": path.stem.split("_")[0], "ranks": ranks},
        "extra": {
            **record["extra"],
            **{key: record[key] for key in ("max_num_batched_tokens", "max_num_seqs")},
        },
        "weights_gib_per_gpu": round(max(rank["weights"] for rank in ranks) / 2**30, 2),
        "available_kv_gib_per_gpu": round(min(rank["available"] for rank in ranks) / 2**30, 2),
        "kv_cache_tokens": record.get("kv_cache_tokens")
        or record["kv_blocks"] * record["block_size"],
    }
    if "one" in loads:
        result["single_tok_s"] = round(1e3 / loads["one"]["tpot_ms_p50"], 2)
    if "batch_64" in loads:
        result["batch64_tok_s"] = round(loads["batch_64"]["tokens_per_s"])
    return result


def run_of(record: dict, predicted: dict, label: str) -> dict:
    """Return one run as workshop.engine.measured_runs reads it."""
    extra = dict(record.get("extra", {}))
    unplanned = {
        key: extra.pop(key) for key in ("compilation_config", "gdn_prefill_backend") if key in extra
    }
    run = {key: record[key] for key in ("name", "model", "tp", "pp", "max_model_len")} | {
        "extra": extra,
        "set": label,
    }
    if "gpu" in record:
        run["gpu"] = record["gpu"]
    if record.get("config"):
        run["config"] = record["config"]
    run |= unplanned | {key: record[key] for key in record if key in SAID or key.endswith("tok_s")}
    run["ranks"] = [rank_bytes(rank) for rank in record["ranks"] if rank.get("available")]
    run["predicted_before_measuring"] = predicted
    return run


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "records", type=Path, nargs="+", help="NAME.json files of measure.py or loads.py"
    )
    parser.add_argument("--predicted", type=Path, required=True)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--label", default="held out")
    parser.add_argument("--hardware", required=True)
    parser.add_argument(
        "--software", default="vllm 0.25.1, torch 2.11.0+cu130, Python 3.12, NCCL 2.28.9"
    )
    parser.add_argument("--date", required=True)
    options = parser.parse_args()
    predicted = json.loads(options.predicted.read_text())
    runs = []
    for path in options.records:
        record = json.loads(path.read_text())
        if "workloads" in record:
            record = of_loads(record, path)
        if "kv_cache_tokens" in record:
            runs.append(run_of(record, predicted.get(record["name"], {}), options.label))
    head = {
        "hardware": options.hardware,
        "software": options.software,
        "how": "benchmarks/gpu/measure.py JOBS.json OUT, or loads.py --memory, then write_record.py: weights are dummies; "
        "single stream = 256 tokens after a prompt of 32; batchN_tok_s = 128 tokens each of N prompts of "
        "256, prompts' time included; batchN_decode_tok_s = without it",
        "date": options.date,
    }
    lines = ",\n".join("  " + json.dumps(run) for run in runs)
    options.into.write_text(
        json.dumps(head, indent=1)[:-2] + ',\n "runs": [\n' + lines + "\n ]\n}\n"
    )
    print(f"{len(runs)} runs: {options.into}")


if __name__ == "__main__":
    main()

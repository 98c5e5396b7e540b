"""vLLM worker extension: writes down, in exact bytes, what the engine's memory profiling saw on this rank.

Loaded by `worker_extension_cls="measure_worker.MemoryReport"`. Importing it wraps Worker.determine_available_memory, so
that each rank writes `$WORKSHOP_MEASURE_OUT.rank<N>.json`; with WORKSHOP_MEASURE_TRACE=1 the live tensors at the peak
of the profile run are listed with the line of code that allocated each.
"""

from __future__ import annotations

import json
import linecache
import os

import torch
from vllm.v1.worker.gpu_worker import Worker

_original, _original_load = Worker.determine_available_memory, Worker.load_model
_TRACE = os.environ.get("WORKSHOP_MEASURE_TRACE") == "1"
_loaded: dict = {}


def _memory() -> dict:
    free, total = torch.cuda.mem_get_info()
    stats = torch.cuda.memory_stats()
    return {
        "free": free,
        "total": total,
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "requested": stats.get("requested_bytes.all.current", 0),
        "peak": stats.get("allocated_bytes.all.peak", 0),
        "non_torch": total - free - stats.get("reserved_bytes.all.current", 0),
    }


def _where(frames: list[dict]) -> list[str]:
    out = []
    for frame in frames:
        name = frame["filename"]
        if ("torch/_" in name and "_inductor" not in name) or "contextlib" in name:
            continue
        line = linecache.getline(name, frame["line"]).strip()
        out.append(
            f"{'/'.join(name.split('/')[-2:])}:{frame['line']} {frame['name']} | {line}"[:230]
        )
        if len(out) == 4:
            break
    return out


def _peak(events: list[dict]) -> dict:
    """Replay allocations and frees; return the live ones at the highest total."""
    live, total, best, at = {}, 0, 0, -1
    for i, e in enumerate(events):
        if e["action"] == "alloc":
            live[e["addr"]] = e
            total += e["size"]
        elif e["action"] == "free_completed" and e["addr"] in live:
            total -= live.pop(e["addr"])["size"]
        if total > best:
            best, at = total, i
    live = {}
    for e in events[: at + 1]:
        if e["action"] == "alloc":
            live[e["addr"]] = e
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    big = sorted(live.values(), key=lambda e: -e["size"])
    return {
        "bytes": best,
        "tensors": [
            {"bytes": e["size"], "where": _where(e["frames"])} for e in big if e["size"] >= 1 << 20
        ],
    }


def _load_model(self: Worker, **kwargs) -> None:
    """Load as always; afterwards list the live blocks by size, what was asked for, and the code that asked."""
    if _TRACE:
        torch.cuda.memory._record_memory_history(
            "all", context="alloc", stacks="python", max_entries=1
        )
    _loaded["before"] = _memory()
    _original_load(self, **kwargs)
    _loaded["after"] = _memory()
    if _TRACE:
        counts: dict = {}
        for segment in torch.cuda.memory._snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block["size"] >= 1 << 20:
                    where = (_where(block.get("frames", [])) or ["?"])[:2]
                    key = (block["size"], block["requested_size"], *where)
                    counts[key] = counts.get(key, 0) + 1
        torch.cuda.memory._record_memory_history(None)
        _loaded["blocks"] = [[*k, n] for k, n in sorted(counts.items(), key=lambda kv: -kv[0][0])][
            :60
        ]


def _determine_available_memory(self: Worker) -> int:
    report = {"rank": self.rank, "before": _memory()}
    profile_run = self.model_runner.profile_run

    def wrapped(*args, **kwargs) -> None:
        if _TRACE:
            torch.cuda.memory._record_memory_history(
                "all", context="alloc", stacks="python", max_entries=400_000
            )
        profile_run(*args, **kwargs)
        if _TRACE:
            snapshot = torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(None)
            report["peak"] = _peak(snapshot["device_traces"][torch.cuda.current_device()])
        report["after_profile_run"] = _memory()

    self.model_runner.profile_run = wrapped
    available = _original(self)
    self.model_runner.profile_run = profile_run
    snapshot = self.init_snapshot
    report |= {
        "total": snapshot.total_memory,
        "init_free": snapshot.free_memory,
        "init_non_torch": snapshot.non_torch_memory,
        "requested": self.requested_memory,
        "weights": self.model_runner.model_memory_usage,
        "activation_peak": getattr(self, "peak_activation_memory", None),
        "non_torch": getattr(self, "non_torch_memory", None),
        "cudagraph_estimate": getattr(self, "cudagraph_memory_estimate", None),
        "available": available,
        "after": _memory(),
        "load": _loaded,
    }
    with open(f"{os.environ['WORKSHOP_MEASURE_OUT']}.rank{self.rank}.json", "w") as f:
        json.dump(report, f)
    if os.environ.get("WORKSHOP_MEASURE_STOP") == "1":
        raise RuntimeError("the memory is measured: stopping here, as the job asks")
    return available


Worker.determine_available_memory = _determine_available_memory
Worker.load_model = _load_model


class MemoryReport:
    """What the worker can do besides; the wrapping above comes with it."""

    @torch.inference_mode()
    def zero_biases(self) -> int:
        """Set every bias to 0 and return how many there were: as large as all other dummy weights, those of the
        layers together decide which experts a token has, and every token would have the same."""
        biases = [
            value for name, value in self.get_model().named_parameters() if name.endswith("bias")
        ]
        for value in biases:
            value.zero_()
        return len(biases)

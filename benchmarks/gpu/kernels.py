"""Add up the GPU kernels of a decoding step by what they do, from a torch profiler trace."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

KINDS = (  # the first pattern that a kernel's name matches says what it does
    ("all-reduce", r"cross_device_reduce|allreduce|all_reduce|ncclDevKernel|AllReduce"),
    ("attention", r"flash|FlashAttn|attn|paged|prepare_varlen"),
    ("KV cache write", r"reshape_and_cache|concat_and_cache"),
    ("matrix products", r"gemm|gemv|cutlass|nvjet|splitK|sm90_xmma|cublas|_mm_|triton_tem"),
    ("quantise", r"quant|scaled_fp8"),
    ("sampling", r"argmax|softmax|topk|sample|penalt|gather|cumsum|sort"),
    ("norms, rope, activation", r"triton_|rms_norm|rotary|silu|elementwise|vectorized"),
    ("copies", r"Memcpy|Memset|copy"),
)


def kernel_kind(name: str) -> str:
    """Return what a kernel of this name does: one of KINDS, or "other"."""
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), "other")


def kernel_times(folder: Path, steps: int = 16) -> dict:
    """Return ms a decoding step by kind, from rank 0's trace in `folder`, over the last `steps` whole steps.

    Keys: step_ms (from one step's first kernel to the next one's), busy_ms (some kernel runs), idle_ms, by_kind
    {kind: [ms, kernels]}, top [[name, ms, kernels]]. A step ends where a sampling kernel ran.
    """
    traces = sorted(
        p for p in folder.rglob("*.json") if re.search(r"rank[-_.]?0|dp0.*tp0|rank0", p.name)
    ) or sorted(folder.rglob("*.json"))
    events = [
        e
        for e in json.loads(traces[0].read_text())["traceEvents"]
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in e
    ]
    events.sort(key=lambda e: e["ts"])
    for sampler in ("argmax", "gumbel_sample"):  # vLLM's model runner V1 and V2
        ends = [e["ts"] + e["dur"] for e in events if sampler in e["name"].lower()]
        if len(ends) >= 3:
            break
    else:
        names = Counter(e["name"][:90] for e in events).most_common(40)
        return {"trace": traces[0].name, "kernels": len(events), "names": names}
    steps = min(steps, len(ends) - 2)
    begin, end = ends[-steps - 2], ends[-2]
    inside = [e for e in events if begin <= e["ts"] < end]
    by_kind, by_name = defaultdict(lambda: [0.0, 0]), defaultdict(lambda: [0.0, 0])
    busy, until = 0.0, begin
    for e in inside:
        for table, key in ((by_kind, kernel_kind(e["name"])), (by_name, e["name"][:110])):
            table[key][0] += e["dur"]
            table[key][1] += 1
        busy += max(0.0, e["ts"] + e["dur"] - max(until, e["ts"]))
        until = max(until, e["ts"] + e["dur"])

    def per_step(table: dict) -> list:
        ranked = sorted(table.items(), key=lambda item: -item[1][0])
        return [
            [key, round(us / steps / 1e3, 4), round(count / steps, 1)]
            for key, (us, count) in ranked
        ]

    step = (end - begin) / steps / 1e3
    return {
        "trace": traces[0].name,
        "steps": steps,
        "step_ms": round(step, 4),
        "busy_ms": round(busy / steps / 1e3, 4),
        "idle_ms": round(step - busy / steps / 1e3, 4),
        "by_kind": {key: [ms, count] for key, ms, count in per_step(by_kind)},
        "top": per_step(by_name)[:24],
    }

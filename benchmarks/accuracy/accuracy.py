"""The accuracy board: our prediction beside every recorded run, and what other published formulas say.

    python benchmarks/accuracy/accuracy.py

Writes docs/accuracy.md and docs/pictures/accuracy.svg. Needs matplotlib (in the base install).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from inference_planner.catalog import load_gpu  # noqa: E402
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig  # noqa: E402
from inference_planner.catalog.gpus import GIB, GPU, MIB  # noqa: E402
from inference_planner.ground.basis import model_of  # noqa: E402
from inference_planner.model import kv_cache, weights  # noqa: E402
from inference_planner.speed import roofline as speed  # noqa: E402
from inference_planner.split import ranks  # noqa: E402
from inference_planner.tables import calculators  # noqa: E402

from workshop.engine.measured_runs import plan_of, runs  # noqa: E402

DOCS = ROOT / "docs"


def aiconfigurator_tokens(
    m: ModelConfig, gpu: GPU, tp: int, pp: int, utilization: float = 0.92
) -> int:
    """Return KV-cache tokens by aiconfigurator's memory model of vLLM, for 16,384 tokens a step (LLM() on an H200).

    Of a rank it takes activations of 2 · tokens · heads · head_dim bytes times a constant, NCCL's, and 3.5 GiB.
    Source: aiconfigurator-core 0.12, sdk/backends/vllm_backend.py, systems/h200_sxm.yaml.
    """
    factors = (
        {1: 22, 2: 13}
        if m.moe or m.mla
        else {1: 11, 2: 6.5}
        if m.architecture.startswith("Llama")
        else {1: 10, 2: 6}
    )
    factor = factors.get(min(tp, 8), 10 if m.moe or m.mla else 5)
    activations = 2 * 16384 * m.num_attention_heads * m.head_dim * factor
    others = 3.5 * GIB + {1: 0, 2: 342 * MIB}.get(min(tp, 8), 392 * MIB)
    weight_bytes = m.quantization.weight_bits / 8 if m.quantization else DTYPE_BYTES[m.dtype]
    free = (
        gpu.marketing_gb * GIB * utilization
        - weights.parameters(m) * weight_bytes / (tp * pp)
        - activations
        - others
    )
    return max(0, int(free * tp * pp // kv_cache.kv_cache_bytes_per_token(m)))


def gpu_poor_tokens(m: ModelConfig, gpu: GPU, tp: int, pp: int, utilization: float = 0.92) -> int:
    """Return KV-cache tokens by gpu_poor's vLLM choice: K and V of every query head, 16 bit, 650 MB besides."""
    estimate = calculators.gpu_poor(m, 1)
    free = (
        gpu.driver_mib * MIB * utilization * tp * pp
        - (estimate.weights_gib + estimate.overhead_gib) * GIB
    )
    return max(0, int(free // (estimate.kv_cache_gib * GIB)))


# planner -> (its tokens, its colour and mark in the plot, what it leaves out)
PEERS = {
    "llm-d-planner": (
        calculators.llm_d_planner_tokens,
        ("#5b8db8", "^"),
        "constants for vLLM 0.19 on H100; no windows, no FP8 KV cache (llm-d-incubation/llm-d-planner, src/planner/capacity_planner.py)",
    ),
    "aiconfigurator": (
        aiconfigurator_tokens,
        ("#76508f", "v"),
        "its memory model of vLLM: 3.5 GiB a rank for safety, activations by TensorRT-LLM's constants (aiconfigurator-core 0.12, sdk/backends/vllm_backend.py)",
    ),
    "hf-mem": (
        calculators.hf_mem_tokens,
        ("#e0a030", "s"),
        "weights and KV cache alone: no overheads, no latent, no windows (hf-mem)",
    ),
    "accelerate, rule of thumb": (
        calculators.rule_tokens,
        ("#bbbbbb", "D"),
        "weights and a fifth more (accelerate, docs/source/usage_guides/model_size_estimator.md; the rule M = P·4/(32/Q)·1.2)",
    ),
    "gpu_poor": (
        gpu_poor_tokens,
        ("#c46a5a", "P"),
        "K and V of every query head, always three MLP matrices, 650 MB besides (RahulSChand/gpu_poor, src/App.js)",
    ),
}


def percent(predicted: float, actual: float) -> float:
    return 100 * (predicted / actual - 1)


def rows() -> list[dict]:
    """Return, for each run whose log printed its tokens, the actual values and every prediction."""
    out = []
    for run in runs():
        if "kv_cache_tokens" not in run:
            continue
        p, m, gpu = plan_of(run), model_of(run), load_gpu(run["gpu"])
        share = run["extra"].get("gpu_memory_utilization", 0.92)
        row = {
            "run": run,
            "tokens": run["kv_cache_tokens"],
            "ours": percent(p.kv_cache_tokens, run["kv_cache_tokens"]),
            "weights": percent(p.weights_gib_per_gpu, weights_gib(run)),
            "predicted": p.kv_cache_tokens,
            "peers": {
                name: percent(f(m, gpu, run["tp"], run["pp"], share), run["kv_cache_tokens"])
                for name, (f, _, _) in PEERS.items()
            },
        }
        if "single_tok_s" in run:
            row["speed"] = percent(p.single_stream_tokens_per_s, run["single_tok_s"])
        out.append(row)
    return out


def weights_gib(run: dict) -> float:
    """The exact bytes where a run has them; the log's two digits otherwise."""
    return (
        max(r["weights_bytes"] for r in run["ranks"]) / 2**30
        if "ranks" in run
        else run["weights_gib_per_gpu"]
    )


def summary(values: list[float]) -> str:
    sizes = [abs(v) for v in values]
    return f"{statistics.median(sizes):.2f} | {max(sizes):.2f}"


def unseen() -> dict[str, list[float]]:
    """Return, for each set of runs that was predicted before it was measured, the errors of the memory left."""
    out: dict[str, list[float]] = {}
    for run in runs():
        if before := run.get("predicted_before_measuring"):
            actual = min(r["available_kv_bytes"] for r in run["ranks"]) / 2**30
            out.setdefault(run["set"], []).append(
                percent(before["available_kv_gib_per_gpu"], actual)
            )
    return out


def plan_ms() -> tuple[float, float]:
    """Return the median and the longest time of a plan that nothing has cached; best of five."""
    cached = [
        f
        for module in (kv_cache, ranks, speed, weights)
        for f in vars(module).values()
        if hasattr(f, "cache_clear")
    ]
    times = []
    for run in runs():
        best = float("inf")
        for _ in range(5):
            for function in cached:
                function.cache_clear()
            begin = time.perf_counter()
            plan_of(run)
            best = min(best, 1e3 * (time.perf_counter() - begin))
        times.append(best)
    return statistics.median(times), max(times)


def settings_of(run: dict) -> str:
    parts = [run["gpu"].upper()] if run["gpu"] != "h200" else []
    parts += [f"vLLM {run['vllm_version']}"] if run["vllm_version"] != "0.25.1" else []
    parts += [f"TP {run['tp']}"] if run["tp"] > 1 else []
    parts += [f"PP {run['pp']}"] if run["pp"] > 1 else []
    extra, served = run["extra"], {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}
    if served.items() <= extra.items():  # vllm serve's defaults on these GPUs
        parts.append("vllm serve")
        extra = {k: v for k, v in extra.items() if k not in served}
    parts += [f"{k.replace('_', ' ')} {v}" for k, v in extra.items()]
    parts += ["FP8 weights"] if "quantization_config" in run.get("config", {}) else []
    return ", ".join(parts) or "—"


def table(data: list[dict]) -> str:
    """Return the Markdown report."""
    lines = [
        "# Accuracy: every planner whose formula is published, on every recorded run",
        "",
        "vLLM 0.25.1 on 1 to 4 × H200 where no other is named, dummy weights, LLM() defaults where no setting is named. Errors in percent of what vLLM printed. Made by `python benchmarks/accuracy/accuracy.py`; a test compares.",
        "",
        "![Errors of every run](pictures/accuracy.svg)",
        "",
        "| | median | worst |",
        "|---|---:|---:|",
        f"| KV-cache tokens, ours | {summary([r['ours'] for r in data])} |",
    ]
    for name in PEERS:
        lines.append(f"| KV-cache tokens, {name} | {summary([r['peers'][name] for r in data])} |")
    lines += [
        f"| weights, ours | {summary([r['weights'] for r in data])} |",
        f"| single-stream tokens/s, ours | {summary([r['speed'] for r in data if 'speed' in r])} |",
        "",
        "| model | settings | tokens vLLM printed | ours | error | "
        + " | ".join(PEERS)
        + " | weights | tokens/s |",
        "|---|---|---:|---:|---:|" + "---:|" * len(PEERS) + "---:|---:|",
    ]
    for r in data:
        peers = " | ".join(f"{r['peers'][n]:+.1f}" for n in PEERS)
        speed = f"{r['speed']:+.1f}" if "speed" in r else ""
        lines.append(
            f"| {r['run']['model']} | {settings_of(r['run'])} | {r['tokens']:,} | {r['predicted']:,} | "
            f"{r['ours']:+.2f} | {peers} | {r['weights']:+.2f} | {speed} |"
        )
    lines += [
        "",
        "Before the formulas had seen them (memory left for KV cache, median and worst error): "
        + "; ".join(
            f"{name} set of {len(errors)} runs {summary(errors).replace(' | ', ' and ')} %"
            for name, errors in unseen().items()
        )
        + ".",
        "",
        "## The others",
        "",
        "By their published formulas, in `planner/inference_planner/tables/calculators.py` and `benchmarks/accuracy/accuracy.py`; what a formula leaves out is no fault of its authors, who may have meant it for less.",
        "",
        *(f"- **{name}**: {about}." for name, (_, _, about) in PEERS.items()),
        "",
        "",
    ]
    return "\n".join(lines)


def plot(data: list[dict], path: Path) -> None:
    """Draw every run's error on a logarithmic scale: ours and each peer's."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "workshop"  # the same data, the same file
    import matplotlib.pyplot as plt

    labels = [f"{r['run']['model']} · {settings_of(r['run'])}".replace(" · —", "") for r in data]
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(data) + 1.4))
    for name, (_, (colour, marker), _) in PEERS.items():
        errors = [max(0.003, abs(r["peers"][name])) for r in data]
        axes.scatter(errors, range(len(data)), color=colour, marker=marker, label=name, s=26)
    axes.scatter(
        [max(0.003, abs(r["ours"])) for r in data],
        range(len(data)),
        color="#1b7a3d",
        label="workshop plan",
        s=34,
        zorder=3,
    )
    axes.axvline(1, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xticks([0.003, 0.01, 0.1, 1, 10, 100], ["exact", "0.01", "0.1", "1", "10", "100"])
    axes.set_yticks(range(len(data)), labels, fontsize=8)
    axes.set_ylim(len(data) - 0.4, -0.6)
    axes.minorticks_off()
    axes.set_xlabel("error of the KV-cache tokens, percent of what vLLM printed")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.35, 1.0), ncols=3, frameon=False, fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    """Write the page and the plot."""
    data = rows()
    (DOCS / "accuracy.md").write_text(table(data), encoding="utf-8")
    plot(data, DOCS / "pictures" / "accuracy.svg")
    median, longest = plan_ms()
    print(f"a plan takes {median:.1f} ms in the median, {longest:.1f} ms at most")
    print(f"{len(data)} runs: docs/accuracy.md, docs/pictures/accuracy.svg")


if __name__ == "__main__":
    main()

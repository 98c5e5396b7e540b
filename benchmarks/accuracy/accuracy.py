"""Write our prediction beside every recorded run, and what other formulas say: a table and a plot.

    python benchmarks/accuracy/accuracy.py [OUT_FOLDER]        # default: this folder

Writes accuracy.md and accuracy.svg. Needs matplotlib (in the base install).
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from workshop.plan import calculators, kv_cache, ranks, speed, weights  # noqa: E402
from workshop.plan.catalog import load_gpu  # noqa: E402
from workshop.plan.recorded import model_of, plan_of, runs  # noqa: E402

PEERS = {
    "llm-d-planner": calculators.llm_d_planner_tokens,
    "weights + KV only": calculators.hf_mem_tokens,
    "rule of thumb": calculators.rule_tokens,
}


def percent(predicted: float, actual: float) -> float:
    return 100 * (predicted / actual - 1)


def rows() -> list[dict]:
    """Return, for each run whose log printed its tokens, the actual values and every prediction."""
    gpu, out = load_gpu("h200"), []
    for run in runs():
        if "kv_cache_tokens" not in run:
            continue
        p, m = plan_of(run), model_of(run)
        share = run["extra"].get("gpu_memory_utilization", 0.92)
        row = {
            "run": run,
            "tokens": run["kv_cache_tokens"],
            "ours": percent(p.kv_cache_tokens, run["kv_cache_tokens"]),
            "weights": percent(p.weights_gib_per_gpu, weights_gib(run)),
            "predicted": p.kv_cache_tokens,
            "peers": {
                name: percent(f(m, gpu, run["tp"], run["pp"], share), run["kv_cache_tokens"])
                for name, f in PEERS.items()
            },
        }
        if "single_tok_s" in run:
            row["speed"] = percent(p.single_stream_tokens_per_s, run["single_tok_s"])
        out.append(row)
    return out


def weights_gib(run: dict) -> float:
    """The exact bytes where a run has them; the log's two digits otherwise."""
    return max(r["weights_bytes"] for r in run["ranks"]) / 2**30 if "ranks" in run else run["weights_gib_per_gpu"]


def summary(values: list[float]) -> str:
    sizes = [abs(v) for v in values]
    return f"{statistics.median(sizes):.2f} | {max(sizes):.2f}"


def unseen() -> dict[str, list[float]]:
    """Return, for each set of runs that was predicted before it was measured, the errors of the memory left."""
    out: dict[str, list[float]] = {}
    for run in runs():
        if before := run.get("predicted_before_measuring"):
            actual = min(r["available_kv_bytes"] for r in run["ranks"]) / 2**30
            out.setdefault(run["set"], []).append(percent(before["available_kv_gib_per_gpu"], actual))
    return out


def plan_ms() -> tuple[float, float]:
    """Return the median and the longest time of a plan that nothing has cached; best of five."""
    cached = [
        f for module in (kv_cache, ranks, speed, weights) for f in vars(module).values() if hasattr(f, "cache_clear")
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
    parts = [f"TP {run['tp']}"] if run["tp"] > 1 else []
    parts += [f"PP {run['pp']}"] if run["pp"] > 1 else []
    parts += [f"{k.replace('_', ' ')} {v}" for k, v in run["extra"].items()]
    parts += ["FP8 weights"] if "quantization_config" in run.get("config", {}) else []
    return ", ".join(parts) or "—"


def table(data: list[dict]) -> str:
    """Return the Markdown report."""
    median, longest = plan_ms()
    lines = [
        "# Accuracy of `workshop plan`",
        "",
        "vLLM 0.25.1 on 1 to 4 × H200, dummy weights, LLM() defaults where no setting is named. Errors in "
        "percent of "
        "what vLLM printed.",
        "",
        f"A plan takes {median:.1f} ms in the median, {longest:.1f} ms at most.",
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
        "| model | settings | tokens vLLM printed | ours | error | " + " | ".join(PEERS) + " | weights | tokens/s |",
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
        "Peers by their published formulas (workshop/plan/calculators.py): llm-d-planner's constants are "
        "for vLLM "
        "0.19 on H100; neither it nor the others know sliding windows or an FP8 KV cache.",
        "",
    ]
    return "\n".join(lines)


def plot(data: list[dict], path: Path) -> None:
    """Draw every run's error on a logarithmic scale: ours and each peer's."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    labels = [f"{r['run']['model']} · {settings_of(r['run'])}".replace(" · —", "") for r in data]
    figure, axes = plt.subplots(figsize=(9, 0.3 * len(data) + 1.4))
    series = {
        "rule of thumb": ("#bbbbbb", "D"),
        "weights + KV only": ("#e0a030", "s"),
        "llm-d-planner": ("#5b8db8", "^"),
    }
    for name, (colour, marker) in series.items():
        axes.scatter(
            [max(0.003, abs(r["peers"][name])) for r in data],
            range(len(data)),
            color=colour,
            marker=marker,
            label=name,
            s=26,
        )
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
    axes.legend(loc="upper center", bbox_to_anchor=(0.35, 1.06), ncols=4, frameon=False, fontsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    out.mkdir(parents=True, exist_ok=True)
    data = rows()
    (out / "accuracy.md").write_text(table(data), encoding="utf-8")
    plot(data, out / "accuracy.svg")
    print(f"{len(data)} runs: {out / 'accuracy.md'}, {out / 'accuracy.svg'}")


if __name__ == "__main__":
    main()

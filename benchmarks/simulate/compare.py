"""The simulation against recorded loads (benchmarks/gpu/loads.py), and its predictions before they are recorded.

python benchmarks/simulate/compare.py                         every record → comparison.json beside them, the table
python benchmarks/simulate/compare.py --predict llama-3.1-8b h200 predictions/h200_llama-3.1-8b.json [--quantization fp8]
                                              [-tp 2 | -dp 2 --enable-expert-parallel | --replicas 2] [--vllm-version 0.32.0]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
import shapes  # noqa: E402
from inference_planner.answer.parallelism import Plan  # noqa: E402
from inference_planner.catalog.read import from_dict  # noqa: E402

from benchmarks.page_tables import with_tables  # noqa: E402
from workshop.engine.planning import plan  # noqa: E402
from workshop.simulate.arrivals import Arrival  # noqa: E402
from workshop.simulate.clock import Clock, of  # noqa: E402
from workshop.simulate.load import on_plan  # noqa: E402
from workshop.simulate.report import Outcome, Simulation, percentiles  # noqa: E402

DATA = ROOT / "tests" / "data" / "simulate"  # records/*.json and comparison.json, which tests read
# per cent
GOALS = {
    "tokens_per_s": 3,
    "tpot_ms_p50": 5,
    "tpot_ms_p95": 10,
    "ttft_ms_p50": 15,
    "ttft_ms_p95": 20,
}
FITTED = {  # what the clock was fitted to; other records were only predicted
    "h100_llama-3.1-8b": "8 constants fitted",
    "h200_llama-3.1-8b": "1 fitted",
    "h200_qwen3-30b-a3b": "3 fitted",
    "h200_llama-3.1-70b-fp8": "4 fitted to light and middle",
    "h200_nemotron-nano-9b-v2_0.32": "2 fitted, not to heavy and shared_prefix",
    "h200_llama-3.1-8b_slo_default": "1 fitted",
    "h200_llama-3.1-8b_slo_kv8_512": "1 fitted",
    "h200_llama-3.1-8b_tp2_two": "1 fitted to busy",
    "h200_llama-3.1-8b_prefill-apart": "1 fitted to busy",
    "h200_qwen3-30b-a3b_dp2_0.32": "1 fitted to heavy",
    "h200_gpt-oss-120b": "1 fitted to light and batch_64",
    "h200_qwen3-next-80b-a3b-fp8": "3 fitted to one and to loads",
    "h200_qwen3-next-80b-a3b-fp8_loads": "3 fitted to one and to loads",
    "h100_qwen3-32b-awq_0.32": "1 fitted to one stream",
    "h100_glm-4.5-air-fp8_tp2_0.32": "3 fitted to one stream and chat",
}
SHOWN = ("light", "heavy", "burst")  # in the explorer, where there is no vLLM
RECORDED = ROOT / "workshop" / "data" / "simulated.json"
DOCS = ROOT / "docs" / "simulate.md"


ENGINE = (  # of a record's "extra"
    "enforce_eager",
    "kv_cache_dtype",
    "quantization",
    "data_parallel_size",
    "enable_expert_parallel",
)


SERVERS = ("replicas", "prefill_replicas", "enable_prefix_caching")
# Recorded on a host that takes 0.7 of the others' time for Python and launches: one number, fitted to six loads of 8B
QUICK_HOST = (  # the beginnings of their names
    "h200_gpt-oss-20b",
    "h200_llama-3.1-70b",
    "h200_llama-3.1-8b_prefill",
    "h200_llama-3.1-8b_slo",
    "h200_llama-3.1-8b_t",
    "h200_mistral",
    "h200_nemotron",
    "h200_qwen3-30b",
)


TTFT_SLO_MS = 300
SWEEPS = {  # of docs/gpu.md, "Which settings serve most?": records, what others have in their names, load, TPOT in ms
    "h100": ("h100_llama-3.1-8b_*", "_w8", "rate_20", 10),
    "h100_fp8": ("h100_llama-3.1-8b_*", None, "rate_20", 10),
    "h200": ("h200_llama-3.1-8b_slo_*", "_512", "rate_30", 15),
    "h200_512": ("h200_llama-3.1-8b_slo_*", None, "rate_30", 15),
}


# Dummy weights: its router's bias decides, not the token, so every token has the same experts (but with --zero-biases)
SAME_EXPERTS = ("gpt-oss-20b",)


def planned(record: dict, gpu: str):
    options = {key: record["extra"][key] for key in ENGINE if key in record.get("extra", {})}
    config = record.get("config", {})
    model = record["model"]
    if "architectures" in config:
        model = from_dict(config, name=model)
    elif stored := config.get("quantization_config"):
        options["quantization"] = stored["quant_method"]
    return plan(
        model,
        gpu,
        tensor_parallel_size=record["tp"],
        max_model_len=record.get("max_model_len", 8192),
        max_num_seqs=record.get("max_num_seqs"),
        max_num_batched_tokens=record.get("max_num_batched_tokens"),
        vllm_version=record.get("vllm_version", "0.25.1"),
        **options,
    )


def host_of(record: str) -> float:
    """Return the factor of the host that a record was made on."""
    return 0.7 if record == "h200_llama-3.1-8b" or record.startswith(QUICK_HOST) else 1.0


def clock_of(p: Plan, host: float = 1.0, zero_biases: bool = False) -> Clock:
    """Return the plan's clock as these loads were recorded: without HTTP, with dummy weights.

    Dummy weights choose their experts evenly, or always the same.
    """
    clock = replace(of(p.deployment, host, http=False), experts_variation=0.0)
    if p.model in SAME_EXPERTS and not zero_biases:
        same_ms = clock.experts_ms * clock.chosen_experts
        return replace(clock, weights_ms=clock.weights_ms + same_ms, experts_ms=0.0)
    return clock


def arrivals_of(load: dict) -> list[Arrival]:
    """Return the requests as they came: recorded rows, or those that the load will draw."""
    if "rows" not in load:
        return shapes.requests(load)
    prefix = load.get("prefix", 0)
    if "sessions" in load:
        return arrivals_of_sessions(load)
    rows = sorted(load["rows"])
    pieces = (("shared", prefix),) if prefix else ()
    return [Arrival(at, prompt, output, pieces) for at, _, _, prompt, output in rows]


def arrivals_of_sessions(load: dict) -> list[Arrival]:
    """Return recorded requests of agents. A prompt is what all share, then all that its agent said and heard so far."""
    arrivals = []
    histories: dict[int, list[tuple[str, int]]] = {}
    for (at, _, _, prompt, output), (agent, turn) in zip(
        load["rows"], load["sessions"], strict=True
    ):
        pieces = histories.setdefault(agent, [("system", load["system"])])
        earlier_tokens = sum(tokens for _, tokens in pieces)
        pieces.append((f"agent {agent}, turn {turn}", prompt - earlier_tokens))
        answer = f"agent {agent}, answer {turn}"
        arrivals.append(Arrival(at, prompt, output, pieces=tuple(pieces), answer=answer))
        pieces.append((answer, output))
    return arrivals


def figures(s: Simulation) -> dict[str, float]:
    """Return the five figures that have goals."""
    return {"tokens_per_s": s.tokens_per_s} | {
        f"{measure}_ms_{p}": s.of(measure)[p]
        for measure in ("tpot", "ttft")
        for p in ("p50", "p95")
    }


def measured(load: dict) -> dict[str, float]:
    """Return the same of the recorded rows, computed by the same code."""
    rows = [
        Outcome(at, prompt, first, last, output, 0, 0)
        for at, first, last, prompt, output in sorted(load["rows"])
    ]
    tpot = percentiles([outcome.tpot_ms for outcome in rows if outcome.tpot_ms is not None])
    ttft = percentiles([outcome.ttft_ms for outcome in rows])
    tokens = sum(outcome.output_tokens for outcome in rows) / max(
        outcome.last_s for outcome in rows
    )
    return {
        "tokens_per_s": tokens,
        "tpot_ms_p50": tpot["p50"],
        "tpot_ms_p95": tpot["p95"],
        "ttft_ms_p50": ttft["p50"],
        "ttft_ms_p95": ttft["p95"],
    }


def compared(name: str, record: dict) -> list[dict]:
    """Return a row for each recorded load: measured, simulated, and the difference in per cent."""
    p, rows = planned(record, name.split("_")[0]), []
    clock = clock_of(p, host_of(name), bool(record.get("zero_biases")))
    for load in record["workloads"]:
        if "rows" not in load:
            continue
        servers = {
            key: value
            for key, value in {**record, **record.get("extra", {})}.items()
            if key in SERVERS
        }
        s = on_plan(
            p,
            arrivals_of(load),
            clock=clock,
            num_gpu_blocks=record.get("kv_blocks"),
            **servers,
        )
        simulated, seen = figures(s), measured(load)
        off = {key: (simulated[key] / seen[key] - 1) * 100 for key in GOALS}
        row = {
            "record": name,
            "model": record["model"],
            "load": load["name"],
            "requests": len(load["rows"]),
        }
        row |= {
            "measured": seen,
            "simulated": simulated,
            "off_percent": off,
            "steps": s.steps,
            "wall_s": round(s.wall_s, 2),
        }
        row["shown"] = s.to_dict()
        weights = record.get("extra", {}).get("quantization")
        row["version"] = record.get("vllm_version", "0.25.1") + (
            f", {weights} weights" if weights else ""
        )
        rows.append(row)
        print(as_line(row), file=sys.stderr, flush=True)
    return rows


def shares_in_time(
    records: str, without: str | None, load: str, tpot_ms: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the measured and the simulated share of requests in time, by the name of the record."""
    measured, simulated = {}, {}
    for path in sorted(DATA.glob(f"records/{records}.json")):
        if without and without in path.stem:
            continue
        record = json.loads(path.read_text())
        workload = next((entry for entry in record["workloads"] if entry["name"] == load), None)
        if not workload:
            continue
        in_time = [
            first - at <= TTFT_SLO_MS / 1e3 and (last - first) / (made - 1) <= tpot_ms / 1e3
            for at, first, last, _, made in workload["rows"]
        ]
        measured[path.stem] = sum(in_time) / len(in_time)
        simulated[path.stem] = simulated_share(path, load, tpot_ms)
    return measured, simulated


@cache  # two sweeps have records in common
def simulated_share(path: Path, load: str, tpot_ms: float) -> float:
    """Return the share of a recorded load's requests that are in time in the simulation."""
    record = json.loads(path.read_text())
    workload = next(entry for entry in record["workloads"] if entry["name"] == load)
    p = planned(record, path.stem.split("_")[0])
    outcome = on_plan(
        p,
        arrivals_of(workload),
        clock=clock_of(p, host_of(path.stem)),
        slo={"ttft": TTFT_SLO_MS, "tpot": tpot_ms},
        num_gpu_blocks=record["kv_blocks"],
    )
    return outcome.slo_share


def for_the_explorer(rows: list[dict]) -> dict[str, dict]:
    """Take the simulations out of the rows; return those that the explorer shows where there is no vLLM, by name."""
    shown = {}
    for row in rows:
        simulation, version = row.pop("shown"), row.pop("version")
        if row["load"] in SHOWN:
            gpus = (
                f"{simulation['gpus']} × {simulation['gpu']}"
                if simulation["gpus"] > 1
                else simulation["gpu"]
            )
            title = f"{row['model']} on {gpus}: {row['load']}, {row['requests']} requests (vLLM {version})"
            shown[title] = {
                **json.loads(
                    json.dumps(simulation), parse_float=lambda text: float(f"{float(text):.4g}")
                )
            }
            shown[title] |= {
                "measured": {key: round(value, 1) for key, value in row["measured"].items()},
                "wall_s": 0,
            }
    return shown


def as_line(row: dict) -> str:
    cells = [
        f"{row['measured'][key]:,.1f} → {row['simulated'][key]:,.1f} ({row['off_percent'][key]:+.1f} %)"
        for key in GOALS
    ]
    return f"| {row['record']} ({FITTED.get(row['record'], 'nothing fitted')}) | {row['load']} | {' | '.join(cells)} |"


def table(rows: list[dict]) -> str:
    """Return the Markdown table that docs/simulate.md holds."""
    head = ["record", "load", "tokens/s", "TPOT p50, ms", "TPOT p95", "TTFT p50, ms", "TTFT p95"]
    lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * 5, *map(as_line, rows)]
    return "\n".join(lines)


def before_table(rows: list[dict]) -> str:
    """Return the table of what predictions/*.json, written before anybody measured, were off; the goals are above."""
    lines = [
        "| record | load | tokens/s | TPOT p50 | TPOT p95 | TTFT p50 | TTFT p95 |",
        "|---|---|" + "---:|" * 5,
    ]
    for row in rows:
        path = HERE / "predictions" / f"{row['record']}.json"
        if path.exists():
            predicted = json.loads(path.read_text())["predicted"][row["load"]]
            cells = [f"{(predicted[key] / row['measured'][key] - 1) * 100:+.1f} %" for key in GOALS]
            lines.append(f"| {row['record']} | {row['load']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def predict(model: str, gpu: str, out: Path, **options: object) -> None:
    """Write what the simulation says of a file of loads, before anybody measures it."""
    loads = []
    for path in options.pop("loads"):
        loads += json.loads(path.read_text())
    if only := options.pop("only"):
        loads = [load for load in loads if load["name"] in only.split(",")]
    p = plan(
        model,
        gpu,
        **{name: options[name] for name in options if name not in (*SERVERS, "zero_biases")},
    )
    servers, clock = (
        {name: options[name] for name in SERVERS},
        clock_of(p, zero_biases=options["zero_biases"]),
    )
    predicted = {
        load["name"]: figures(on_plan(p, arrivals_of(load), clock=clock, **servers))
        for load in loads
    }
    record = {
        "model": model,
        "gpu": gpu,
        **options,
        "kv_blocks": p.num_gpu_blocks,
        "predicted": predicted,
    }
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--predict", nargs=3, metavar=("MODEL", "GPU", "OUT"))
    parser.add_argument("-tp", "--tensor-parallel-size", type=int, default=1)
    parser.add_argument("-dp", "--data-parallel-size", type=int, default=1)
    parser.add_argument("--enable-expert-parallel", action="store_true")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--prefill-replicas", type=int, default=0)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction)
    parser.add_argument("--loads", type=Path, nargs="+", default=[HERE / "loads.json"])
    parser.add_argument("--only", help="names of loads, with commas")
    parser.add_argument("--vllm-version", default="0.32.0")
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--zero-biases", action="store_true", help="as loads.py has it")
    parser.add_argument("--quantization")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    options = vars(parser.parse_args())
    if case := options.pop("predict"):
        predict(*case[:2], Path(case[2]), **options)
        return
    rows = []
    for path in sorted(DATA.glob("records/*.json")):
        rows += compared(path.stem, json.loads(path.read_text()))
    RECORDED.write_text(json.dumps(for_the_explorer(rows), separators=(",", ":")) + "\n")
    (DATA / "comparison.json").write_text(json.dumps(rows, indent=1) + "\n")
    for sweep in SWEEPS.values():
        best = [max(shares, key=shares.get) for shares in shares_in_time(*sweep)]
        print(f"best measured and simulated: {', '.join(best)}", file=sys.stderr)
    DOCS.write_text(with_tables(DOCS.read_text(), loads=table(rows), before=before_table(rows)))


if __name__ == "__main__":
    main()

"""Figures that other people published (public_points.json) beside what the plan and the simulation say of them.

    python benchmarks/accuracy/public_points.py [--traces FOLDER] [--json] [--only TEXT]

Prints a Markdown table: point, load, figure, published, predicted, error in per cent. FOLDER is a checkout of
casys-kaist/LLMServingSim, whose lengths of requests are not copied here; without it those loads are left out.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.catalog.read import from_dict

from workshop.engine.exact import plan
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.load import on_plan
from workshop.simulate.report import Outcome, percentiles

POINTS = Path(__file__).with_name("public_points.json")


@dataclass(frozen=True)
class Row:
    """One published figure and ours."""

    point: str
    load: str
    figure: str
    published: float
    predicted: float

    @property
    def error_percent(self) -> float:
        return 100 * (self.predicted / self.published - 1)


def points() -> list[dict]:
    return json.loads(POINTS.read_text(encoding="utf-8"))["points"]


def gpu_of(point: dict) -> GPU:
    """Return the catalog's card, with the memory that the published log printed where it did."""
    gpu = load_gpu(point["gpu"])
    if "gpu_memory_gib" not in point:
        return gpu
    return replace(gpu, engine_bytes=int(point["gpu_memory_gib"] * 2**30))


def model_of(point: dict) -> ModelConfig:
    """Return a point's model, with what the published config.json has in another way than the catalog's."""
    model = load_model(point["model"])
    if "config" not in point:
        return model
    return from_dict({**model.raw, **point["config"]}, name=model.name)


def plan_of(point: dict, **changes: object) -> Plan:
    """Return our plan for a point's settings and its release."""
    options = {**point["plan"], **changes}
    return plan(model_of(point), gpu_of(point), vllm_version=point["vllm_version"], **options)


def arrivals_of(load: dict, traces: Path | None) -> list[Arrival]:
    """Return a load's requests: drawn, or read from the published rows."""
    if "trace" not in load:
        return drawn(
            burst=load["requests"], prompt=tuple(load["prompt"]), output=tuple(load["output"])
        )
    lines = (traces / load["trace"]).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    start_s = min(row["arrival_time"] for row in rows)
    arrivals = []
    for row in rows:
        arrival_s = row["arrival_time"] - start_s
        arrivals.append(Arrival(arrival_s, row["input_toks"], row["output_toks"]))
    return sorted(arrivals, key=lambda arrival: arrival.arrival_s)


def sent_in_turn(requests: list[Outcome], concurrency: int) -> list[Outcome]:
    """Return the outcomes with the times at which a client sends that has `concurrency` requests under way at most.

    All are in the engine's queue from the beginning, and it runs that many at a time: the order is the same.
    """
    ends = sorted(request.last_s for request in requests)
    sent = []
    for number, request in enumerate(requests):
        sent_s = ends[number - concurrency] if number >= concurrency else 0.0
        sent.append(replace(request, arrival_s=max(request.arrival_s, sent_s)))
    return sent


def figures(requests: list[Outcome]) -> dict[str, float]:
    """Return tokens/s, and TTFT and TPOT by percentile."""
    tokens = sum(request.output_tokens for request in requests)
    result = {"tokens_per_s": tokens / max(request.last_s for request in requests)}
    for measure in ("ttft", "tpot"):
        values = [getattr(request, f"{measure}_ms") for request in requests]
        for name, value in percentiles([value for value in values if value is not None]).items():
            if value is not None:
                result[f"{measure}_ms_{name}"] = value
    return result


def predicted(point: dict, load: dict, traces: Path | None) -> dict[str, float]:
    """Return our figures of one load of a point."""
    p = plan_of(point)
    if load.get("single_stream"):
        return {"tokens_per_s": p.single_stream_tokens_per_s}
    concurrency = load.get("concurrency")
    blocks = load.get("kv_cache_blocks", p.num_gpu_blocks)
    if concurrency:
        p = plan_of(point, max_num_seqs=concurrency)
    result = on_plan(p, arrivals_of(load, traces), num_gpu_blocks=blocks)
    requests = result.requests
    if concurrency:
        requests = sent_in_turn(requests, concurrency)
    return figures(requests)


def rows(traces: Path | None = None, only: str = "") -> list[Row]:
    """Return every published figure of speed that can be computed, with ours."""
    table = []
    for point in points():
        if only not in point["id"] or point["plan"] is None:
            continue
        for load in point["loads"]:
            if "trace" in load["load"] and traces is None:
                continue
            ours = predicted(point, load["load"], traces)
            for figure, published in load["measured"].items():
                table.append(Row(point["id"], load["name"], figure, published, ours[figure]))
    return table


def as_markdown(table: list[Row]) -> str:
    lines = [
        "| point | load | figure | published | predicted | error |",
        "|---|---|---|---:|---:|---:|",
    ]
    for row in table:
        lines.append(
            f"| {row.point} | {row.load} | {row.figure} | {row.published:,.1f} | {row.predicted:,.1f} "
            f"| {row.error_percent:+.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=Path, help="a checkout of casys-kaist/LLMServingSim")
    parser.add_argument("--only", default="", help="points whose name has this text")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table = rows(options.traces, options.only)
    if options.json:
        print(
            json.dumps(
                [{**vars(row), "error_percent": row.error_percent} for row in table], indent=1
            )
        )
    else:
        print(as_markdown(table))


if __name__ == "__main__":
    main()

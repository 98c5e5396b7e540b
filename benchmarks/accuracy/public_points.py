"""Plan and simulate what other people published (public_points.json), for docs/cards.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.catalog.read import from_dict

from workshop.engine.planning import plan
from workshop.simulate.arrivals import drawn
from workshop.simulate.load import on_plan
from workshop.simulate.report import Outcome, percentiles

POINTS = Path(__file__).with_name("public_points.json")


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


def predicted(point: dict, load: dict) -> dict[str, float]:
    """Return our figures of one load of a point that says how its requests are drawn."""
    p = plan_of(point)
    if load.get("single_stream"):
        return {"tokens_per_s": p.single_stream_tokens_per_s}
    concurrency = load.get("concurrency")
    blocks = p.num_gpu_blocks
    if concurrency:
        p = plan_of(point, max_num_seqs=concurrency)
    arrivals = drawn(
        burst=load["requests"], prompt=tuple(load["prompt"]), output=tuple(load["output"])
    )
    result = on_plan(p, arrivals, num_gpu_blocks=blocks)
    requests = result.requests
    if concurrency:
        requests = sent_in_turn(requests, concurrency)
    return figures(requests)

"""For notebooks 13 and 14: simulated loads as rows of a table, and two engines that share prompts.

Without vLLM the same calls return recorded answers, and say so. The recordings are made by
benchmarks/notebook_records.py.

>>> from workshop.course.notebooks import nb13
>>> load = nb13.handbooks(32, 6000, rate=8, seconds=20)
>>> len(load), load[0].pieces[0][1]
(174, 6000)
>>> nb13.toy().W1.shape                         # a small mixture of 8 experts
(8, 4, 6)
"""

import json
import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from workshop.client.client import Client
from workshop.course.exercises.sets.e13_scale_out import SERVICES, WAYS, toy
from workshop.course.notebooks import extra_servers
from workshop.course.topics import recorded_data
from workshop.engine.metrics import metrics_url
from workshop.engine.planning import plan
from workshop.home import private_folder
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.load import SERVERS, on_plan
from workshop.simulate.report import Simulation, parse_slo

__all__ = [
    "RECORDED_ENGINE_TOKENS",
    "SERVICES",
    "WAYS",
    "ask",
    "engines",
    "hand_over",
    "handbooks",
    "handed_over",
    "key_of_load",
    "key_of_steps",
    "simulated",
    "toy",
]

RECORDED = recorded_data.DATA / "scale_out.json"
RECORDED_ENGINE_TOKENS = 65_536  # KV cache of each of the notebook's two engines, by their log
SPREAD = "after the first requests"
SOURCES = {  # vLLM's label → ours
    "local_compute": "computed",
    "local_cache_hit": "from its own cache",
    "external_kv_transfer": "received",
}
TIMES = (("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50"), ("tpot", "p95"), ("itl", "p99"))


def handbooks(
    count: int, tokens: int, *, rate: float, seconds: float, seed: int = 1
) -> list[Arrival]:
    """Return questions of 50 to 200 tokens, each behind one of `count` handbooks.

    A handbook has `tokens` tokens. Each is as likely as the others.
    """
    load = drawn(rate=rate, seconds=seconds, prompt=(50, 200), output=(50, 150), seed=seed)
    chosen = random.Random(seed).choices(range(count), k=len(load))
    questions = []
    for arrival, number in zip(load, chosen, strict=True):
        question = replace(
            arrival,
            prompt_tokens=arrival.prompt_tokens + tokens,
            pieces=((f"handbook {number}", tokens),),
        )
        questions.append(question)
    return questions


def simulated(
    model: str, gpu: str, load: Sequence[Arrival], *, slo: str | None = None, **options
) -> dict[str, float | None]:
    """Return the simulation of this load in one row.

    The row has GPUs, waiting times, tokens/s, and the share of the requests within the SLO.

    Args:
        options: replicas, router and prefill_replicas, as workshop.simulate has them; all others
            are the plan's.
    """
    if not extra_servers.simulates():
        print("vLLM is not installed here: this row was simulated on another machine.")
        key = key_of_load(model, gpu, load, {"slo": slo, **options})
        return recorded_data.recorded(RECORDED, "simulated", key)
    servers = {}
    for name in SERVERS:
        if name in options:
            servers[name] = options.pop(name)
    p = plan(model, gpu, **options)
    return _row(on_plan(p, load, slo=parse_slo(slo), **servers), load)


def key_of_load(model: str, gpu: str, load: Sequence[Arrival], options: dict) -> str:
    """Return the name under which a simulated row is recorded."""
    prompt_tokens = 0
    output_tokens = 0
    prefixes = set()
    for arrival in load:
        prompt_tokens += arrival.prompt_tokens
        output_tokens += arrival.output_tokens
        for name, _ in arrival.pieces:
            prefixes.add(name)
    settings = []
    for name, value in sorted(options.items()):
        if value is not None:
            settings.append(f"{name}={value}")
    sizes = f"{len(load)} requests of {prompt_tokens} and {output_tokens} tokens"
    return ", ".join([model, gpu, f"{sizes}, {len(prefixes)} prefixes", *settings])


def _row(simulation: Simulation, load: Sequence[Arrival]) -> dict[str, float | None]:
    figures = simulation.to_dict()
    last_s = load[-1].arrival_s
    row: dict[str, float | None] = {
        "gpus": simulation.gpus,
        "requests": len(load),
        "requests_per_s": None,
        "prefix_hits_percent": 100 * figures["prefix_hit_rate"],
    }
    if last_s:
        row["requests_per_s"] = len(load) / last_s
    for name, part in TIMES:
        row[f"{name}_{part}_ms"] = figures[f"{name}_ms"][part]
    row["tokens_per_s"] = simulation.tokens_per_s
    if simulation.slo and simulation.slo_share is not None:
        row["within_limits_percent"] = 100 * simulation.slo_share
    for name, value in row.items():
        if value is not None:
            row[name] = round(value, 1)
    return row


def hand_over() -> tuple[str, str]:
    """Empty the folder of `handed_over`; return the flag for engines that share prompts there.

    The engines leave the KV cache of prompts in this folder for each other.
    """
    shutil.rmtree(handed_over())
    where = {"shared_storage_path": str(handed_over())}
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": where,
    }
    return "--kv-transfer-config", json.dumps(connector)


def handed_over() -> Path:
    """Return the folder in which they leave it."""
    return private_folder("run", "handed-over")


def engines(pair: Client | None) -> dict[str, dict[str, int]]:
    """Return how many requests each engine has answered, and the sources of prompt tokens."""
    if pair is None:
        return recorded_data.recorded(RECORDED, "engines", SPREAD)
    counts: dict[str, dict[str, int]] = {}
    page = pair.http.get(metrics_url(pair.url)).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            names = {
                "vllm:request_success_total": "requests",
                "vllm:prompt_tokens_by_source_total": SOURCES.get(sample.labels.get("source", "")),
            }
            name = names.get(sample.name)
            if name:
                zeros = dict.fromkeys(("requests", *SOURCES.values()), 0)
                of_engine = counts.setdefault(f"engine {sample.labels['engine']}", zeros)
                of_engine[name] += int(sample.value)
    return dict(sorted(counts.items()))


def ask(pair: Client | None, prompt: str, steps: Sequence[tuple[int, int]]) -> list[dict]:
    """Send a prompt once for each of `steps`; return a row for each answer.

    A step is (engine, max_tokens).
    """
    if pair is None:
        return recorded_data.recorded(RECORDED, "engines", key_of_steps(prompt, steps))
    rows = []
    for engine, max_tokens in steps:
        before, to = engines(pair)[f"engine {engine}"], {"X-data-parallel-rank": str(engine)}
        answer = pair.complete(prompt, max_tokens=max_tokens, temperature=0, extra_headers=to)
        after = engines(pair)[f"engine {engine}"]
        counts = {}
        for name in SOURCES.values():
            counts[name] = after[name] - before[name]
        rows.append(
            {"engine": engine, "max_tokens": max_tokens, **counts, "text": answer.choices[0].text}
        )
    return rows


def key_of_steps(prompt: str, steps: Sequence[tuple[int, int]]) -> str:
    """Return the name under which answers to a prompt are recorded."""
    return f"{prompt} {list(map(tuple, steps))}"

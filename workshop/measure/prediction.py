"""The simulated figures of a load, to stand beside the measured ones.

A server on this machine's CPU is simulated on a clock that is measured first; a server on GPUs on
the planner's clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workshop.client.client import Client
from workshop.measure import server_clock, timed
from workshop.measure.points import MEASURES, Figures, Load
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.report import Outcome, percentiles

GENERATIONS = 6  # of a closed loop: so many requests one after the other show what all others do

# requests in order of arrival → their outcomes in the same order
Simulate = Callable[[Sequence[Arrival]], list[Outcome]]


def on_this_machine(server: ServerRecord) -> Simulate:
    """Return a simulation of a CPU server: its clock is measured now, by a few requests.

    Raises WorkshopError: the server does not answer as vLLM does.
    """
    client = Client(server)
    served = client.models()[0]
    client.model = served["id"]
    clock = timed.run(server_clock.measure(client))
    rules = server_clock.rules(server, served["max_model_len"])

    def simulate(arrivals: Sequence[Arrival]) -> list[Outcome]:
        return process.run(rules, clock, arrivals)["requests"]

    return simulate


def on_gpus(model: str, gpu: str, options: dict[str, Any]) -> Simulate:
    """Return a simulation of a plan. options: of `plan`.

    Raises BadInput: the plan cannot be made, or does not fit.
    """
    from workshop.engine.exact import plan
    from workshop.simulate.load import on_plan

    planned = plan(model, gpu, **options)

    def simulate(arrivals: Sequence[Arrival]) -> list[Outcome]:
        return on_plan(planned, arrivals).requests

    return simulate


def predict(
    simulate: Simulate, load: Load, seed: int, limits: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the simulated figures of a load.

    They are tokens_per_s, goodput_per_s (None without limits), and summaries of ttft_ms, tpot_ms
    and e2el_ms. A summary has p50, p95, p99 and mean.

    Args:
        limits: of the SLO in ms by name (ttft, tpot, e2el).
    """
    if load.rate is not None:
        arrivals = _arrivals_at_rate(load, load.rate, seed)
    else:
        arrivals = _closed_loop(load, load.concurrency or 1)
    return figures_of(simulate(arrivals), limits or {})


def figures_of(outcomes: Sequence[Outcome], limits: Mapping[str, float]) -> dict[str, Any]:
    """Return tokens_per_s, goodput_per_s, and the percentiles of ttft_ms, tpot_ms and e2el_ms."""
    first_s = math.inf
    last_s = -math.inf
    tokens = 0
    for outcome in outcomes:
        first_s = min(first_s, outcome.arrival_s)
        last_s = max(last_s, outcome.last_s)
        tokens += outcome.output_tokens
    seconds = last_s - first_s
    result: dict[str, Any] = {
        "tokens_per_s": tokens / seconds,
        "goodput_per_s": goodput(outcomes, limits, seconds),
    }
    for name, figures in percentiles_of(outcomes).items():
        result[f"{name}_ms"] = figures
    return result


def percentiles_of(outcomes: Sequence[Outcome]) -> Figures:
    """Return p50, p95, p99 and mean of each measure, in ms."""
    figures: Figures = {}
    for name in MEASURES:
        times_ms: list[float] = []
        for outcome in outcomes:
            time_ms = getattr(outcome, f"{name}_ms")
            if time_ms is not None:  # an answer of one token has no tpot
                times_ms.append(time_ms)
        figures[name] = percentiles(times_ms)
    return figures


def goodput(
    outcomes: Sequence[Outcome], limits: Mapping[str, float], seconds: float
) -> float | None:
    """Return the requests a second that met the limits; None without limits."""
    if not limits:
        return None
    met = sum(outcome.meets(limits) for outcome in outcomes)
    return met / seconds


def _arrivals_at_rate(load: Load, rate: float, seed: int) -> list[Arrival]:
    """Return Poisson arrivals as vllm bench serve sends them.

    They are stretched so that they take requests ÷ rate seconds.
    """
    dice = random.Random(seed)
    times_s = []
    now_s = 0.0
    for _ in range(load.requests):
        now_s += dice.expovariate(rate)
        times_s.append(now_s)
    stretch = load.requests / rate / now_s
    arrivals = []
    for time_s in times_s:
        arrivals.append(Arrival(time_s * stretch, load.prompt_tokens, load.output_tokens))
    return arrivals


def _closed_loop(load: Load, concurrency: int) -> list[Arrival]:
    """Return requests of which the next is sent as soon as one is answered."""
    requests = min(load.requests, GENERATIONS * concurrency)
    return drawn(
        concurrency=min(concurrency, requests),
        requests=requests,
        prompt=(load.prompt_tokens, load.prompt_tokens),
        output=(load.output_tokens, load.output_tokens),
    )

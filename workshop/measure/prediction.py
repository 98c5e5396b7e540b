"""The simulated figures of a load, to stand beside the measured ones.

A server on this machine's CPU is simulated on a clock that is measured first; a server on GPUs on
the planner's clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workshop.client.client import Client
from workshop.measure import server_clock, timed
from workshop.measure.points import Load, goodput, percentiles_of
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival
from workshop.simulate.report import Outcome

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
    arrivals = load.arrivals(seed)
    if load.concurrency is not None:
        arrivals = arrivals[: GENERATIONS * load.concurrency]
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

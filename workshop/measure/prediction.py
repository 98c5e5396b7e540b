"""Simulations of a server, whose figures stand beside the measured ones.

A server on this machine's CPU is simulated on a clock that is measured first; a server on GPUs on
the planner's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workshop.client.client import Client
from workshop.measure import server_clock, timed
from workshop.measure.points import Simulate
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival
from workshop.simulate.report import Outcome


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
    from workshop.engine.planning import plan
    from workshop.simulate.load import on_plan

    planned = plan(model, gpu, **options)

    def simulate(arrivals: Sequence[Arrival]) -> list[Outcome]:
        return on_plan(planned, arrivals).requests

    return simulate

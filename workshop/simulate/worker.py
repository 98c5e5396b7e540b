"""`python -m workshop.simulate.worker`: simulations in a process of its own, which alone loads vLLM.

Reads a job a line (JSON, as `load.py` makes it) and answers each with a line. The process stays for the next job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import asdict
from math import inf

from workshop.engine.trace_writer import line, name_of
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival, prompts
from workshop.simulate.clock import Clock, Layers
from workshop.simulate.engine import Rules, Step
from workshop.simulate.replica import Replica

POINTS = 200  # of what is shown over time
CROWDED, CROWDED_REQUESTS = (
    1.5,
    4,
)  # its home is passed over where it has so many times the idlest's requests, and so many more


def run(job: dict) -> dict:
    """Return what became of every request, and the engines' state over time."""
    began = time.perf_counter()
    rules = Rules(**{**job["rules"], "groups": tuple(map(tuple, job["rules"]["groups"]))})
    clock = Clock(**{**job["clock"], "attention": tuple(Layers(**kind) for kind in job["clock"]["attention"])})
    arrivals = [Arrival(*row) for row in job["arrivals"]]
    with ExitStack() as files:
        watch = Watch()
        replicas = [Replica(rules, clock, watch.seen) for _ in range(job["replicas"])]
        if job["steps"]:
            for number, each in enumerate(replicas):
                file = files.enter_context(open(name_of(job["steps"], number), "w", encoding="utf-8"))
                each.engine.trace(lambda said, file=file: file.write(line(said)), lambda each=each: each.ended_s)
        homes: dict[str, Replica] = {}
        for number, (one, prompt) in enumerate(zip(arrivals, prompts(arrivals), strict=True)):
            for each in replicas:
                each.advance(one.arrival_s + clock.way_in_s)
            route(job["router"], replicas, number, one, homes).add(
                str(number), one.arrival_s, prompt, one.output_tokens
            )
        for each in replicas:
            each.advance(inf)
            each.engine.update(each.engine.schedule())  # an empty step, in which the last blocks are given back
    requests = {name: one for each in replicas for name, one in each.requests.items()}
    return {
        "requests": [asdict(requests[str(number)]) for number in range(len(arrivals))],
        "gaps_s": [round(gap, 6) for each in replicas for gap in each.gaps_s],
        "steps": watch.steps,
        "over_time": watch.over_time(),
        "kv_cache_usage_max": watch.most_usage,
        "wall_s": time.perf_counter() - began,
    }


class Watch:
    """Notes the state after each step."""

    def __init__(self):
        self.steps, self.most_usage = 0, 0.0
        self._states: dict[Replica, list[tuple[float, int, int, float]]] = {}

    def seen(self, replica: Replica, step: Step, end_s: float) -> None:
        self.most_usage = max(self.most_usage, step.kv_cache_usage)
        self._states.setdefault(replica, []).append((end_s, step.running, step.waiting, step.kv_cache_usage))
        self.steps += 1

    def over_time(self) -> dict[str, list]:
        """Return POINTS evenly spaced states: sums over the replicas, and the fullest KV cache."""
        end_s = max(states[-1][0] for states in self._states.values())
        at = [end_s * point / POINTS for point in range(1, POINTS + 1)]
        rows = [[states[max(0, bisect_right(states, (t, inf)) - 1)] for states in self._states.values()] for t in at]
        return {
            "t_s": [round(t, 4) for t in at],
            "running": [sum(running for _, running, _, _ in row) for row in rows],
            "waiting": [sum(waiting for _, _, waiting, _ in row) for row in rows],
            "kv_cache_usage": [max(usage for *_, usage in row) for row in rows],
        }


def route(router: str, replicas: list[Replica], number: int, one: Arrival, homes: dict[str, Replica]) -> Replica:
    """Return who takes the request. homes: prefix → the replica that has it in its cache."""
    if router == "round-robin":
        return replicas[number % len(replicas)]
    idlest = min(replicas, key=lambda replica: replica.engine.unfinished)
    if router == "least-busy" or not one.prefix:
        return idlest
    home = homes.get(one.prefix, idlest)
    if home.engine.unfinished > CROWDED * idlest.engine.unfinished + CROWDED_REQUESTS:
        home = idlest
    homes[one.prefix] = home
    return home


def main() -> None:
    """Answer jobs until the input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for said in sys.stdin:
        try:
            answer = run(json.loads(said))
        except WorkshopError as error:
            answer = {"error": error.message, "remedy": error.remedy}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

"""`python -m workshop.simulate.worker`: simulations in a process of its own, which alone loads vLLM.

Reads a job a line (JSON, as `load.py` makes it) and answers each with a line. The process stays for the next job.
"""

from __future__ import annotations

import json
import os
import sys
import time
from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import asdict
from itertools import cycle
from math import inf
from typing import TextIO

from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival, prompts
from workshop.simulate.clock import Clock, Layers
from workshop.simulate.engine import Rules, Step
from workshop.simulate.replica import Replica

POINTS = 200  # of what is shown over time
CROWDED, CROWDED_REQUESTS = (
    1.5,
    4,
)  # a replica that has the prefix is passed over above so many times the idlest's, plus


def run(job: dict) -> dict:
    """Return what became of every request, and the engines' state over time."""
    began = time.perf_counter()
    rules = Rules(**{**job["rules"], "groups": tuple(map(tuple, job["rules"]["groups"]))})
    clock = Clock(**{**job["clock"], "attention": tuple(Layers(**kind) for kind in job["clock"]["attention"])})
    arrivals = [Arrival(*row) for row in job["arrivals"]]
    with open(job["steps"], "w", encoding="utf-8") if job["steps"] else nullcontext() as file:
        watch = Watch(file, rules.max_num_batched_tokens)
        replicas = [Replica(rules, clock, watch.seen, file is not None) for _ in range(job["replicas"])]
        route = ROUTERS[job["router"]](replicas)
        for number, (one, prompt) in enumerate(zip(arrivals, prompts(arrivals), strict=True)):
            for each in replicas:
                each.advance(one.arrival_s + clock.way_in_s)
            route(one).add(str(number), one.arrival_s, prompt, one.output_tokens)
        for each in replicas:
            each.advance(inf)
    times = {name: each for replica in replicas for name, each in replica.times.items()}
    return {
        "requests": [asdict(times[str(number)]) for number in range(len(arrivals))],
        "gaps_s": [round(gap, 6) for each in replicas for gap in each.gaps_s],
        "steps": watch.steps,
        "over_time": watch.over_time(),
        "kv_cache_usage_max": watch.most_usage,
        "wall_s": time.perf_counter() - began,
    }


class Watch:
    """Notes the state after each step, and writes the steps if a file is given."""

    def __init__(self, file: TextIO | None, budget: int):
        self._file, self._budget = file, budget
        self.steps, self.most_usage = 0, 0.0
        self._states: dict[Replica, list[tuple[float, int, int, float]]] = {}
        self._held: dict[str, int] = {}

    def seen(self, replica: Replica, step: Step, end_s: float) -> None:
        self.most_usage = max(self.most_usage, step.kv_cache_usage)
        self._states.setdefault(replica, []).append((end_s, step.running, step.waiting, step.kv_cache_usage))
        if self._file:
            self._file.write(json.dumps(self._line(replica, step, end_s)) + "\n")
        self.steps += 1

    def _line(self, replica: Replica, step: Step, end_s: float) -> dict:
        """Return the step in the form that `serve --trace` has. blocks, taken, freed are numbers of blocks."""
        rows = []
        for name, new, before, _ in step.work:
            prefill = max(0, min(new, replica.times[name].prompt_tokens - before))
            rows.append(
                {
                    "id": name,
                    "prefill_tokens": prefill,
                    "decode_tokens": new - prefill,
                    "computed_tokens": before,
                    "prefix_hit_tokens": step.hits.get(name, 0),
                    "drafted": 0,
                    "accepted": 0,
                    "blocks": step.blocks[name],
                }
            )
        freed = sum(self._held.pop(name, 0) for name in (*step.finished, *step.preempted))
        taken = sum(blocks - self._held.get(name, 0) for name, blocks in step.blocks.items())
        self._held |= step.blocks
        return {
            "step": self.steps,
            "time_s": round(end_s, 6),
            "budget": self._budget,
            "kv_cache_usage": step.kv_cache_usage,
            "requests": rows,
            "taken": taken,
            "freed": freed,
            "preempted": step.preempted,
        }

    def over_time(self) -> dict[str, list]:
        """Return POINTS evenly spaced states: sums over the replicas, and the fullest KV cache."""
        end_s = max((states[-1][0] for states in self._states.values()), default=0.0)
        at = [end_s * point / POINTS for point in range(POINTS + 1)]
        rows = []
        for t in at:
            now = []
            for states in self._states.values():
                index = bisect_right(states, (t, inf)) - 1
                now.append(states[index][1:] if index >= 0 else (0, 0, 0.0))
            rows.append((sum(n[0] for n in now), sum(n[1] for n in now), max((n[2] for n in now), default=0.0)))
        running, waiting, usage = map(list, zip(*rows, strict=True))
        return {"t_s": [round(t, 4) for t in at], "running": running, "waiting": waiting, "kv_cache_usage": usage}


class RoundRobin:
    """One replica after the other."""

    def __init__(self, replicas: list[Replica]):
        self.replicas, self._turn = replicas, cycle(replicas)

    def __call__(self, one: Arrival) -> Replica:
        return next(self._turn)


class LeastBusy(RoundRobin):
    """The replica with the fewest unfinished requests."""

    def __call__(self, one: Arrival) -> Replica:
        return min(self.replicas, key=lambda replica: replica.engine.unfinished)


class ByPrefix(LeastBusy):
    """The replica that has the prefix in its cache, unless it is much busier than the idlest."""

    def __init__(self, replicas: list[Replica]):
        super().__init__(replicas)
        self._homes: dict[str | None, Replica] = {}

    def __call__(self, one: Arrival) -> Replica:
        idlest = super().__call__(one)
        home = self._homes.get(one.prefix, idlest) if one.prefix else idlest
        if home.engine.unfinished > CROWDED * idlest.engine.unfinished + CROWDED_REQUESTS:
            home = idlest
        self._homes[one.prefix] = home
        return home


ROUTERS = {"round-robin": RoundRobin, "least-busy": LeastBusy, "prefix": ByPrefix}


def main() -> None:
    """Answer jobs until the input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = run(json.loads(line))
        except WorkshopError as error:
            answer = {"error": error.message, "remedy": error.remedy}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

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
from dataclasses import asdict, replace
from math import inf

from workshop.engine.trace_writer import line, name_of
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival, prompts
from workshop.simulate.clock import Clock, Layers
from workshop.simulate.engine import Rules, Step
from workshop.simulate.replica import Replica
from workshop.simulate.report import Outcome

POINTS = 200  # of what is shown over time
CROWDED, CROWDED_REQUESTS = 1.5, 4  # a home is passed over at so many times the idlest's requests, and so many more


def run(job: dict) -> dict:
    """Return what became of every request, and the engines' state over time."""
    began = time.perf_counter()
    rules = Rules(**{**job["rules"], "groups": tuple(map(tuple, job["rules"]["groups"]))})
    clock = Clock(**{**job["clock"], "attention": tuple(Layers(**kind) for kind in job["clock"]["attention"])})
    arrivals = [Arrival(*row) for row in job["arrivals"]]
    with ExitStack() as files:
        house = House(job["router"], job["steps"], clock, files)
        if apart := job.get("prefill"):
            first = house.serve(rules, apart["replicas"], [replace(one, output_tokens=1) for one in arrivals])
            sent_s = [apart["wait_s"] + one.prompt_tokens * apart["token_s"] for one in arrivals]
            came = zip(arrivals, first, sent_s, strict=True)
            moved = [replace(one, arrival_s=read.last_s + more_s) for one, read, more_s in came]
            house.gaps_s.clear()
            found = house.serve(replace(rules, prefilled=True), job["replicas"], moved)
            for one, read in zip(found, first, strict=True):
                one.arrival_s, one.hit_tokens = read.arrival_s, read.hit_tokens
                one.preempted += read.preempted
        else:
            found = house.serve(rules, job["replicas"], arrivals)
    return {
        "requests": [asdict(one) for one in found],
        "gaps_s": [round(gap, 6) for gap in house.gaps_s],
        "steps": house.watch.steps,
        "over_time": house.watch.over_time(),
        "kv_cache_usage_max": house.watch.most_usage,
        "wall_s": time.perf_counter() - began,
    }


class House:
    """All replicas of a job: those that answer, and before them those that only read prompts."""

    def __init__(self, router: str, steps: str | None, clock: Clock, files: ExitStack):
        self.router, self.steps, self.clock, self.files = router, steps, clock, files
        self.watch, self.traces, self.gaps_s = Watch(), 0, []

    def replica(self, rules: Rules) -> Replica:
        made = Replica(rules, self.clock, self.watch.seen)
        if self.steps:
            file = open(name_of(self.steps, self.traces), "wb")  # noqa: SIM115      in `files`
            self.files.enter_context(file)
            made.engine.trace(lambda said: file.write(line(said)), lambda: made.ended_s)
            self.traces += 1
        return made

    def serve(self, rules: Rules, count: int, arrivals: list[Arrival]) -> list[Outcome]:
        """Return what became of these requests on `count` new replicas."""
        replicas, homes = [self.replica(rules) for _ in range(count)], {}
        tokens = prompts(arrivals)
        for turn, number in enumerate(sorted(range(len(arrivals)), key=lambda i: arrivals[i].arrival_s)):
            one = arrivals[number]
            for each in replicas:
                each.advance(one.arrival_s + self.clock.way_in_s)
            chosen = route(self.router, replicas, turn, one, homes)
            chosen.add(str(number), one.arrival_s, tokens[number], one.output_tokens)
        for each in replicas:
            each.advance(inf)
            each.engine.update(each.engine.schedule())  # an empty step, in which the last blocks are given back
            self.gaps_s += each.gaps_s
            self.watch.ended(each)
        requests = {name: one for each in replicas for name, one in each.requests.items()}
        return [requests[str(number)] for number in range(len(arrivals))]


class Watch:
    """Notes the state after each step."""

    def __init__(self):
        self.steps, self.most_usage = 0, 0.0
        self._states: dict[Replica, list[tuple[float, int, int, float]]] = {}

    def seen(self, replica: Replica, step: Step, end_s: float) -> None:
        self.most_usage = max(self.most_usage, step.kv_cache_usage)
        states = self._states.setdefault(replica, [(0.0, 0, 0, 0.0)])
        states.append((end_s, step.running, step.waiting, step.kv_cache_usage))
        self.steps += 1

    def ended(self, replica: Replica) -> None:
        self._states.setdefault(replica, []).append((replica.ended_s, 0, 0, 0.0))

    def over_time(self) -> dict[str, list]:
        """Return POINTS evenly spaced states: sums over the replicas, and the fullest KV cache."""
        end_s = max(states[-1][0] for states in self._states.values())
        at = [end_s * point / POINTS for point in range(1, POINTS + 1)]
        rows = [[states[bisect_right(states, (t, inf)) - 1] for states in self._states.values()] for t in at]
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

"""`python -m workshop.simulate.worker`: simulations in a process of its own, which alone loads vLLM.

Reads jobs (as `process.py` makes them) and answers each. The process stays for the next job.
"""

import os
import pickle
import sys
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge
from itertools import accumulate
from math import inf

from workshop.engine.trace_writer import line
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival, compact_prompt, refuse_large
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Rules, Step
from workshop.simulate.replica import Replica
from workshop.simulate.report import Outcome

POINTS = 200  # of what is shown over time
EVERY_S = 0.2  # what is known so far is told, where somebody watches
SHOWN_STEPS = 60  # in a row: those that hold the most tokens
# a home is passed over at so many times the idlest's requests, and so many more
CROWDED, CROWDED_REQUESTS = 1.5, 4


class Stopped(Exception):
    """Whoever watches wants no more of this job."""


def run(job: dict, tell: Callable[[dict], None] | None = None) -> dict:
    """Return what became of every request, and the engines' state over time.

    job: rules, clock, arrivals, replicas, engines (of a replica, that share experts), router, steps (a file for
        each engine, or None), prefill (replicas that only read prompts, wait_s and token_s until a KV cache has arrived, or None).
    tell: is given what is known so far.
    """
    rules, arrivals = job["rules"], job["arrivals"]
    with ExitStack() as files:
        house = House(job, files, tell)
        if apart := job["prefill"]:
            first = house.serve(
                rules, apart["replicas"], [replace(one, output_tokens=1) for one in arrivals]
            )
            sent_s = [apart["wait_s"] + one.prompt_tokens * apart["token_s"] for one in arrivals]
            came = zip(arrivals, first, sent_s, strict=True)
            moved = [replace(one, arrival_s=read.last_s + more_s) for one, read, more_s in came]
            house.gaps_s = array("d")
            found = house.serve(replace(rules, prefilled=True), job["replicas"], moved)
            for one, read in zip(found, first, strict=True):
                one.arrival_s, one.hit_tokens = read.arrival_s, read.hit_tokens
                one.preempted += read.preempted
        else:
            found = house.serve(rules, job["replicas"], arrivals)
    return house.answer(found)


class House:
    """All replicas of a job: those that answer, and before them those that only read prompts."""

    def __init__(self, job: dict, files: ExitStack, tell: Callable | None):
        self.job, self.files, self.tell = job, files, tell
        self.clock: Clock = job["clock"]
        self.traces, self.gaps_s, self.replicas = 0, array("d"), []
        self.watch, self.began = Watch(self.look if tell else None), time.perf_counter()
        self.told = 0.0

    def replica(self, rules: Rules) -> Replica:
        made = Replica(rules, self.clock, self.watch.seen, self.job["engines"])
        self.replicas.append(made)
        for engine in made.engines if self.job["steps"] else ():
            file = self.files.enter_context(open(self.job["steps"][self.traces], "wb"))  # noqa: SIM115      in `files`
            engine.trace(lambda said, file=file: file.write(line(said)), lambda: made.ended_s)
            self.traces += 1
        return made

    def answer(self, found: list[Outcome]) -> dict:
        return {
            "requests": found,
            "gaps_s": array("d", (round(gap, 6) for gap in self.gaps_s)),
            "steps": self.watch.steps,
            "over_time": self.watch.over_time(),
            "busiest": self.watch.busiest(),
            "kv_cache_usage_max": self.watch.most_usage,
            "wall_s": time.perf_counter() - self.began,
        }

    def look(self) -> None:
        """Tell what is known so far, now and then."""
        known = [
            one for each in self.replicas for one in each.requests.values() if one.output_tokens
        ]
        if known and time.perf_counter() > self.told + EVERY_S:
            self.tell(self.answer(known))
            self.told = time.perf_counter()

    def serve(self, rules: Rules, count: int, arrivals: list[Arrival]) -> list[Outcome]:
        """Return what became of these requests on `count` new replicas."""
        replicas, homes = [self.replica(rules) for _ in range(count)], {}
        prefixes: dict[str, int] = {}
        for turn, number in enumerate(
            sorted(range(len(arrivals)), key=lambda i: arrivals[i].arrival_s)
        ):
            one = arrivals[number]
            for each in replicas:
                each.advance(one.arrival_s + self.clock.way_in_s)
            chosen = route(self.job["router"], replicas, turn, one, homes)
            refuse_large(
                sum(each.held_tokens for each in replicas),
                sum(each.unfinished for each in replicas),
                one,
            )
            chosen.add(
                str(number), one.arrival_s, compact_prompt(one, number, prefixes), one.output_tokens
            )
        for each in replicas:
            each.advance(inf)
            each.end()
            self.gaps_s += each.gaps_s
            self.watch.ended(each)
        requests = {name: one for each in replicas for name, one in each.requests.items()}
        return [requests[str(number)] for number in range(len(arrivals))]


class States:
    """What a replica's steps were like, one after the other; millions of steps take little memory."""

    WIDTH = 4  # numbers of a step: when it began, running, waiting, KV cache usage

    def __init__(self):
        self._numbers = array("d")

    def add(self, began_s: float, running: int, waiting: int, usage: float) -> None:
        self._numbers.extend((began_s, running, waiting, usage))

    @property
    def last_s(self) -> float:
        return self._numbers[-self.WIDTH]

    def of(self, number: int) -> Iterator[tuple[float, int, tuple[int, int, float]]]:
        """Yield (when, number, state) of each step."""
        for at in range(0, len(self._numbers), self.WIDTH):
            began_s, running, waiting, usage = self._numbers[at : at + self.WIDTH]
            yield began_s, number, (int(running), int(waiting), usage)


class Watch:
    """Notes the state of each step. look: is called then; with it, the steps of the first replica are kept."""

    def __init__(self, look: Callable[[], None] | None):
        self.steps, self.most_usage, self._look, self._drawn = 0, 0.0, look, []
        self._states: dict[Replica, States] = {}

    def seen(self, replica: Replica, steps: list[Step], end_s: float) -> None:
        usage = max(step.kv_cache_usage for step in steps)
        self.most_usage = max(self.most_usage, usage)
        running, waiting = sum(step.running for step in steps), sum(step.waiting for step in steps)
        self._states.setdefault(replica, States()).add(steps[0].began_s, running, waiting, usage)
        self.steps += 1
        if self._look:
            if replica is next(iter(self._states)):
                self._drawn.append((steps[0].began_s, end_s, *replica.tokens_of(steps)))
            self._look()

    def busiest(self) -> list[tuple[float, float, int, int]]:
        """Return (begin, end in s, prompt tokens, tokens of answers) of SHOWN_STEPS steps in a row, of one replica."""
        sums = list(
            accumulate((prefill + decode for *_, prefill, decode in self._drawn), initial=0)
        )
        starts = range(max(1, len(self._drawn) - SHOWN_STEPS + 1))
        at = max(starts, key=lambda i: sums[min(i + SHOWN_STEPS, len(sums) - 1)] - sums[i])
        return self._drawn[at : at + SHOWN_STEPS]

    def ended(self, replica: Replica) -> None:
        self._states.setdefault(replica, States()).add(replica.ended_s, 0, 0, 0.0)

    def over_time(self) -> dict[str, list]:
        """Return POINTS spans, each by its state with the most requests: sums over the replicas, the fullest KV cache."""
        end_s = max(states.last_s for states in self._states.values())
        moments = merge(*(states.of(number) for number, states in enumerate(self._states.values())))
        moment = next(moments, None)
        now, most, rows = [(0, 0, 0.0)] * len(self._states), (0, 0, 0, 0.0), []
        times = [round(end_s * point / POINTS, 4) for point in range(1, POINTS + 1)]
        for until_s in times:
            span = [most]
            while moment and moment[0] <= until_s:
                now[moment[1]] = moment[2]
                running, waiting, usage = zip(*now, strict=True)
                most = (sum(running) + sum(waiting), sum(running), sum(waiting), max(usage))
                span.append(most)
                moment = next(moments, None)
            rows.append(max(span))
        _, *columns = map(list, zip(*rows, strict=True))
        return dict(
            zip(("t_s", "running", "waiting", "kv_cache_usage"), (times, *columns), strict=True)
        )


def route(
    router: str, replicas: list[Replica], number: int, one: Arrival, homes: dict[str, Replica]
) -> Replica:
    """Return who takes the request. homes: prefix → the replica that has it in its cache."""
    if router == "round-robin":
        return replicas[number % len(replicas)]
    idlest = min(replicas, key=lambda replica: replica.unfinished)
    if router == "least-busy" or not one.prefix:
        return idlest
    home = homes.get(one.prefix, idlest)
    if home.unfinished > CROWDED * idlest.unfinished + CROWDED_REQUESTS:
        home = idlest
    homes[one.prefix] = home
    return home


def main() -> None:
    """Answer jobs until the input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def say(answer: object) -> None:
        pickle.dump(answer, answers)
        answers.flush()

    def tell(known: dict) -> None:
        say({"so_far": known})
        if not pickle.load(sys.stdin.buffer):
            raise Stopped

    while sys.stdin.buffer.peek(1):
        job = pickle.load(sys.stdin.buffer)
        try:
            say(run(job, tell if job["watched"] else None))
        except WorkshopError as error:
            say(error)
        except OSError as error:
            say(
                WorkshopError(
                    f"The steps cannot be written: {error.strerror or error}.",
                    "Give --steps another file.",
                )
            )
        except Stopped:
            say(None)


if __name__ == "__main__":
    main()

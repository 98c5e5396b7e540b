"""Runs simulations in the one process that loads vLLM: `python -m workshop.simulate.worker`.

The process reads jobs from its input (`process.py` writes them), answers each, and waits for the
next.
"""

import io
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from heapq import heapify, heappop, heappush, merge
from math import inf
from typing import Any

from workshop.engine.trace_writer import line
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import NEXT_ANSWER, Arrival, SimulatedTexts
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Rules, ScheduledStep
from workshop.simulate.replica import Replica
from workshop.simulate.report import Outcome
from workshop.worker_process import Channel, Pickles

POINTS = 200  # of the curves over time
SLICE_S = 0.005  # that servers run on while a client may send its next request
# The prefix router leaves a prefix's home when it has more requests than CROWDED times those of the
# idlest replica, plus CROWDED_REQUESTS.
CROWDED = 1.5
CROWDED_REQUESTS = 4

Answer = dict[str, Any]


def run(job: dict[str, Any]) -> Answer:
    """Simulate a job; return the outcome of every request, and the state of the engines over time.

    Args:
        job: rules, clock, arrivals, replicas, engines (those of one replica, which share experts),
            router, steps (a file for each engine, or None), prefill (None, or replicas that only
            prefill, with wait_s and token_s: the seconds that a request's KV cache travels, and
            each token of it).
    """
    rules = job["rules"]
    with ExitStack() as files:
        cluster = Cluster(job, files)
        if job["prefill"]:
            outcomes = _disaggregated(cluster, job)
        else:
            outcomes = cluster.serve(rules, job["replicas"], job["arrivals"])
    return cluster.answer(outcomes)


def _disaggregated(cluster: "Cluster", job: dict[str, Any]) -> list[Outcome]:
    """Serve the requests by disaggregated prefill: some replicas prefill, the others decode."""
    rules = job["rules"]
    arrivals = job["arrivals"]
    prefill = job["prefill"]
    prompts = [replace(arrival, output_tokens=1) for arrival in arrivals]
    prefilled = cluster.serve(rules, prefill["replicas"], prompts)
    transferred = []
    for arrival, outcome in zip(arrivals, prefilled, strict=True):
        transfer_s = prefill["wait_s"] + arrival.prompt_tokens * prefill["token_s"]
        transferred.append(replace(arrival, arrival_s=outcome.last_s + transfer_s))
    cluster.gaps_s = array("d")
    outcomes = cluster.serve(replace(rules, prefilled=True), job["replicas"], transferred)
    for outcome, before in zip(outcomes, prefilled, strict=True):
        outcome.arrival_s = before.arrival_s
        outcome.hit_tokens = before.hit_tokens
        outcome.preempted += before.preempted
    return outcomes


class Cluster:
    """All replicas of a job: those that decode, and those that only prefill (disaggregated)."""

    def __init__(self, job: dict[str, Any], files: ExitStack):
        self.job = job
        self.files = files
        self.clock: Clock = job["clock"]
        self.gaps_s = array("d")
        self.watch = Watch()
        self._began_s = time.perf_counter()
        self._traces = 0

    def replica(self, rules: Rules) -> Replica:
        """Add a replica; its engines write their steps where the job names files."""
        replica = Replica(rules, self.clock, self.watch.seen, self.job["engines"])
        if not self.job["steps"]:
            return replica
        for engine in replica.engines:
            file = self.files.enter_context(open(self.job["steps"][self._traces], "wb"))  # noqa: SIM115      in `files`
            engine.trace(_writer(file), lambda: replica.ended_s)
            self._traces += 1
        return replica

    def answer(self, outcomes: list[Outcome]) -> Answer:
        """Return these outcomes, and what was recorded of the steps."""
        return {
            "requests": outcomes,
            "gaps_s": array("d", (round(gap, 6) for gap in self.gaps_s)),
            "steps": self.watch.steps,
            "over_time": self.watch.over_time(),
            "kv_cache_usage_max": self.watch.most_usage,
            "wall_s": time.perf_counter() - self._began_s,
        }

    def serve(self, rules: Rules, count: int, arrivals: list[Arrival]) -> list[Outcome]:
        """Return the outcomes of these requests on `count` new replicas, in their order."""
        replicas = [self.replica(rules) for _ in range(count)]
        homes: dict[str, Replica] = {}
        texts = SimulatedTexts(arrivals)
        queue = EngineQueue(arrivals)
        turn = 0
        now_s = 0.0
        while queue:
            busy = any(replica.unfinished for replica in replicas)
            now_s = queue.next_s(now_s, busy)
            closed_loop = queue.is_closed_loop
            until_s = self.clock.arrives_s(now_s, queue.prompt_tokens(now_s))
            for replica in replicas:
                replica.advance(until_s, to_an_end=closed_loop)
            first_end_s = self._note_ends(replicas, queue)
            if closed_loop and first_end_s < now_s:
                now_s = first_end_s
                continue  # the next request is sent then, before the servers run on
            number = queue.pop(now_s)
            if number is None:
                continue
            arrival = queue.arrivals[number]
            home = route(self.job["router"], replicas, turn, arrival, homes)
            turn += 1
            prompt = texts.prompt(arrival, number)
            home.add(
                str(number),
                arrival.arrival_s,
                prompt,
                arrival.output_tokens,
                texts.answer_token(arrival),
            )
        outcomes: dict[str, Outcome] = {}
        for replica in replicas:
            replica.advance(inf)
            replica.end()
            self.gaps_s += replica.gaps_s
            self.watch.ended(replica)
            outcomes |= replica.requests
        return [outcomes[str(number)] for number in range(len(arrivals))]

    @staticmethod
    def _note_ends(replicas: list[Replica], queue: "EngineQueue") -> float:
        """Tell the queue which answers have ended, so that their clients go on.

        Returns when the first of them ended; infinity without one.
        """
        first_s = inf
        for replica in replicas:
            for name in replica.ended:
                end_s = replica.requests[name].last_s
                queue.ended(int(name), end_s)
                first_s = min(first_s, end_s)
            replica.ended.clear()
        return first_s


class EngineQueue:
    """The requests that were not sent yet, in their order, with their times as far as known.

    One that follows an answer gets its time when that answer has ended. In a closed loop, each
    answer that ends gives the next request its time.
    """

    def __init__(self, arrivals: list[Arrival]):
        self.arrivals = list(arrivals)
        self._times: list[tuple[float, int]] = []
        self._followers: dict[int, list[int]] = {}
        self._next: deque[int] = deque()  # of a closed loop
        for number, arrival in enumerate(arrivals):
            if arrival.follows is None:
                self._times.append((arrival.arrival_s, number))
            elif arrival.follows == NEXT_ANSWER:
                self._next.append(number)
            else:
                self._followers.setdefault(arrival.follows, []).append(number)
        heapify(self._times)

    def __bool__(self) -> bool:
        return bool(self._times or self._followers or self._next)

    @property
    def is_closed_loop(self) -> bool:
        """True while a client waits for any answer, to send the next request."""
        return bool(self._next)

    def next_s(self, now_s: float, busy: bool) -> float:
        """Return until when servers can run: to the next request, or SLICE_S if one may come."""
        slice_s = now_s + SLICE_S
        if not self._times:
            return slice_s
        if not (self._followers or self._next) or not busy:
            return self._times[0][0]
        return min(self._times[0][0], slice_s)

    def ended(self, number: int, end_s: float) -> None:
        """Give the requests that follow this answer their times."""
        followers = self._followers.pop(number, [])
        if self._next:
            followers.append(self._next.popleft())
        for follower in followers:
            arrival = self.arrivals[follower]
            arrival = replace(arrival, arrival_s=end_s + arrival.think_s)
            self.arrivals[follower] = arrival
            heappush(self._times, (arrival.arrival_s, follower))

    def prompt_tokens(self, now_s: float) -> int:
        """Return the tokens of the next request's prompt if its time has come, else 0."""
        if self._times and self._times[0][0] <= now_s:
            return self.arrivals[self._times[0][1]].prompt_tokens
        return 0

    def pop(self, now_s: float) -> int | None:
        """Return the number of the next request whose time has come, or None."""
        if self._times and self._times[0][0] <= now_s:
            return heappop(self._times)[1]
        return None


def _writer(file: io.BufferedWriter) -> Callable[[dict], None]:
    """Return a function that writes one step of a trace as a line of this file."""

    def write(step: dict) -> None:
        file.write(line(step))

    return write


class WorkerStates:
    """The states of a replica's steps in order, in an array, as millions would fill the memory."""

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
    """Records the state of each step."""

    def __init__(self):
        self.steps = 0
        self.most_usage = 0.0
        self._states: dict[Replica, WorkerStates] = {}

    def seen(self, replica: Replica, steps: list[ScheduledStep]) -> None:
        """Record one step: one ScheduledStep of each engine of the replica."""
        usage = max(step.kv_cache_usage for step in steps)
        self.most_usage = max(self.most_usage, usage)
        running = 0
        waiting = 0
        for step in steps:
            running += step.running
            waiting += step.waiting
        began_s = steps[0].began_s
        self._states.setdefault(replica, WorkerStates()).add(began_s, running, waiting, usage)
        self.steps += 1

    def ended(self, replica: Replica) -> None:
        """Record that a replica has become idle."""
        self._states.setdefault(replica, WorkerStates()).add(replica.ended_s, 0, 0, 0.0)

    def over_time(self) -> dict[str, list]:
        """Return curves of POINTS values: for each span of time, the state with the most requests.

        Requests are sums over the replicas; `kv_cache_usage` is that of the fullest KV cache.
        """
        end_s = max(states.last_s for states in self._states.values())
        steps = merge(*(states.of(number) for number, states in enumerate(self._states.values())))
        step = next(steps, None)
        states_now = [(0, 0, 0.0)] * len(self._states)  # of each replica
        total = (0, 0, 0, 0.0)  # requests, running, waiting, KV cache usage
        curves: dict[str, list] = {"t_s": [], "running": [], "waiting": [], "kv_cache_usage": []}
        for point in range(1, POINTS + 1):
            until_s = round(end_s * point / POINTS, 4)
            most = total
            while step and step[0] <= until_s:
                _, number, state = step
                states_now[number] = state
                total = _total(states_now)
                most = max(most, total)
                step = next(steps, None)
            _, running, waiting, usage = most
            curves["t_s"].append(until_s)
            curves["running"].append(running)
            curves["waiting"].append(waiting)
            curves["kv_cache_usage"].append(usage)
        return curves


def _total(states: list[tuple[int, int, float]]) -> tuple[int, int, int, float]:
    """Return (unfinished, running, waiting) requests of all replicas, and the fullest KV cache."""
    running, waiting, usage = zip(*states, strict=True)
    return sum(running) + sum(waiting), sum(running), sum(waiting), max(usage)


def route(
    router: str, replicas: list[Replica], number: int, arrival: Arrival, homes: dict[str, Replica]
) -> Replica:
    """Return the replica that serves a request.

    Args:
        number: how many requests were routed before this one.
        homes: piece of a prompt → the replica that has it in its prefix cache; updated here. The
            last one that is known decides: a session's own text before the prompt that all share.
    """
    if router == "round-robin":
        return replicas[number % len(replicas)]
    idlest = min(replicas, key=lambda replica: replica.unfinished)
    names = [name for name, _ in arrival.pieces]
    if router == "least-busy" or not names:
        return idlest
    home = idlest
    for name in names:
        home = homes.get(name, home)
    if home.unfinished > CROWDED * idlest.unfinished + CROWDED_REQUESTS:
        home = idlest
    for name in names:
        homes[name] = home
    if arrival.answer:
        homes[arrival.answer] = home
    return home


def main() -> None:
    """Answer jobs until the input ends. Whatever libraries print goes to standard error."""
    channel = Channel(Pickles())
    for job in channel:
        try:
            channel.send(run(job))
        except WorkshopError as error:
            channel.send(error)
        except OSError as error:
            problem = f"The steps cannot be written: {error.strerror or error}."
            channel.send(WorkshopError(problem, "Give --steps another file."))


if __name__ == "__main__":
    main()

"""Measures a class: many learners run the same cell of a notebook within a few seconds.

What a learner runs is a list of `ClassStep`; `workshop.course.notebooks.class_steps` has that of the course.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from workshop.client import received, refusals, transport
from workshop.client.client import Client
from workshop.errors import WorkshopError
from workshop.measure import checks, timed
from workshop.measure.checks import Fault
from workshop.measure.points import LoadWatch, Point, percentiles_of, point_of
from workshop.measure.timed import Timed
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.report import Outcome, parse_slo

EVERY_S = 10.0  # between two steps, where the time is not given
BUNCH_S = 8.0  # everybody begins a step within so many seconds, half of them within a sixth of it
THINK_S = 1.0  # before the next step, after one that took too long
OVERTIME = 2.0  # so many times the seconds may pass before a learner leaves out a step
ANSWER_WITHIN_S = 120.0  # then a learner gives up
SLO = "ttft=5s,e2el=30s"  # what a class accepts, for 95 of 100 requests
TOO_LATE = f"left out, as the step before was not done within {OVERTIME:g} times the class's time"


@dataclass(frozen=True)
class ClassStep:
    """One cell as a learner runs it: its requests, at most `at_once` of them at a time."""

    name: str
    requests: Sequence[Mapping[str, Any]]
    at_once: int = 1


Course = Callable[[random.Random], list[ClassStep]]  # what a learner runs, in order


@dataclass(frozen=True)
class ClassLoad:
    """A class as one load. `requests`: all that the learners have to send in these seconds."""

    learners: int
    seconds: float
    requests: int

    @property
    def name(self) -> str:
        """Return how a table calls it: "30 learners"."""
        if self.learners == 1:
            return "1 learner"
        return f"{self.learners} learners"

    @property
    def amount(self) -> float:
        """Return what a picture has on its axis."""
        return float(self.learners)

    @property
    def counts(self) -> str:
        """Return what `amount` counts."""
        return "learners"


@dataclass(frozen=True)
class Waits:
    """The waits of learners in one step; figures in ms, of the requests with an answer."""

    name: str
    requests: int
    errors: int
    ttft_ms: dict[str, float | None]
    e2el_ms: dict[str, float | None]


@dataclass(frozen=True)
class ClassPoint(Point):
    """A measured class.

    `steps` has the waits of each step, `errors` how often each reason was given, `left_out` the
    steps that the server does not take, and `limits` the longest times in ms by their names.
    """

    steps: list[Waits] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def too_slow(self) -> dict[str, float]:
        """Return the p95 in ms of each measure that is above its limit."""
        slow = {}
        for measure, limit in self.limits.items():
            p95 = self.figures[measure]["p95"]
            if p95 is not None and p95 > limit:
                slow[measure] = p95
        return slow

    @property
    def holds(self) -> bool:
        """Return True if the server holds the class: every request in time, without an error."""
        return not self.errors and not self.too_slow

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        return {**super().to_dict(), "holds": self.holds}


def measure(
    server: ServerRecord,
    model: str,
    learners: int,
    course: Course,
    *,
    seconds: float | None = None,
    slo: str | None = None,
    seed: int = 0,
) -> ClassPoint:
    """Let a class run a course against a server, and see how long each learner waits.

    Args:
        server: where it is, and its key.
        model: the name that requests give.
        learners: how many.
        course: what one learner runs.
        seconds: how long; by default a step every 10 s. In less time the steps follow faster, in
            more they begin again.
        slo: the longest times for 95 of 100 requests, by default `SLO`.
        seed: of who runs what when.

    Raises:
        BadInput: a limit that is none.
        WorkshopError: the server does not answer the first learner.
    """
    limits = parse_slo(slo or SLO)
    client = Client(server, model)
    steps, left_out = timed.run(_taken(client, course(random.Random(seed))))
    timetable = Timetable(learners, course, {step.name: step for step in steps}, seconds, seed)
    with LoadWatch(server) as watch:
        sent = timed.run(_send(client, timetable))
    answered = [(request, answer) for _, request, answer in sent if not answer.error]
    outcomes = [answer.outcome(_sequences(request)) for request, answer in answered]
    sequences = sum(_sequences(request) for request, _ in answered)
    errors = Counter(answer.error.message for *_, answer in sent if answer.error)
    faults = watch.faults(sequences)
    if errors:  # what became of them, the server may have counted or not
        faults = [fault for fault in faults if fault.kind not in ("other requests", "restarted")]
        faults.append(_unanswered(errors, len(sent)))
    faults += checks.slow_client(watch.cpu_share, None, [])
    load = ClassLoad(learners, timetable.seconds, len(sent))
    output_tokens = sum(answer.output_tokens for _, answer in answered)
    # without prefix_hit_share: learners send the same prompts, and hits are no fault
    point = point_of(load, seed, watch, outcomes, output_tokens, slo or SLO)
    return ClassPoint(
        **vars(replace(point, faults=faults)),
        steps=_waits(sent),
        errors=dict(errors.most_common()),
        left_out=left_out,
        limits=limits,
    )


class Timetable:
    """Says when each learner begins which step."""

    def __init__(
        self,
        learners: int,
        course: Course,
        taken: Mapping[str, ClassStep],
        seconds: float | None,
        seed: int,
    ):
        self.learners = learners
        self.seconds = seconds or EVERY_S * len(taken)
        self._course = course
        self._taken = taken
        self._seed = seed

    @property
    def connections(self) -> int:
        """Return how many requests are sent at once at most."""
        return self.learners * max(step.at_once for step in self._taken.values())

    def of_learner(self, number: int) -> list[tuple[float, ClassStep]]:
        """Return (when it begins, in seconds; the step) of everything that one learner runs."""
        dice = random.Random(f"{self._seed} {number}")
        steps = []
        for step in self._course(dice):
            if step.name in self._taken:
                steps.append(_within(step, self._taken[step.name]))
        every_s = min(EVERY_S, self.seconds / len(steps))
        bunch_s = min(BUNCH_S, 0.8 * every_s)
        turns = []
        for turn in range(max(1, round(self.seconds / every_s))):
            begin_s = turn * every_s + bunch_s * dice.betavariate(1, 4)
            turns.append((begin_s, steps[turn % len(steps)]))
        return turns


def _within(step: ClassStep, taken: ClassStep) -> ClassStep:
    """Return a learner's step with no more log probabilities than the server takes of it."""
    requests = []
    for request, example in zip(step.requests, taken.requests, strict=True):
        if "logprobs" in request:
            request = {**request, "logprobs": example["logprobs"]}
        requests.append(request)
    return ClassStep(step.name, requests, step.at_once)


async def _taken(client: Client, steps: list[ClassStep]) -> tuple[list[ClassStep], list[str]]:
    """Run one learner's steps; return those that the server takes, and the names of the others.

    Log probabilities are cut to as many as the server gives. A step of chats is left out where the
    model has no chat template.

    Raises WorkshopError: the server does not answer, or refuses a completion.
    """
    taken, left_out = [], []
    async with timed.TimedSender(client, ANSWER_WITHIN_S) as sender:
        for step in steps:
            requests = list(step.requests)
            for number, request in enumerate(requests):
                answer = await sender.send(request)
                most = refusals.logprobs_limit(str(answer.error))
                if most is not None and "logprobs" in request:
                    requests[number] = {**request, "logprobs": most}
                    answer = await sender.send(requests[number])
                if answer.error and "messages" not in request:
                    raise answer.error
                if answer.error:
                    left_out.append(step.name)
                    break
            else:
                taken.append(ClassStep(step.name, requests, step.at_once))
    return taken, left_out


Sent = tuple[str, Mapping[str, Any], Timed]  # the step's name, the request, its answer


async def _send(client: Client, timetable: Timetable) -> list[Sent]:
    """Let all learners run their steps; return every request."""
    transport.allow_connections(timetable.connections)
    async with timed.TimedSender(client, ANSWER_WITHIN_S) as sender:
        learners = [_learner(sender, timetable, number) for number in range(timetable.learners)]
        sent: list[Sent] = []
        for requests in await asyncio.gather(*learners):
            sent += requests
    return sent


async def _learner(sender: timed.TimedSender, timetable: Timetable, number: int) -> list[Sent]:
    # a server for a class gives each learner a share
    headers = {"X-Workshop-Learner": f"class-{number}"}
    sent: list[Sent] = []
    for turn, (begin_s, step) in enumerate(timetable.of_learner(number)):
        late = turn and sender.now() > begin_s
        await asyncio.sleep(THINK_S if late else begin_s - sender.now())
        if sender.now() > OVERTIME * timetable.seconds:
            error = WorkshopError(TOO_LATE)
            answers = [Timed(sender.now(), sender.now(), error=error) for _ in step.requests]
        else:
            answers = await timed.send_together(sender, step.requests, step.at_once, headers)
        for request, answer in zip(step.requests, answers, strict=True):
            sent.append((step.name, request, answer))
    return sent


def _sequences(request: Mapping[str, Any]) -> int:
    """Return how many sequences a request has in the engine: prompts × n."""
    return received.sequences(request.get("prompt"), request.get("n")) or 1


def _waits(sent: Sequence[Sent]) -> list[Waits]:
    """Return the waits of each step, in the order of the course."""
    outcomes: dict[str, list[Outcome]] = {}
    requests: Counter[str] = Counter()
    for name, request, answer in sent:
        requests[name] += 1
        answered = outcomes.setdefault(name, [])
        if not answer.error:
            answered.append(answer.outcome(_sequences(request)))
    waits = []
    for name, answered in outcomes.items():
        figures = percentiles_of(answered)
        errors = requests[name] - len(answered)
        waits.append(Waits(name, requests[name], errors, figures["ttft"], figures["e2el"]))
    return waits


def _unanswered(errors: Counter[str], sent: int) -> Fault:
    reasons = "; ".join(f"{count:,} × {reason}" for reason, count in errors.most_common(3))
    sentence = f"{errors.total():,} of {sent:,} requests have no answer: {reasons}"
    return Fault("unanswered", sentence)

"""One measured point for each load: new seed, warm-up, figures, and what could spoil them."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, Self

import psutil

from workshop.client.client import Client
from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError
from workshop.measure import checks, timed
from workshop.measure.checks import Fault
from workshop.servers.host import energy
from workshop.servers.host.energy import Energy
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.arrivals import NEXT_ANSWER, Arrival
from workshop.simulate.report import Outcome, parse_slo, percentiles_of_measure
from workshop.simulate.sessions import Sessions, drawn_sessions

MEASURES = ("ttft", "tpot", "e2el")
WARMUPS = 4  # requests before each point, which are not counted
WARMUP_TOKENS = 16
MOST_REQUESTS = 100_000
MOST_TOKENS = 1_000_000
LARGEST_SEED = 2**31
GENERATIONS = 6  # of a closed loop: so many requests one after the other show what all others do
ANSWER_WITHIN_S = 6 * 3600.0  # as `vllm bench serve`: an overloaded server is measured, too
NO_METRICS = Fault(
    "no metrics",
    "The server does not show /metrics, so nobody can tell whether prompts came from its prefix cache, or whether others "
    "used it.",
)

# requests in order of arrival → their outcomes in the same order
Simulate = Callable[[Sequence[Arrival]], list[Outcome]]
Figures = dict[str, dict[str, float | None]]  # measure → p50, p95, p99 and mean in ms


@dataclass(frozen=True)
class Load:
    """One load of random prompts, by a rate (requests a second, Poisson) or by a concurrency."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float | None = None
    concurrency: int | None = None
    more = ""  # what gives more requests, where that is not --requests

    @property
    def name(self) -> str:
        """Return how a table calls it: "4 a second" or "16 at once"."""
        if self.rate is not None:
            return f"{self.rate:g} a second"
        return f"{self.concurrency} at once"

    @property
    def amount(self) -> float:
        """Return what a picture has on its axis."""
        return float(self.rate or self.concurrency or 0)

    @property
    def counts(self) -> str:
        """Return what `amount` counts."""
        return "requests per second" if self.rate is not None else "requests at once"

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return its requests.

        With a rate they are those of `vllm bench serve`: Poisson, stretched so that they take
        requests ÷ rate seconds. Without one the next is sent as soon as one is answered.
        """
        first = Arrival(0.0, self.prompt_tokens, self.output_tokens)
        if self.rate is None:
            at_once = min(self.concurrency or 1, self.requests)
            following = replace(first, follows=NEXT_ANSWER)
            return [first] * at_once + [following] * (self.requests - at_once)
        dice = random.Random(seed)
        times_s = []
        now_s = 0.0
        for _ in range(self.requests):
            now_s += dice.expovariate(self.rate)
            times_s.append(now_s)
        stretch = self.requests / self.rate / now_s
        return [replace(first, arrival_s=time_s * stretch) for time_s in times_s]

    def simulated_arrivals(self, seed: int) -> list[Arrival]:
        """Return the requests that are simulated: of a closed loop the first ones alone."""
        arrivals = self.arrivals(seed)
        if self.concurrency is None:
            return arrivals
        return arrivals[: GENERATIONS * self.concurrency]

    def hits(
        self, before: Metrics, after: Metrics, arrivals: Sequence[Arrival]
    ) -> tuple[float | None, Fault | None]:
        """Return the share of prompt tokens from the prefix cache, and the fault if it is one."""
        return checks.prefix_hits(before, after)


@dataclass(frozen=True)
class SessionLoad:
    """Sessions of agents as one load. requests: all turns of all sessions.

    Lengths and times are of the options' seed; the texts are new in each measurement.
    """

    options: Sessions
    requests: int
    rate = None  # each turn follows an answer
    more = "--sessions or --turns"

    @property
    def name(self) -> str:
        """Return how a table calls it: "40 sessions"."""
        return f"{self.options.sessions} sessions"

    @property
    def amount(self) -> float:
        """Return what a picture has on its axis."""
        return float(self.options.sessions)

    @property
    def counts(self) -> str:
        """Return what `amount` counts."""
        return "sessions"

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return all turns of all sessions."""
        return drawn_sessions(replace(self.options, seed=seed))

    simulated_arrivals = arrivals

    def hits(
        self, before: Metrics, after: Metrics, arrivals: Sequence[Arrival]
    ) -> tuple[float | None, Fault | None]:
        """Return the share of prompt tokens from the prefix cache, and the fault if it is small."""
        return checks.hits_of_sessions(before, after, checks.returning_share(arrivals))


class AnyLoad(Protocol):
    """A load as a table and a picture have it: see `Load`, `SessionLoad` and `classes.ClassLoad`."""

    @property
    def requests(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def amount(self) -> float: ...
    @property
    def counts(self) -> str: ...


@dataclass(frozen=True)
class Point:
    """One measured load.

    Attributes:
        figures: of ttft, tpot and e2el.
        goodput_per_s: requests a second that met the SLO; None without an SLO.
        prefix_hit_share: of the prompts' tokens; None if the server does not publish it.
        predicted: the figures from the simulation, as `figures_of` has them; None if nothing could
            be simulated.
    """

    load: AnyLoad
    seed: int
    seconds: float
    tokens_per_s: float
    requests_per_s: float
    goodput_per_s: float | None
    figures: Figures
    prefix_hit_share: float | None
    client_cpu_share: float | None
    energy: Energy | None = None  # of the GPUs of this machine, where the server runs here
    faults: list[Fault] = field(default_factory=list)
    predicted: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as `--json` prints it."""
        data = asdict(self)
        data["energy"] = self.energy.to_dict() if self.energy else None
        for measure, values in data.pop("figures").items():
            data[f"{measure}_ms"] = values
        return data


def loads(
    rates: Sequence[float],
    concurrencies: Sequence[int],
    requests: int,
    prompt_tokens: int,
    output_tokens: int,
) -> list[Load]:
    """Return the loads to measure.

    Raises BadInput: a number out of range.
    """
    for name, tokens in (("--prompt", prompt_tokens), ("--output", output_tokens)):
        if not 1 <= tokens <= MOST_TOKENS:
            raise BadInput(f"{name} {tokens} cannot be.", f"Give 1 to {MOST_TOKENS:,} tokens.")
    result = []
    for rate in rates:
        if not 0.001 <= rate <= 10_000:
            raise BadInput(f"{rate:g} requests a second cannot be.", "Give 0.001 to 10,000.")
        result.append(Load(requests, prompt_tokens, output_tokens, rate=rate))
    for concurrency in concurrencies:
        if not 1 <= concurrency <= MOST_REQUESTS:
            raise BadInput(
                f"{concurrency} requests at once cannot be.", f"Give 1 to {MOST_REQUESTS:,}."
            )
        result.append(Load(requests, prompt_tokens, output_tokens, concurrency=concurrency))
    return result


def session_loads(sessions: Sequence[int], options: Mapping[str, Any]) -> list[SessionLoad]:
    """Return the sessions to measure, one load for each number of them.

    Args:
        options: fields of Sessions; None leaves one at its default. Without a seed each load has
            lengths of its own.

    Raises BadInput: a number out of range.
    """
    fields = {name: value for name, value in options.items() if value is not None}
    result = []
    for count in sessions:
        drawn = Sessions(sessions=count, **{"seed": secrets.randbelow(LARGEST_SEED), **fields})
        # drawn now: what cannot be is refused before anything is sent
        result.append(SessionLoad(drawn, len(drawn_sessions(drawn))))
    return result


def measure(
    server: ServerRecord,
    model: str,
    load: Load | SessionLoad,
    *,
    slo: str | None = None,
    seed: int | None = None,
    simulate: Simulate | None = None,
) -> Point:
    """Measure one load after a warm-up, and look for what could spoil the figures.

    Args:
        server: where it is, and its key.
        model: the name that requests give.
        slo: limits such as "ttft=500ms,tpot=50ms".
        seed: of the prompts and their times; None draws a new one, so that no prompt was seen
            before. Sessions have their own.
        simulate: predicts the same load.

    Raises:
        WorkshopError: a request was not answered.
    """
    seed = secrets.randbelow(LARGEST_SEED) if seed is None else seed
    seed_of_texts: int | None = seed
    if isinstance(load, SessionLoad):  # drawn already, and the same sessions have new texts
        seed, seed_of_texts = load.options.seed, None
    arrivals = load.arrivals(seed)
    client = Client(server, model)
    longest = max(arrivals, key=lambda arrival: arrival.prompt_tokens)
    warm_up(client, longest.prompt_tokens, longest.output_tokens)
    with LoadWatch(server) as watch:
        outcomes = timed.run(send(client, arrivals, seed_of_texts))
    faults = watch.faults(load.requests)
    hit_share = None
    if watch.before and watch.after:
        hit_share, fault = load.hits(watch.before, watch.after, arrivals)
        if fault:
            faults.append(fault)
    output_tokens = sum(outcome.output_tokens for outcome in outcomes)
    point = point_of(load, seed, watch, outcomes, output_tokens, slo)
    starts_s = [outcome.arrival_s for outcome in outcomes]
    answer_s = (point.figures["e2el"]["p95"] or 0.0) / 1e3
    faults += checks.of_sending(
        load.requests, load.rate, starts_s, answer_s, watch.cpu_share, load.more
    )
    predicted = None
    if simulate:
        predicted = figures_of(simulate(load.simulated_arrivals(seed)), parse_slo(slo))
    return replace(point, prefix_hit_share=hit_share, faults=faults, predicted=predicted)


async def send(
    client: Client, arrivals: Sequence[Arrival], seed: int | None = None
) -> list[Outcome]:
    """Send each request at its time, or after the answer it follows; return outcomes in order."""
    async with timed.TimedSender(client, ANSWER_WITHIN_S) as sender:
        return [answer.outcome() for answer in await timed.send_load(sender, arrivals, seed)]


def point_of(
    load: AnyLoad,
    seed: int,
    watch: LoadWatch,
    outcomes: Sequence[Outcome],
    output_tokens: int,
    slo: str | None,
) -> Point:
    """Return the figures of a load that was watched."""
    return Point(
        load=load,
        seed=seed,
        seconds=watch.seconds,
        tokens_per_s=output_tokens / watch.seconds,
        requests_per_s=len(outcomes) / watch.seconds,
        goodput_per_s=goodput(outcomes, parse_slo(slo), watch.seconds),
        figures=percentiles_of(outcomes),
        prefix_hit_share=None,
        client_cpu_share=watch.cpu_share,
        energy=watch.energy(output_tokens),
    )


def percentiles_of(outcomes: Sequence[Outcome]) -> Figures:
    """Return p50, p95, p99 and mean of each measure, in ms."""
    return {name: percentiles_of_measure(outcomes, name) for name in MEASURES}


def figures_of(outcomes: Sequence[Outcome], limits: Mapping[str, float]) -> dict[str, Any]:
    """Return tokens_per_s, goodput_per_s, prefix_hit_share and the times of simulated requests.

    Each of ttft_ms, tpot_ms and e2el_ms has p50, p95, p99 and mean.

    Args:
        limits: of the SLO in ms by name (ttft, tpot, e2el); empty without an SLO.
    """
    first_s = min(outcome.arrival_s for outcome in outcomes)
    seconds = max(outcome.last_s for outcome in outcomes) - first_s
    prompt_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
    figures: dict[str, Any] = {
        "tokens_per_s": sum(outcome.output_tokens for outcome in outcomes) / seconds,
        "goodput_per_s": goodput(outcomes, limits, seconds),
        "prefix_hit_share": sum(outcome.hit_tokens for outcome in outcomes) / prompt_tokens,
    }
    for name, values in percentiles_of(outcomes).items():
        figures[f"{name}_ms"] = values
    return figures


def goodput(
    outcomes: Sequence[Outcome], limits: Mapping[str, float], seconds: float
) -> float | None:
    """Return the requests a second that met the limits; None without limits."""
    if not limits:
        return None
    met = sum(outcome.meets(limits) for outcome in outcomes)
    return met / seconds


def warm_up(client: Client, prompt_tokens: int, output_tokens: int) -> None:
    """Send a few other prompts of this length, so that nothing is compiled while it counts.

    Raises WorkshopError: the server does not answer one.
    """
    request = Arrival(0.0, prompt_tokens, min(output_tokens, WARMUP_TOKENS))

    async def send() -> None:
        async with timed.TimedSender(client) as sender:
            for _ in range(WARMUPS):
                await timed.send_load(sender, [request])

    timed.run(send())


class LoadWatch:
    """Observes the server and this process while a load is sent; use it in a `with` statement.

    Attributes:
        before, after: what the server counted; None where it does not show that.
        seconds: how long the load took.
        cpu_share: of one core, that this process took.
    """

    def __init__(self, server: ServerRecord):
        self._server = server
        self._own = psutil.Process()

    def __enter__(self) -> Self:
        self.before = metrics_of(self._server)
        self._joules_before = joules_of(self._server)
        self._cpu_before_s = sum(self._own.cpu_times()[:2])
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_share = (sum(self._own.cpu_times()[:2]) - self._cpu_before_s) / self.seconds
        self._joules_after = joules_of(self._server)
        self.after = metrics_of(self._server)

    def energy(self, output_tokens: int) -> Energy | None:
        """Return what the GPUs of this machine took for so many tokens."""
        return energy.between(self._joules_before, self._joules_after, output_tokens)

    def faults(self, sent: int) -> list[Fault]:
        """Return what can spoil every load; `sent` is the number of its requests."""
        if self.before is None or self.after is None:
            return [NO_METRICS]
        fault = checks.other_requests(self.before, self.after, sent)
        return [fault] if fault else []


def metrics_of(server: ServerRecord) -> Metrics | None:
    """Return what the server counts; None where it does not show that."""
    try:
        return metrics.fetch(server.url, server.api_key)
    except WorkshopError:
        return None  # behind a gateway that hides them


def joules_of(server: ServerRecord) -> float | None:
    """Return the reading of the GPUs' counters; None of a server on another machine."""
    return energy.taken_joules() if server.where == "local" else None

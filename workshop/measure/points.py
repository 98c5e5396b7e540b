"""One measured point for each rate or concurrency.

A point has a new seed, a warm-up, the figures, and what could spoil them.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from workshop.client.client import Client
from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError
from workshop.measure import checks, timed, vllm_client
from workshop.measure.checks import Fault
from workshop.servers.host import energy
from workshop.servers.host.energy import Energy
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate.arrivals import Arrival
from workshop.simulate.report import PERCENTILES, parse_slo
from workshop.simulate.sessions import Sessions

MEASURES = ("ttft", "tpot", "e2el")
WARMUPS = 4  # requests before each point, which are not counted
WARMUP_TOKENS = 16
MOST_REQUESTS = 100_000
MOST_TOKENS = 1_000_000
LARGEST_SEED = 2**31
SMALL_VOCABULARY = 32_000
NO_METRICS = Fault(
    "no metrics",
    "The server does not show /metrics, so nobody can tell whether prompts came from its prefix cache, or whether others "
    "used it.",
)

Figures = dict[str, dict[str, float | None]]  # measure → p50, p95, p99 and mean in ms


@dataclass(frozen=True)
class Load:
    """One load of random prompts.

    Exactly one of rate (requests a second, Poisson) and concurrency is set.
    """

    requests: int
    prompt_tokens: int
    output_tokens: int
    rate: float | None = None
    concurrency: int | None = None

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


@dataclass(frozen=True)
class SessionLoad:
    """Sessions of agents as one load. requests: all turns of all sessions."""

    options: Sessions
    requests: int

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

    figures: of ttft, tpot and e2el. goodput_per_s: requests a second that met the SLO; None without
    an SLO.
    prefix_hit_share: of the prompts' tokens; None if the server does not publish it. predicted: the
    same figures, tokens_per_s and goodput_per_s from the simulation; None if nothing could be
    simulated.
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
    if not 1 <= requests <= MOST_REQUESTS:
        raise BadInput(f"{requests} requests cannot be.", f"Give 1 to {MOST_REQUESTS:,}.")
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


def measure(
    server: ServerRecord,
    model: str,
    tokenizer: str,
    load: Load,
    *,
    sender: vllm_client.Client,
    slo: str | None = None,
    seed: int | None = None,
) -> Point:
    """Measure one load with `vllm bench serve`, and look for what could spoil the figures.

    Args:
        server: where it is, and its key.
        model: the name that requests give.
        tokenizer: a folder or a Hub id.
        sender: the client's process, which several points share.
        slo: limits such as "ttft=500ms,tpot=50ms".
        seed: of the prompts; None draws a new one, so that no prompt was seen before.

    Raises:
        WorkshopError: the client failed, or some requests were not answered.
    """
    seed = secrets.randbelow(LARGEST_SEED) if seed is None else seed
    warm_up(Client(server, model), load.prompt_tokens, load.output_tokens)
    options = {**_options(model, tokenizer, load, seed), **_goodput(slo)}
    with Watch(server) as watch:
        ran = sender.run(options, ("--ignore-eos",))
    result = ran.result
    starts_s = result.get("start_times", [])
    answer_s = (result.get("p95_e2el_ms") or 0.0) / 1e3
    faults = watch.faults(load.requests)
    faults += checks.of_sending(load.requests, load.rate, starts_s, answer_s, ran.cpu_share)
    hit_share = None
    if watch.before and watch.after:
        accidental = checks.accidental_share(load.requests, _vocabulary(tokenizer))
        hit_share, hits = checks.prefix_hits(watch.before, watch.after, accidental)
        if hits:
            faults.append(hits)
    return Point(
        load=load,
        seed=seed,
        seconds=result["duration"],
        tokens_per_s=result["output_throughput"],
        requests_per_s=result["request_throughput"],
        goodput_per_s=result.get("request_goodput"),
        figures=figures_of(result),
        prefix_hit_share=hit_share,
        client_cpu_share=ran.cpu_share,
        energy=watch.energy(result["total_output_tokens"]),
        faults=faults,
    )


def figures_of(result: dict[str, Any]) -> Figures:
    """Return the percentiles of a result of vllm bench serve; None where it has no value."""
    figures: Figures = {}
    for name in MEASURES:
        times_ms: dict[str, float | None] = {}
        for p in PERCENTILES:
            times_ms[f"p{p}"] = result.get(f"p{p}_{name}_ms")
        if times_ms["p50"] is None:
            times_ms["p50"] = result.get(f"median_{name}_ms")
        times_ms["mean"] = result.get(f"mean_{name}_ms")
        figures[name] = times_ms
    return figures


def _options(model: str, tokenizer: str, load: Load, seed: int) -> dict[str, str | list[str]]:
    options: dict[str, str | list[str]] = {
        "--model": model,
        "--tokenizer": tokenizer,
        "--dataset-name": "random",
        "--random-input-len": str(load.prompt_tokens),
        "--random-output-len": str(load.output_tokens),
        "--num-prompts": str(load.requests),
        "--seed": str(seed),
        "--percentile-metrics": ",".join(MEASURES),
        "--metric-percentiles": ",".join(map(str, PERCENTILES)),
    }
    if load.rate is not None:
        options["--request-rate"] = f"{load.rate:g}"
    if load.concurrency is not None:
        options["--max-concurrency"] = str(load.concurrency)
    return options


def _goodput(slo: str | None) -> dict[str, str | list[str]]:
    limits = parse_slo(slo)
    if not limits:
        return {}
    return {"--goodput": [f"{name}:{limit:g}" for name, limit in limits.items()]}


def warm_up(client: Client, prompt_tokens: int, output_tokens: int) -> None:
    """Send a few other prompts of this length, so that nothing is compiled while it counts.

    vllm bench serve's own --num-warmups would send the first prompt of the load, which then hits
    the prefix cache.

    Raises WorkshopError: the server does not answer one.
    """
    request = Arrival(0.0, prompt_tokens, min(output_tokens, WARMUP_TOKENS))

    async def send() -> None:
        async with timed.Sender(client) as sender:
            for _ in range(WARMUPS):
                await timed.send_load(sender, [request])

    timed.run(send())


class Watch:
    """Observes the server and this process while a load is sent; use it in a `with` statement.

    Attributes:
        before, after: what the server counted; None where it does not show that.
        seconds: how long the load took.
        cpu_share: of one core, that this process took.
    """

    def __init__(self, server: ServerRecord):
        self._server = server
        self._other_process = checks.other_process(server)
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
        faults: list[Fault | None] = [self._other_process]
        if self.before is None or self.after is None:
            faults.append(NO_METRICS)
        else:
            faults.append(checks.other_requests(self.before, self.after, sent))
        return [fault for fault in faults if fault]


def metrics_of(server: ServerRecord) -> Metrics | None:
    """Return what the server counts; None where it does not show that."""
    try:
        return metrics.fetch(server.url, server.api_key)
    except WorkshopError:
        return None  # behind a gateway that hides them


def joules_of(server: ServerRecord) -> float | None:
    """Return the reading of the GPUs' counters; None of a server on another machine."""
    return energy.taken_joules() if server.where == "local" else None


def _vocabulary(tokenizer: str) -> int:
    """Return how many tokens a model in a folder knows.

    Of a Hub id, return what every model of today has at least.
    """
    try:
        config = json.loads(Path(tokenizer, "config.json").read_text(encoding="utf-8"))
        return int((config.get("text_config") or config)["vocab_size"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SMALL_VOCABULARY


def tokenizer_of(server: ServerRecord, root: str | None, tokenizer: str | None) -> str:
    """Return the tokenizer for the client.

    It is the one given, or else the model's folder or Hub id as the server names it.

    Raises BadInput: the server's model lies in a folder of another machine.
    """
    if tokenizer:
        return tokenizer
    if root and (not root.startswith("/") or Path(root).exists()):
        return root
    raise BadInput(
        f"The model of {server.url} lies in {root or 'an unknown folder'}, which is not on this machine.",
        "Give --tokenizer: a folder with its tokenizer.json, or the model's Hub id.",
    )

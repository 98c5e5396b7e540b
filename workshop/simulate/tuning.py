"""Which GPUs, split and settings serve a load best: the simulation of each that may, and what none beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from inference_planner.catalog import load_gpu, load_model
from inference_planner.command import Unservable, check_starts, flags, served, words

from workshop.engine.exact import plan
from workshop.errors import BadInput, WorkshopError
from workshop.servers import gpus
from workshop.simulate.arrivals import Arrival
from workshop.simulate.load import MOST_REPLICAS, BeyondReach, arriving, on_plan
from workshop.simulate.local import on_a_new_server
from workshop.simulate.report import Simulation, parse_slo

ENOUGH = 0.95  # share of the requests that must meet the SLO
NOISE = 0.05  # differences in that share that the simulation does not know (docs/simulate.md)
SPLITS = [(tp, pp) for pp in (1, 2, 4) for tp in (1, 2, 4, 8)]  # tensor × pipeline parallel
# of experts: tensor × data parallel, with -ep
DEALT_OUT = [(tp, dp) for dp in (2, 4, 8) for tp in (1, 2, 4)]
TOKENS, SEQS = "max_num_batched_tokens", "max_num_seqs"  # of one step
# every step has a CUDA graph then (docs/simulate.md, "The clock")
BATCH = [{TOKENS: 512, SEQS: 256}]
BATCH += [{TOKENS: size} for size in (1024, 2048, 4096, 8192, 16384)] + [
    {SEQS: size} for size in (64, 128, 256)
]
MOST_TIMES = 2  # as many GPUs as the fewest that are enough
VERIFIED = 3  # of the best choices
REFINED = 2  # choices whose batch settings are varied
MOST_ASKED = max(tp * pp for tp, pp in SPLITS)  # GPUs of a replica
ROUTER = "least-busy"
# what a choice may fail for, before the ms of its steps: the first is the farthest from one
SPLIT, MEMORY = 1e99, 1e98


@dataclass(frozen=True)
class Choice:
    """One way to serve the load, and what the simulation says of it."""

    asked: dict  # of the planner
    simulation: Simulation
    usd_per_gpu_hour: float | None

    @property
    def gpus(self) -> int:
        return self.simulation.gpus

    @property
    def share(self) -> float:
        """Share of the requests that meet the SLO."""
        return self.simulation.slo_share

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Of output; at this load, not at the most that the GPUs could give."""
        if self.usd_per_gpu_hour is None:
            return None
        return self.gpus * self.usd_per_gpu_hour / 3600 / self.simulation.tokens_per_s * 1e6

    @property
    def merits(self) -> tuple[float, ...]:
        """What is better if smaller: misses the SLO, GPUs, requests lost, parts in fewer bits, flags, latencies."""
        s = self.simulation
        times = (float(f"{s.of(measure)['p95'] or 0:.2g}") for measure in ("ttft", "tpot"))
        fewer_bits = (self.asked["quantization"] is not None) + (
            self.asked["kv_cache_dtype"] != "auto"
        )
        batch = sum(self.asked.get(name) is not None for name in (TOKENS, SEQS))
        return (
            self.share < ENOUGH,
            self.gpus,
            round((1 - self.share) / NOISE),
            fewer_bits,
            batch,
            *times,
        )

    @property
    def rank(self) -> tuple:
        """Smaller is better: where the limits are missed, the share of the requests lost comes before the GPUs."""
        return (self.merits[0], self.merits[0] and self.merits[2], self.merits)

    def __str__(self) -> str:
        return f"{self.simulation.replicas} × {self.simulation.command}"

    def beats(self, other: Choice) -> bool:
        """True if it is nowhere worse and somewhere better."""
        pairs = zip(self.merits, other.merits, strict=True)
        return self.merits != other.merits and all(mine <= theirs for mine, theirs in pairs)

    def to_dict(self) -> dict:
        names = ("command", "gpus", "replicas", "goodput_per_s", "slo_share", "tokens_per_s")
        shown = {name: getattr(self.simulation, name) for name in names}
        times = {f"{measure}_ms": self.simulation.of(measure) for measure in ("ttft", "tpot")}
        return {**shown, **times, "usd_per_million_tokens": self.usd_per_million_tokens}


def tune(
    model: str,
    gpu: str,
    *,
    slo: str,
    price: float | None = None,
    max_gpus: int = 16,
    report: Callable[[str], None] = lambda text: None,
    **options: object,
) -> list[Choice]:
    """Return the choices that no other beats in GPUs, requests within the SLO and latency; the best first.

    Best: at least ENOUGH of the requests meet the SLO on the fewest GPUs. The options are those of `simulate`.

    Raises:
        BadInput: a load or a limit that cannot be, or nothing that fits on max_gpus.
        WorkshopError: no number of GPUs up to max_gpus serves it; says what came nearest.
    """
    if not slo:
        raise BadInput(
            "--slo is missing.", "Say what is good enough, as --slo ttft=500ms,tpot=50ms."
        )
    if max_gpus < 1 or (price is not None and not 0 < price < math.inf):
        raise BadInput(
            "--max-gpus and --price must be numbers above 0.",
            "Give GPUs, and US dollars an hour for one.",
        )
    arrivals, planned = arriving(options)
    search = _Search(model, gpu, arrivals, parse_slo(slo), price, max_gpus, report)
    ways = list(candidates(model, gpu, planned))
    for number, asked in enumerate(ways, 1):
        search.place = f"{number} of {len(ways)}"
        search.fewest_replicas(asked)
    for number, choice in enumerate(search.promising(), 1):
        search.place = f"batch {number} of {REFINED}"
        search.refine(choice)
    return search.best()


def verify(model: str, gpu: str, choices: Sequence[Choice], **options: object) -> list[dict]:
    """Serve the best choices on this machine's GPUs, one after the other, and measure each with `vllm bench serve`.

    Of several replicas one is served, with its share of the load. Returns what `bench` does, a row a choice.

    Raises BadInput: there are fewer GPUs here than a choice needs; says so before any server starts.
    """
    plans = [plan(model, gpu, **choice.asked) for choice in choices[:VERIFIED]]
    here, most = len(gpus.visible()), max(p.gpus for p in plans)
    if here < most:
        said = f"--verify serves the best choices here, which takes {most} GPUs, and this machine has {here}."
        raise BadInput(said, "Leave --verify out, or run it on a node with the GPUs.")
    arrivals, _ = arriving(options)
    return [
        on_a_new_server(
            served(p.deployment),
            words(flags(p.deployment)),
            arrivals[:: choice.simulation.replicas],
        )
        for p, choice in zip(plans, choices, strict=False)
    ]


def candidates(model: str, gpu: str, planned: dict) -> Iterator[dict]:
    """Yield what to ask the planner for: each split, weights as they are and in FP8, KV cache as it is and in FP8.

    Engines that share experts (data parallel) are tried for models that have some.
    """
    m, g = load_model(model), load_gpu(gpu)
    weights = [None, "fp8"] if not m.quantization and g.fp8_tflops else [None]
    caches = ["auto", "fp8"] if g.fp8_tflops else ["auto"]
    splits = [{"tensor_parallel_size": tp, "pipeline_parallel_size": pp} for tp, pp in SPLITS]
    if m.moe:
        dealt_out = {"pipeline_parallel_size": 1, "enable_expert_parallel": True}
        splits += [
            {"tensor_parallel_size": tp, "data_parallel_size": dp, **dealt_out}
            for tp, dp in DEALT_OUT
        ]
    for sizes, quantization, cache in product(splits, weights, caches):
        ask = {**planned, **sizes, "quantization": quantization, "kv_cache_dtype": cache}
        if node := planned.get("gpus_per_node"):
            replica = sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"]
            ask["nodes"] = math.ceil(replica * sizes.get("data_parallel_size", 1) / node)
        yield ask


class _Search:
    """Simulates plans, and keeps what was tried."""

    def __init__(
        self,
        model: str,
        gpu: str,
        arrivals: Sequence[Arrival],
        slo: dict,
        price,
        max_gpus: int,
        report,
    ):
        self.model, self.gpu, self.arrivals, self.slo = model, gpu, arrivals, slo
        self.price, self.max_gpus, self.report = price, max_gpus, report
        self.most_gpus = max_gpus
        self.place = ""  # of the candidate that is tried, among all
        self.tried: list[Choice] = []
        self.refused = (math.inf, BadInput(""))  # how far it is from what can be, and why

    def attempt(self, asked: dict, replicas: int) -> Choice | None:
        """Simulate it; None where it cannot be: heads that tp does not divide, a step longer than the SLO."""
        try:
            p = plan(self.model, self.gpu, **asked)
            check_starts(p.deployment)
        except Unservable:
            raise
        except BadInput as error:
            return self.refuse(SPLIT, error)
        known = any(
            (c.simulation.command, c.simulation.replicas) == (p.command, replicas)
            for c in self.tried
        )
        if known or p.gpus * replicas > self.most_gpus:  # a batch setting may be vLLM's default
            return None
        if not p.fits:
            most = f"up to {min(self.max_gpus, MOST_ASKED)} × {self.gpu}"
            short = f"No split of {p.model} over {most} holds it and a request of {p.max_model_len:,} tokens."
            remedy = "Give more --max-gpus, a larger --gpu or a shorter --max-model-len."
            return self.refuse(MEMORY, BadInput(short, remedy))
        try:
            found = on_plan(p, self.arrivals, replicas=replicas, router=ROUTER, slo=self.slo)
        except BeyondReach as error:
            remedy = "Give a larger limit, more --max-gpus or a faster --gpu."
            return self.refuse(error.least_ms, BadInput(error.message, remedy))
        except BadInput as error:
            return self.refuse(0, error)
        choice = Choice(asked, found, self.price)
        self.tried.append(choice)
        # more GPUs shorten the latency, which is of interest up to a point
        if choice.share >= ENOUGH:
            self.most_gpus = min(self.most_gpus, choice.gpus * MOST_TIMES)
        count = f"{choice.gpus} GPU{'s' * (choice.gpus > 1)}"
        self.report(f"{self.place}: {count}, {choice.share:.0%} within the limits: {choice}")
        return choice

    def refuse(self, far: float, error: BadInput) -> None:
        """Keep why it cannot be, if nothing came nearer before."""
        if far < self.refused[0]:
            self.refused = far, error

    def fewest_replicas(self, asked: dict) -> None:
        """Find the fewest replicas that serve the load: double until they do, then halve the distance."""
        low, high = 0, 1
        while (choice := self.attempt(asked, high)) and choice.share < ENOUGH:
            low, high = high, max(high + 1, min(high * 2, self.most_gpus * high // choice.gpus))
        while choice and high - low > 1:
            middle = (low + high) // 2
            low, high = (
                (low, middle) if self.attempt(asked, middle).share >= ENOUGH else (middle, high)
            )

    def promising(self) -> list[Choice]:
        """Return what to refine: the best, and what comes nearest to the limits on fewer GPUs, or else the second best."""
        ranked = sorted(self.tried, key=lambda c: c.rank)
        fewer = [c for c in ranked if ranked[0].share >= ENOUGH and c.gpus < ranked[0].gpus]
        return [*ranked[:1], *fewer[:1], *ranked[1:]][:REFINED]

    def refine(self, choice: Choice) -> None:
        """Vary the batch: tokens of one step, and requests of one step."""
        for sizes in BATCH:
            self.attempt({**choice.asked, **sizes}, choice.simulation.replicas)

    def best(self) -> list[Choice]:
        """Return the choices that none beats, the best first. Raises where none serves the load."""
        if not self.tried:
            raise self.refused[1]
        nearest = min(self.tried, key=lambda c: c.rank)
        if nearest.share < ENOUGH:
            replicas = (
                f" in at most {MOST_REPLICAS} replicas" if self.max_gpus > MOST_REPLICAS else ""
            )
            said = f"Nothing up to {self.max_gpus} × {self.gpu}{replicas} serves this load: {nearest.gpus} × {self.gpu} keep the limits for {nearest.share:.0%} of the requests ({nearest})."
            raise WorkshopError(said, "Give more --max-gpus, a lower --rate or larger limits.")
        kept = {
            c.merits: c
            for c in reversed(self.tried)
            if not any(other.beats(c) for other in self.tried)
        }
        return [kept[merits] for merits in sorted(kept)]

"""Finds the GPUs, split and settings that serve a load best.

It simulates the candidates, and lists those that none beats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from inference_planner.catalog import load_gpu, load_model
from inference_planner.command import Unservable, check_starts, flag_words, flags, served

from workshop.engine.exact import plan
from workshop.errors import BadInput, WorkshopError
from workshop.measure.comparison import on_a_new_server
from workshop.servers import gpus
from workshop.simulate.arrivals import Arrival
from workshop.simulate.load import MOST_REPLICAS, BeyondReach, arriving, on_plan
from workshop.simulate.report import Simulation, parse_slo

ENOUGH = 0.95  # share of the requests that must meet the SLO
# smaller differences in that share are within the simulation's error (docs/simulate.md)
NOISE = 0.05
SPLITS = [(tp, pp) for pp in (1, 2, 4) for tp in (1, 2, 4, 8)]  # tensor × pipeline parallel
# tensor × data parallel, with expert parallel
EXPERT_SPLITS = [(tp, dp) for dp in (2, 4, 8) for tp in (1, 2, 4)]
# of one step
TOKENS = "max_num_batched_tokens"
SEQS = "max_num_seqs"
BATCH = [
    {TOKENS: 512, SEQS: 256},  # every step has a CUDA graph then (docs/simulate.md, "The clock")
    {TOKENS: 1024},
    {TOKENS: 2048},
    {TOKENS: 4096},
    {TOKENS: 8192},
    {TOKENS: 16384},
    {SEQS: 64},
    {SEQS: 128},
    {SEQS: 256},
]
MOST_TIMES = 2  # as many GPUs as the fewest that are enough
VERIFIED = 3  # of the best choices
REFINED = 2  # choices whose batch settings are varied
MOST_ASKED = max(tp * pp for tp, pp in SPLITS)  # GPUs of a replica
ROUTER = "least-busy"
STICKY_ROUTER = "prefix"  # of sessions: each turn goes to the replica that has the one before it
# How far a refused choice is from a possible one: an impossible split is the farthest, then too
# little memory; nearer ones are the milliseconds that one request alone takes.
SPLIT = 1e99
MEMORY = 1e98


@dataclass(frozen=True)
class Power:
    """The price of electricity, and how much of it one GPU takes while it serves."""

    usd_per_kwh: float
    watts_per_gpu: float

    @property
    def usd_per_gpu_hour(self) -> float:
        """US dollars for the electricity of one GPU in an hour."""
        return self.usd_per_kwh * self.watts_per_gpu / 1000


@dataclass(frozen=True)
class Choice:
    """One way to serve the load, with its simulation.

    `arguments` are the keyword arguments of plan().
    """

    arguments: dict
    simulation: Simulation
    usd_per_gpu_hour: float | None
    power: Power | None = None
    router: str = ROUTER

    @property
    def gpus(self) -> int:
        return self.simulation.gpus

    @property
    def share(self) -> float:
        """Share of the requests that meet the SLO."""
        share = self.simulation.slo_share
        if share is None:
            raise LookupError("a choice is simulated with limits")
        return share

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The price of a million output tokens at this load.

        At the most that the GPUs could give it would be lower.

        It is the hire of the GPUs and their electricity, as far as prices of them were given.
        """
        usd_per_gpu_hour = self.usd_per_gpu_hour
        if self.power is not None:
            usd_per_gpu_hour = (usd_per_gpu_hour or 0.0) + self.power.usd_per_gpu_hour
        if usd_per_gpu_hour is None:
            return None
        return self.gpu_hours_per_million_tokens * usd_per_gpu_hour

    @property
    def kwh_per_million_tokens(self) -> float | None:
        """The electricity for a million output tokens; None if the power of a GPU was not given."""
        if self.power is None:
            return None
        return self.gpu_hours_per_million_tokens * self.power.watts_per_gpu / 1000

    @property
    def gpu_hours_per_million_tokens(self) -> float:
        """Hours that one GPU would need for a million output tokens at this load."""
        return self.gpus / 3600 / self.simulation.tokens_per_s * 1e6

    @property
    def merits(self) -> tuple[float, ...]:
        """The figures by which choices are compared; smaller ones are better.

        They are: misses the SLO, GPUs, requests lost, parts in fewer bits, batch settings,
        latencies.
        """
        quantized = self.arguments["quantization"] is not None
        small_cache = self.arguments["kv_cache_dtype"] != "auto"
        batch_settings = sum(self.arguments.get(name) is not None for name in (TOKENS, SEQS))
        return (
            self.share < ENOUGH,
            self.gpus,
            round((1 - self.share) / NOISE),
            int(quantized) + int(small_cache),
            batch_settings,
            self._p95_ms("ttft"),
            self._p95_ms("tpot"),
        )

    def _p95_ms(self, measure: str) -> float:
        """Return the p95 with two digits; smaller differences are noise."""
        value = self.simulation.of(measure)["p95"] or 0
        return float(f"{value:.2g}")

    @property
    def rank(self) -> tuple:
        """The order of choices, smaller is better.

        Where the limits are missed, the share of the requests lost comes before the GPUs.
        """
        return (self.merits[0], self.merits[0] and self.merits[2], self.merits)

    def __str__(self) -> str:
        return f"{self.simulation.replicas} × {self.simulation.command}"

    def beats(self, other: Choice) -> bool:
        """Return True if this choice is nowhere worse and somewhere better."""
        if self.merits == other.merits:
            return False
        pairs = zip(self.merits, other.merits, strict=True)
        return all(merit <= other_merit for merit, other_merit in pairs)

    def to_dict(self) -> dict:
        """Return plain data, as `workshop tune --json` prints it."""
        tokens = self.simulation.tokens_per_s_interval
        return {
            "command": self.simulation.command,
            "gpus": self.simulation.gpus,
            "replicas": self.simulation.replicas,
            "router": self.router,
            "goodput_per_s": self.simulation.goodput_per_s,
            "slo_share": self.simulation.slo_share,
            "tokens_per_s": self.simulation.tokens_per_s,
            "tokens_per_s_low": tokens.low,
            "tokens_per_s_high": tokens.high,
            **self.simulation.figures("ttft"),
            **self.simulation.figures("tpot"),
            "basis": self.simulation.basis,
            "usd_per_million_tokens": self.usd_per_million_tokens,
            "kwh_per_million_tokens": self.kwh_per_million_tokens,
        }


def tune(
    model: str,
    gpu: str,
    *,
    slo: str,
    price: float | None = None,
    kwh_price: float | None = None,
    watts: float | None = None,
    max_gpus: int = 16,
    report: Callable[[str], None] = lambda text: None,
    **options: object,
) -> list[Choice]:
    """Return the choices that no other beats for a load, the best first.

    Args:
        slo, price, kwh_price, watts, max_gpus, report: as for `choices_for`.
        options: those of `simulate`.

    Raises the errors of `choices_for`, and BadInput for an impossible load.
    """
    arrivals, planned = arriving(options)
    return choices_for(
        model,
        gpu,
        arrivals,
        slo=slo,
        price=price,
        kwh_price=kwh_price,
        watts=watts,
        max_gpus=max_gpus,
        report=report,
        **planned,
    )


def choices_for(
    model: str,
    gpu: str,
    arrivals: Sequence[Arrival],
    *,
    slo: str,
    price: float | None = None,
    kwh_price: float | None = None,
    watts: float | None = None,
    max_gpus: int = 16,
    report: Callable[[str], None] = lambda text: None,
    **planned: object,
) -> list[Choice]:
    """Return the choices that no other beats for these requests, the best first.

    They are compared in GPUs, requests within the SLO, and latency.

    The best one lets at least ENOUGH of the requests meet the SLO on the fewest GPUs.

    Args:
        slo: limits such as "ttft=500ms,tpot=50ms".
        price: US dollars an hour for one GPU.
        kwh_price: US dollars for a kilowatt hour; needs watts.
        watts: what one GPU takes under this load; needs kwh_price.
        max_gpus: GPUs that a choice may have in all its replicas.
        report: called with a line of text after each attempt.
        planned: those of `plan` that all candidates share.

    Raises:
        BadInput: a limit is impossible, or nothing fits on max_gpus.
        WorkshopError: no number of GPUs up to max_gpus serves the load; the message names the
            nearest choice.
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
    power = power_of(kwh_price, watts)
    search = _Search(model, gpu, arrivals, parse_slo(slo), price, max_gpus, report, power)
    plans = list(candidates(model, gpu, planned))
    for number, plan_options in enumerate(plans, 1):
        search.place = f"{number} of {len(plans)}"
        search.fewest_replicas(plan_options)
    for number, choice in enumerate(search.promising(), 1):
        search.place = f"batch {number} of {REFINED}"
        search.refine(choice)
    return search.best()


def power_of(kwh_price: float | None, watts: float | None) -> Power | None:
    """Return the price and the use of electricity, or None if neither is given.

    Raises BadInput: one of the two is missing, or no number above 0.
    """
    if kwh_price is None and watts is None:
        return None
    if kwh_price is None or watts is None:
        raise BadInput(
            "--kwh-price and --watts need each other.",
            "Give dollars for a kWh, and the watts of one GPU under load (nvidia-smi shows them).",
        )
    if not (0 < kwh_price < math.inf and 0 < watts < math.inf):
        raise BadInput(
            "--kwh-price and --watts must be numbers above 0.",
            "Give dollars for a kWh, and the watts of one GPU.",
        )
    return Power(kwh_price, watts)


def verify(
    model: str, gpu: str, choices: Sequence[Choice], arrivals: Sequence[Arrival]
) -> list[dict]:
    """Serve the best choices on this machine's GPUs, one after the other, and measure them.

    Each is measured with `vllm bench serve`.

    Of several replicas one is served, with its share of the load. The result has what `bench`
    returns for each choice.

    Args:
        arrivals: the requests for which the choices were found.

    Raises:
        BadInput: the load has sessions, or there are fewer GPUs here than a choice needs; raised
            before any server starts.
    """
    refuse_sessions(arrivals)
    plans = []
    needed = 0
    for choice in choices[:VERIFIED]:
        p = plan(model, gpu, **choice.arguments)
        plans.append(p)
        needed = max(needed, p.gpus)
    present = len(gpus.visible())
    if present < needed:
        problem = (
            f"--verify serves the best choices here, which takes {needed} GPUs,"
            f" and this machine has {present}."
        )
        raise BadInput(problem, "Leave --verify out, or run it on a node with the GPUs.")
    results = []
    for p, choice in zip(plans, choices, strict=False):
        arguments = flag_words(flags(p))
        load = arrivals[:: choice.simulation.replicas]
        results.append(on_a_new_server(served(p), arguments, load))
    return results


def has_sessions(arrivals: Sequence[Arrival]) -> bool:
    """Return True if a request of the load waits for the answer to another one."""
    return any(arrival.follows is not None for arrival in arrivals)


def refuse_sessions(arrivals: Sequence[Arrival]) -> None:
    """Raise BadInput if the load has sessions, which `--verify` cannot send."""
    if has_sessions(arrivals):
        raise BadInput(
            "--verify cannot send sessions: vllm bench serve sends each request at a fixed time, "
            "and a turn has to wait for the answer before it.",
            "Leave --verify out, serve the choice, and measure it with `workshop bench --sessions`.",
        )


def candidates(model: str, gpu: str, planned: dict) -> Iterator[dict]:
    """Yield plan()'s keyword arguments for each candidate.

    Candidates are splits, with weights and KV cache as they are and in FP8.

    MoE models are also tried with data and expert parallelism.
    """
    config = load_model(model)
    quantizations: list[str | None] = [None]
    cache_dtypes = ["auto"]
    if load_gpu(gpu).fp8_tflops:
        cache_dtypes.append("fp8")
        if not config.quantization:
            quantizations.append("fp8")
    gpus_per_node = planned.get("gpus_per_node")
    splits = _splits(has_experts=config.moe is not None)
    for sizes, quantization, cache_dtype in product(splits, quantizations, cache_dtypes):
        options = {
            **planned,
            **sizes,
            "quantization": quantization,
            "kv_cache_dtype": cache_dtype,
        }
        if gpus_per_node:
            replica_gpus = sizes["tensor_parallel_size"] * sizes["pipeline_parallel_size"]
            all_gpus = replica_gpus * sizes.get("data_parallel_size", 1)
            options["nodes"] = math.ceil(all_gpus / gpus_per_node)
        yield options


def _splits(has_experts: bool) -> list[dict]:
    """Return plan()'s keyword arguments for each split."""
    splits: list[dict] = []
    for tp, pp in SPLITS:
        splits.append({"tensor_parallel_size": tp, "pipeline_parallel_size": pp})
    if has_experts:
        for tp, dp in EXPERT_SPLITS:
            splits.append(
                {
                    "tensor_parallel_size": tp,
                    "data_parallel_size": dp,
                    "pipeline_parallel_size": 1,
                    "enable_expert_parallel": True,
                }
            )
    return splits


class _Search:
    """Simulates plans, and records the choices that were tried."""

    def __init__(
        self,
        model: str,
        gpu: str,
        arrivals: Sequence[Arrival],
        slo: dict[str, float],
        price: float | None,
        max_gpus: int,
        report: Callable[[str], None],
        power: Power | None = None,
    ):
        self.model = model
        self.gpu = gpu
        self.arrivals = arrivals
        self.router = STICKY_ROUTER if has_sessions(arrivals) else ROUTER
        self.slo = slo
        self.price = price
        self.power = power
        self.max_gpus = max_gpus
        self.report = report
        self.most_gpus = max_gpus  # falls to MOST_TIMES the GPUs of a choice that is enough
        self.place = ""  # of the candidate that is tried, among all
        self.tried: list[Choice] = []
        self.refused = (math.inf, BadInput(""))  # the nearest refused choice: how far, and why

    def attempt(self, plan_options: dict, replicas: int) -> Choice | None:
        """Simulate a candidate; return None if it is impossible or of no interest.

        Impossible is a split that does not divide the heads, or a step longer than the SLO. Of no
        interest is a choice that was tried, or one with too many GPUs.
        """
        try:
            p = plan(self.model, self.gpu, **plan_options)
            check_starts(p)
        except Unservable:
            raise
        except BadInput as error:
            return self.refuse(SPLIT, error)
        # a batch setting may be vLLM's default
        if self._was_tried(p.command, replicas) or p.gpus * replicas > self.most_gpus:
            return None
        if not p.fits:
            most = f"up to {min(self.max_gpus, MOST_ASKED)} × {self.gpu}"
            problem = f"No split of {p.model} over {most} holds it and a request of {p.max_model_len:,} tokens."
            remedy = "Give more --max-gpus, a larger --gpu or a shorter --max-model-len."
            return self.refuse(MEMORY, BadInput(problem, remedy))
        try:
            simulation = on_plan(
                p, self.arrivals, replicas=replicas, router=self.router, slo=self.slo
            )
        except BeyondReach as error:
            remedy = "Give a larger limit, more --max-gpus or a faster --gpu."
            return self.refuse(error.least_ms, BadInput(error.message, remedy))
        except BadInput as error:
            return self.refuse(0, error)
        choice = Choice(plan_options, simulation, self.price, self.power, self.router)
        self.tried.append(choice)
        # more GPUs shorten the latency, which is of interest up to a point
        if choice.share >= ENOUGH:
            self.most_gpus = min(self.most_gpus, choice.gpus * MOST_TIMES)
        count = "1 GPU" if choice.gpus == 1 else f"{choice.gpus} GPUs"
        self.report(f"{self.place}: {count}, {choice.share:.0%} within the limits: {choice}")
        return choice

    def _was_tried(self, command: str, replicas: int) -> bool:
        for choice in self.tried:
            simulation = choice.simulation
            if simulation.command == command and simulation.replicas == replicas:
                return True
        return False

    def refuse(self, distance: float, error: BadInput) -> None:
        """Record why a candidate was refused, if no other came nearer."""
        nearest, _ = self.refused
        if distance < nearest:
            self.refused = (distance, error)

    def fewest_replicas(self, plan_options: dict) -> None:
        """Find the fewest replicas that serve the load: double them until they do, then bisect."""
        low = 0  # too few
        high = 1
        choice = self.attempt(plan_options, high)
        while choice and choice.share < ENOUGH:
            low = high
            affordable = self.most_gpus * high // choice.gpus
            high = max(high + 1, min(high * 2, affordable))
            choice = self.attempt(plan_options, high)
        while choice and high - low > 1:
            middle = (low + high) // 2
            attempt = self.attempt(plan_options, middle)
            if attempt and attempt.share >= ENOUGH:
                high = middle
            else:
                low = middle

    def promising(self) -> list[Choice]:
        """Return the choices to refine: the best, and the best on fewer GPUs or the second best."""
        ranked = sorted(self.tried, key=lambda choice: choice.rank)
        if not ranked:
            return []
        best = ranked[0]
        others = ranked[1:]
        if best.share >= ENOUGH:
            # stable: those on fewer GPUs come first, otherwise by rank
            others.sort(key=lambda choice: choice.gpus >= best.gpus)
        return [best, *others][:REFINED]

    def refine(self, choice: Choice) -> None:
        """Vary the batch: tokens of one step, and requests of one step."""
        for sizes in BATCH:
            self.attempt({**choice.arguments, **sizes}, choice.simulation.replicas)

    def best(self) -> list[Choice]:
        """Return the choices that no other beats, the best first.

        Raises an error if none serves the load.
        """
        if not self.tried:
            raise self.refused[1]
        nearest = min(self.tried, key=lambda choice: choice.rank)
        if nearest.share < ENOUGH:
            replicas = ""
            if self.max_gpus > MOST_REPLICAS:
                replicas = f" in at most {MOST_REPLICAS} replicas"
            problem = f"Nothing up to {self.max_gpus} × {self.gpu}{replicas} serves this load: {nearest.gpus} × {self.gpu} keep the limits for {nearest.share:.0%} of the requests ({nearest})."
            raise WorkshopError(problem, "Give more --max-gpus, a lower --rate or larger limits.")
        unbeaten = {}
        for choice in reversed(self.tried):  # of equal ones the first stays
            if not any(other.beats(choice) for other in self.tried):
                unbeaten[choice.merits] = choice
        return [unbeaten[merits] for merits in sorted(unbeaten)]

"""Searches for the GPUs, split and settings that serve a load best.

It simulates the candidates, and lists those that none beats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from inference_planner.answer.command import Unservable, check_starts
from inference_planner.catalog import ModelConfig, load_gpu, load_model

from workshop.engine.planning import plan
from workshop.errors import BadInput, WorkshopError
from workshop.simulate.arrivals import NEXT_ANSWER, Arrival
from workshop.simulate.load import (
    MOST_REPLICAS,
    BeyondReach,
    ServerOptions,
    arriving,
    on_plan,
    server_options,
)
from workshop.simulate.report import Simulation

ENOUGH = 0.95  # share of the requests that must meet the SLO
# smaller differences in that share are within the simulation's error (docs/simulate.md)
NOISE = 0.05
SPLITS = [(tp, pp) for pp in (1, 2, 4) for tp in (1, 2, 4, 8)]  # tensor × pipeline parallel
# tensor × data parallel, with expert parallel
EXPERT_SPLITS = [(tp, dp) for dp in (2, 4, 8) for tp in (1, 2, 4)]
# plan()'s names for the tokens and the requests of one step
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
REFINED = 2  # choices whose batch settings are varied
MOST_ASKED = max(tp * pp for tp, pp in SPLITS)  # GPUs of a replica
# The options of `simulate` that the search decides, or that are about a single server.
DECIDED = (
    "nodes",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
    TOKENS,
    SEQS,
    "replicas",
    "prefill_replicas",
    "router",
    "steps",
)
# How far a refused choice is from a possible one: an impossible split is the farthest, then too
# little memory; nearer ones are the milliseconds that one request alone takes.
SPLIT = 1e99
MEMORY = 1e98


@dataclass(frozen=True)
class Choice:
    """One way to serve the load, with its simulation.

    `arguments` are the keyword arguments of plan().
    """

    arguments: dict
    simulation: Simulation
    usd_per_gpu_hour: float | None

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
        """The hire of the GPUs for a million output tokens at this load.

        At the most that the GPUs could give it would be lower. None if no price was given.
        """
        if self.usd_per_gpu_hour is None:
            return None
        gpu_hours = self.gpus / 3600 / self.simulation.tokens_per_s * 1e6
        return gpu_hours * self.usd_per_gpu_hour

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
        """Return plain data, as `workshop simulate --search --json` prints it."""
        tokens = self.simulation.tokens_per_s_interval
        return {
            "command": self.simulation.command,
            "gpus": self.simulation.gpus,
            "replicas": self.simulation.replicas,
            "goodput_per_s": self.simulation.goodput_per_s,
            "slo_share": self.simulation.slo_share,
            "tokens_per_s": self.simulation.tokens_per_s,
            "tokens_per_s_low": tokens.low,
            "tokens_per_s_high": tokens.high,
            **self.simulation.figures("ttft"),
            **self.simulation.figures("tpot"),
            "basis": self.simulation.basis,
            "usd_per_million_tokens": self.usd_per_million_tokens,
        }


def search(
    model: str | ModelConfig,
    gpu: str,
    *,
    slo: str | None = None,
    price: float | None = None,
    max_gpus: int = 16,
    report: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> list[Choice]:
    """Return the choices that no other beats for a load, the best first.

    They are compared in GPUs, requests within the SLO, and latency. The best one lets at least
    ENOUGH of the requests meet the SLO on the fewest GPUs. All turns of a session go to one
    replica, other requests to the least busy one.

    Args:
        slo: limits such as "ttft=500ms,tpot=50ms".
        price: US dollars an hour for one GPU.
        max_gpus: GPUs that a choice may have in all its replicas.
        report: called with a line of text after each attempt.
        options: those of `simulate`, without the DECIDED ones. The candidates share them.

    Raises:
        BadInput: the load, a limit or an option is impossible, or nothing fits on max_gpus.
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
    for name in DECIDED:
        if name in options:
            raise BadInput(
                f"--{name.replace('_', '-')} and --search cannot go together.",
                "Leave it out: the search simulates splits, formats, batch sizes and replicas.",
            )
    arrivals, others = arriving(options)
    servers, plan_options = server_options(slo, others)
    sessions = any(arrival.follows not in (None, NEXT_ANSWER) for arrival in arrivals)
    servers["router"] = "prefix" if sessions else "least-busy"
    attempts = _Search(model, gpu, arrivals, servers, price, max_gpus, report)
    plans = list(candidates(model, gpu, plan_options))
    for number, candidate in enumerate(plans, 1):
        attempts.place = f"{number} of {len(plans)}"
        attempts.fewest_replicas(candidate)
    for number, choice in enumerate(attempts.promising(), 1):
        attempts.place = f"batch {number} of {REFINED}"
        attempts.refine(choice)
    return attempts.best()


def candidates(model: str | ModelConfig, gpu: str, planned: dict) -> Iterator[dict]:
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


@dataclass
class _Search:
    """Simulates plans, and records the choices that were tried.

    `servers` are the options of `on_plan` that all candidates share.
    """

    model: str | ModelConfig
    gpu: str
    arrivals: Sequence[Arrival]
    servers: ServerOptions
    price: float | None
    max_gpus: int
    report: Callable[[str], None]
    place: str = ""  # of the candidate that is tried, among all
    tried: list[Choice] = field(default_factory=list)
    refused: tuple[float, BadInput] = (math.inf, BadInput(""))  # the nearest: how far, and why

    def __post_init__(self):
        self.most_gpus = self.max_gpus  # falls to MOST_TIMES the GPUs of a choice that is enough

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
            problem = f"No split of {p.model} over {most} holds it and a request of {p.deployment.settings.max_model_len:,} tokens."
            remedy = "Give more --max-gpus, a larger --gpu or a shorter --max-model-len."
            return self.refuse(MEMORY, BadInput(problem, remedy))
        try:
            servers: ServerOptions = {**self.servers, "replicas": replicas}
            simulation = on_plan(p, self.arrivals, **servers)
        except BeyondReach as error:
            remedy = "Give a larger limit, more --max-gpus or a faster --gpu."
            return self.refuse(error.least_ms, BadInput(error.message, remedy))
        except BadInput as error:
            return self.refuse(0, error)
        choice = Choice(plan_options, simulation, self.price)
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

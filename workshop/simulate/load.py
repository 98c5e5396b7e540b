"""Simulates a load on a plan: vLLM's scheduler with the plan's blocks and settings.

Time comes from the simulator's clock.
"""

import contextlib
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import ModelConfig
from inference_planner.split.communication import network_link, node_link
from inference_planner.split.settings import caches_states

from workshop.engine.planning import plan
from workshop.engine.trace_writer import name_of
from workshop.errors import BadInput
from workshop.files import output
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, check_size, drawn, read_trace
from workshop.simulate.clock import Clock, of
from workshop.simulate.engine import Rules
from workshop.simulate.report import PLANNED, Simulation, parse_slo
from workshop.simulate.sessions import Sessions, drawn_sessions

ROUTERS = ("round-robin", "least-busy", "prefix")
SESSION_OPTIONS = ("sessions", "turns", "think", "system", "tool")
TIMES = ("rate", "seconds", "burst", "concurrency", "requests")
MOST_REPLICAS = 64
# Seconds that a request's KV transfer through NIXL takes on top of its bytes. Fitted to the busy
# load of two H200, vLLM 0.32.0 (tests/data/simulate/records/h200_llama-3.1-8b_prefill-apart.json).
KV_TRANSFER_S = 0.055


class ServerOptions(TypedDict, total=False):
    """The keyword arguments of `on_plan` that describe the servers and what is written."""

    replicas: int
    prefill_replicas: int
    router: str
    slo: dict[str, float] | None
    steps: str | Path | None
    force: bool
    enable_prefix_caching: bool | None


SERVERS = tuple(name for name in ServerOptions.__annotations__ if name != "slo")


class BeyondReach(BadInput):
    """A limit that no request can keep: one request alone already takes `least_ms`."""

    def __init__(self, message: str, remedy: str, least_ms: float):
        super().__init__(message, remedy)
        self.least_ms = least_ms


def simulate(
    model: str | ModelConfig, gpu: str, *, slo: str | None = None, **options: Any
) -> Simulation:
    """Predict how a load is served.

    How long requests wait, how fast tokens come, and how full the KV cache is.

    Args:
        model: a catalog name, a Hub id, a folder with a config.json, or a ModelConfig.
        gpu: a catalog name.
        slo: limits such as "ttft=500ms,tpot=50ms"; then `goodput_per_s` counts the requests that
            meet them.
        options: three kinds.
            The load: rate (requests a second, Poisson) and seconds; or burst (requests at once); or
            concurrency (clients in a closed loop) and requests; or trace (a file); prompt and output ((fewest, most) tokens), prefix (tokens that all
            prompts share), seed. Or sessions, whose prompts grow with each turn: see
            `sessions.Sessions`, whose think_s is `think` here. The servers: replicas,
            prefill_replicas, router, steps, force, enable_prefix_caching, as for `on_plan`.
            All others are those of `plan` (tensor_parallel_size, max_model_len, max_num_seqs, …).

    Raises:
        BadInput: the load is impossible, or the plan cannot take it.
        WorkshopError: vLLM, whose scheduler runs, is missing or of an unknown version.
    """
    arrivals, others = arriving(options)
    servers, plan_options = server_options(slo, others)
    return on_plan(plan(model, gpu, **plan_options), arrivals, **servers)


def server_options(
    slo: str | None, options: dict[str, Any]
) -> tuple[ServerOptions, dict[str, Any]]:
    """Return the options of `on_plan`, and those of `plan`.

    Raises BadInput: a limit of the SLO is impossible.
    """
    servers: ServerOptions = {"slo": parse_slo(slo)}
    plan_options = dict(options)
    for name in SERVERS:
        if name in plan_options:
            servers[name] = plan_options.pop(name)
    caching = servers.get("enable_prefix_caching")
    if caching is not None:  # without it a hybrid's requests hold fewer states
        plan_options["enable_prefix_caching"] = caching
    return servers, plan_options


def arriving(options: dict[str, Any]) -> tuple[list[Arrival], dict[str, Any]]:
    """Return the requests that the options describe, and the options that are not about the load.

    Raises BadInput: the load is impossible, or both drawn and read from a trace.
    """
    others = dict(options)
    session_options = {}
    for name in SESSION_OPTIONS:
        value = others.pop(name, None)
        if value is not None:
            session_options[name] = value
    load = {}
    for name in inspect.signature(drawn).parameters:
        if name in others:
            load[name] = others.pop(name)
    trace = others.pop("trace", None)
    if session_options:
        return _sessions(session_options, load, trace), others
    if trace is None:
        return drawn(**load), others
    if any(load.get(name) is not None for name in TIMES):
        raise BadInput(
            "A trace says itself when requests arrive.",
            "Leave --rate, --seconds, --burst, --concurrency and --requests out.",
        )
    return read_trace(trace), others


def _sessions(
    options: dict[str, Any], load: dict[str, Any], trace: str | Path | None
) -> list[Arrival]:
    """Return the requests of sessions.

    Raises BadInput: options of another kind of load, or not how many sessions.
    """
    if "sessions" not in options:
        raise BadInput(
            f"--{next(iter(options))} is about sessions.", "Say how many: --sessions 40."
        )
    names = ("seconds", "burst", "concurrency", "requests", "prefix")
    unfit = {name: load.get(name) for name in names} | {"trace": trace}
    for name, value in unfit.items():
        if value:
            raise BadInput(
                f"Sessions and --{name} cannot be one load.",
                "Give --sessions with --turns, --think, --system, --tool and --rate (sessions a second).",
            )
    drawn_options = dict(options)
    if "think" in drawn_options:
        drawn_options["think_s"] = drawn_options.pop("think")
    for name in ("rate", "prompt", "output", "seed"):
        if load.get(name) is not None:
            drawn_options[name] = load[name]
    return drawn_sessions(Sessions(**drawn_options))


def on_plan(
    plan: Plan,
    arrivals: Sequence[Arrival],
    *,
    replicas: int = 1,
    prefill_replicas: int = 0,
    router: str = "round-robin",
    slo: dict[str, float] | None = None,
    steps: str | Path | None = None,
    force: bool = False,
    enable_prefix_caching: bool | None = None,
    clock: Clock | None = None,
    num_gpu_blocks: int | None = None,
) -> Simulation:
    """Simulate these requests on a plan.

    Args:
        replicas: servers of this plan behind one router. Each data-parallel rank of a dense model
            is a replica too.
        prefill_replicas: further servers that only prefill; they send the KV cache to the others.
        router: one of ROUTERS.
        slo: limits in ms by name (ttft, tpot, e2el).
        steps: a new file for the steps, one JSON line each. Several engines write FILE, FILE.1,
            FILE.2, …
        force: replace files of those names.
        enable_prefix_caching: None for vLLM's default.
        clock, num_gpu_blocks: measured values, instead of the plan's. `clock.of` takes how long
            Python and launches take on a host: 1 on most measured ones, 0.7 on the fastest.

    Raises:
        BadInput: the plan cannot take the load, or an option is out of range.
        WorkshopError: vLLM, whose scheduler runs, is missing or of an unknown version.
    """
    clock = clock or of(plan.deployment)
    limits = slo or {}
    counts = [replicas]
    if prefill_replicas:
        counts.append(prefill_replicas)
    check(plan, arrivals, limits, clock, counts, router)
    # data-parallel ranks that share experts are engines of one replica: they wait for each other
    engines = plan.data_parallel_size if plan.deployment.model.moe else 1
    if plan.data_parallel_size > 1 and replicas == 1:
        router = "least-busy"  # what vLLM does among its own engines

    prefill = None
    if prefill_replicas:
        prefill = kv_transfer(plan, prefill_replicas * plan.data_parallel_size // engines)
    job = {
        "replicas": replicas * plan.data_parallel_size // engines,
        "engines": engines,
        "prefill": prefill,
        "router": router,
    }
    scheduler_rules = rules(plan, enable_prefix_caching, num_gpu_blocks)
    names: list[str] = []
    if steps is not None:
        count = (replicas + prefill_replicas) * plan.data_parallel_size
        names = [name_of(str(steps), index) for index in range(count)]
    with contextlib.ExitStack() as files:
        parts = []
        for name in names:
            file = files.enter_context(output(name, force=force))
            parts.append(file.name)
        outcome = process.run(scheduler_rules, clock, arrivals, steps=parts, **job)
    planned = {name: getattr(plan, name) for name in PLANNED}
    return Simulation(
        **planned,
        time_share=plan.spread.time_share,
        prefill_share=plan.spread.prefill_share,
        gpus=plan.gpus * (replicas + prefill_replicas),
        replicas=replicas,
        prefill_replicas=prefill_replicas,
        slo=limits,
        **outcome,
    )


def kv_transfer(plan: Plan, replicas: int) -> dict[str, Any]:
    """Return how many replicas prefill, and how long their KV cache travels.

    The times are seconds per request and seconds per token.

    Every rank sends its part over its own link: the network between nodes, where a server fills
    half a node or more. In a network with one port a node the ranks of a node share it.
    """
    deployment = plan.deployment
    if 2 * plan.gpus <= plan.deployment.gpus_per_node:
        link, links = node_link(deployment.gpu), deployment.replica_gpus
    else:
        link = network_link(deployment.network)
        links = link.ports(
            deployment.replica_gpus, nodes=-(-deployment.replica_gpus // deployment.gpus_per_node)
        )
    token_s = plan.kv_bytes_per_token / (links * link.gb_s * 1e9)
    wait_s = KV_TRANSFER_S + link.message_us / 1e6
    return {"replicas": replicas, "wait_s": wait_s, "token_s": token_s}


def rules(
    plan: Plan, enable_prefix_caching: bool | None = None, num_gpu_blocks: int | None = None
) -> Rules:
    """Return the rules of the plan's scheduler; a hybrid's states may be cached with its prefixes."""
    settings = plan.deployment.settings
    groups = plan.fit.layout.groups
    kinds_and_sizes = []
    states = []
    state_blocks = 2
    for group in groups:
        kinds_and_sizes.append((group.kind, group.size))
        if group.keeps_states:
            states.append(group)
    if states:
        state_blocks = max(group.blocks_per_request for group in states)
    if enable_prefix_caching is None:
        enable_prefix_caching = settings.enable_prefix_caching
    if enable_prefix_caching is None:
        enable_prefix_caching = not states or caches_states(plan.deployment.model, settings)
    return Rules(
        num_gpu_blocks=num_gpu_blocks or plan.num_gpu_blocks,
        block_size=plan.fit.layout.block_size,
        groups=tuple(kinds_and_sizes),
        state_blocks=state_blocks,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
        async_scheduling=settings.version.schedules_ahead,
        pipeline_parallel_size=plan.pipeline_parallel_size,
    )


def check(
    plan: Plan,
    arrivals: Sequence[Arrival],
    slo: dict[str, float],
    clock: Clock,
    replicas: Sequence[int],
    router: str,
) -> None:
    """Raise BadInput for a load that the plan cannot take, or a limit that no server could keep."""
    if not plan.fits:
        raise BadInput(
            f"{plan.model} does not fit on {plan.gpus} × {plan.gpu}.", " ".join(plan.advice[:1])
        )
    for count in replicas:
        if not 1 <= count * plan.data_parallel_size <= MOST_REPLICAS:
            raise BadInput(
                f"{count} replicas cannot be.",
                f"Give 1 to {MOST_REPLICAS // plan.data_parallel_size}.",
            )
    if router not in ROUTERS:
        raise BadInput(
            f"The router {router!r} is not known.", f"Choose from: {', '.join(ROUTERS)}."
        )
    if len(replicas) > 1 and any(arrival.follows is not None for arrival in arrivals):
        raise BadInput(
            "Sessions and closed loops cannot be simulated with disaggregated prefill.",
            "Leave --prefill-replicas out, or give a --trace with the times of all requests.",
        )
    _check_lengths(plan, arrivals)
    check_size(arrivals)
    _check_limits(plan, slo, clock)


def _check_lengths(plan: Plan, arrivals: Sequence[Arrival]) -> None:
    longest = max(arrivals, key=lambda arrival: arrival.prompt_tokens + arrival.output_tokens)
    if longest.prompt_tokens + longest.output_tokens <= plan.deployment.settings.max_model_len:
        return
    lengths = (
        f"A prompt of {longest.prompt_tokens:,} tokens with {longest.output_tokens:,} of an answer"
    )
    remedy = (
        "Give shorter --prompt and --output, or a larger --max-model-len where the model allows it."
    )
    raise BadInput(
        f"{lengths} is longer than the context of {plan.deployment.settings.max_model_len:,} tokens.",
        remedy,
    )


def _check_limits(plan: Plan, slo: dict[str, float], clock: Clock) -> None:
    token_ms = clock.gpu_ms([(1, 1)])
    first_token_ms = token_ms + (clock.way_in_s + clock.way_out_s) * 1e3
    least_ms = {"tpot": token_ms, "ttft": first_token_ms, "e2el": first_token_ms}
    for name, limit in slo.items():
        if limit < least_ms[name]:
            alone = f"{plan.model} takes {least_ms[name]:.1f} ms on {plan.gpus} × {plan.gpu}"
            problem = f"No request can have {name} within {limit:g} ms: alone, {alone}."
            remedy = (
                "Give a larger limit, more GPUs in --tensor-parallel-size, or --quantization fp8."
            )
            raise BeyondReach(problem, remedy, least_ms[name])

"""A load on a plan: vLLM's scheduler with the plan's blocks and settings, each step as long as the plan's clock says."""

import contextlib
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from inference_planner.communication import network_link, node_link
from inference_planner.memory import fit
from inference_planner.parallelism import Plan

from workshop.engine.exact import plan
from workshop.engine.trace_writer import name_of
from workshop.errors import BadInput
from workshop.files import is_stream, output
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, check_size, drawn, read_trace
from workshop.simulate.clock import Clock, of
from workshop.simulate.engine import Rules
from workshop.simulate.report import PLANNED, Simulation, parse_slo

ROUTERS = ("round-robin", "least-busy", "prefix")
MOST_REPLICAS = 64
HAND_OVER_S = 0.055  # of a request through NIXL, on top of its bytes: fitted to the busy load of two H200, vLLM 0.32.0
SERVERS = (
    "replicas",
    "prefill_replicas",
    "router",
    "steps",
    "force",
    "inputs",
    "enable_prefix_caching",
    "host_factor",
)


class GivenUp(Exception):
    """Whoever watched a simulation did not want its end."""


class BeyondReach(BadInput):
    """A limit below least_ms, which one request alone takes."""

    def __init__(self, message: str, remedy: str, least_ms: float):
        super().__init__(message, remedy)
        self.least_ms = least_ms


def simulate(model: str, gpu: str, *, slo: str | None = None, **options: object) -> Simulation:
    """Return what a load would find: how long requests wait, how fast their tokens come, what the KV cache holds.

    slo: "ttft=500ms,tpot=50ms"; then goodput_per_s counts the requests that meet it.
    options: of the load: rate (requests a second, Poisson) and seconds; or burst (so many at once); or trace (a
        file); prompt and output ((fewest, most) tokens), prefix (tokens that all prompts share), seed. Of the
        servers: replicas, prefill_replicas, router, steps, force, inputs, enable_prefix_caching, host_factor, as
        `on_plan` has them.
        All others are the plan's (tensor_parallel_size, max_model_len, max_num_seqs, …), with vllm serve's defaults.

    Raises:
        BadInput: a load that cannot be, or one that the plan cannot take.
        WorkshopError: there is no vLLM to take the scheduler from, or an unknown version of it.
    """
    if options.get("trace") is not None:
        options["inputs"] = [*options.get("inputs", ()), options["trace"]]
    arrivals, options = arriving(options)
    how = {name: options.pop(name) for name in SERVERS if name in options}
    return on_plan(plan(model, gpu, **options), arrivals, slo=parse_slo(slo), **how)


def arriving(options: dict) -> tuple[list[Arrival], dict]:
    """Return the requests that the options ask for, and the other options."""
    rest = dict(options)
    load = {name: rest.pop(name) for name in inspect.signature(drawn).parameters if name in rest}
    trace = rest.pop("trace", None)
    if trace is None:
        return drawn(**load), rest
    if any(load.get(name) is not None for name in ("rate", "seconds", "burst")):
        raise BadInput(
            "A trace says itself when requests arrive.", "Leave --rate, --seconds and --burst out."
        )
    return read_trace(trace), rest


def on_plan(
    p: Plan,
    arrivals: Sequence[Arrival],
    *,
    replicas: int = 1,
    prefill_replicas: int = 0,
    router: str = "round-robin",
    slo: dict[str, float] | None = None,
    steps: str | Path | None = None,
    force: bool = False,
    inputs: Sequence[str | Path] = (),
    enable_prefix_caching: bool | None = None,
    host_factor: float = 1.0,
    clock: Clock | None = None,
    num_gpu_blocks: int | None = None,
    seen: Callable[[Simulation], bool] | None = None,
) -> Simulation | None:
    """Return what these requests would find.

    replicas: servers of this plan behind one router; those of data parallelism are replicas, too.
    prefill_replicas: as many more that only read prompts, whose KV cache is then sent to the others.
    steps: a new file for the steps, one JSON line each; of several engines the others write steps.1, steps.2, …
    force: replace files of those names.
    inputs: files that were read for this, which are never replaced.
    host_factor: how long Python and launches take there: 1 on most hosts that were measured, 0.7 on the fastest.
    clock, num_gpu_blocks: where they were measured, not planned.
    seen: is given what is known so far, a few times a second; where it returns False all ends, with None.
    """
    if not 0.1 <= host_factor <= 10:
        raise BadInput(f"A host factor of {host_factor:g} cannot be.", "Give one from 0.1 to 10.")
    clock = clock or of(p.deployment, host_factor)
    check(
        p,
        arrivals,
        slo or {},
        clock,
        (replicas, *((prefill_replicas,) if prefill_replicas else ())),
        router,
    )
    # of a replica: those that share experts wait for one another
    engines = p.data_parallel_size if p.config.moe else 1
    if p.data_parallel_size > 1 and replicas == 1:
        router = "least-busy"  # what vLLM does among its own engines

    def made(answer: dict) -> Simulation:
        return Simulation(
            **{name: getattr(p, name) for name in PLANNED},
            gpus=p.gpus * (replicas + prefill_replicas),
            replicas=replicas,
            prefill_replicas=prefill_replicas,
            slo=slo or {},
            **answer,
        )

    job = {
        "replicas": replicas * p.data_parallel_size // engines,
        "engines": engines,
        "prefill": handed_over(p, prefill_replicas * p.data_parallel_size // engines)
        if prefill_replicas
        else None,
        "router": router,
    }
    watch = (lambda known: seen(made(known))) if seen else None
    scheduler_rules = rules(p, enable_prefix_caching, num_gpu_blocks)
    if steps is None:
        answer = process.run(scheduler_rules, clock, arrivals, watch, **job)
        return made(answer) if answer else None
    names = steps_files(steps, (replicas + prefill_replicas) * p.data_parallel_size)
    with contextlib.suppress(GivenUp), contextlib.ExitStack() as files:
        parts = [
            files.enter_context(output(name, force=force, inputs=inputs)).name for name in names
        ]
        answer = process.run(scheduler_rules, clock, arrivals, watch, steps=parts, **job)
        if not answer:
            raise GivenUp  # nothing is written
        return made(answer)
    return None


def steps_files(steps: str | Path, engines: int) -> list[str]:
    """Return the file of each engine: FILE, FILE.1, FILE.2, …"""
    if not is_stream(steps):
        return [name_of(str(steps), index) for index in range(engines)]
    if engines > 1:
        raise BadInput(
            f"{engines} engines cannot all write their steps to {steps}.",
            "Give a file: --steps FILE.",
        )
    return [str(steps)]


def handed_over(p: Plan, replicas: int) -> dict:
    """Return how many engines read prompts, and how long their KV cache takes to where answers are made.

    Every rank sends what it has over its own link: the nodes' network, where a server fills a node or more.
    """
    d = p.deployment
    link = node_link(d.gpu) if 2 * p.gpus <= p.gpus_per_node else network_link(d.network)
    token_s = p.kv_bytes_per_token / (d.replica_gpus * link.gb_s * 1e9)
    return {"replicas": replicas, "wait_s": HAND_OVER_S + link.message_us / 1e6, "token_s": token_s}


def rules(
    p: Plan, enable_prefix_caching: bool | None = None, num_gpu_blocks: int | None = None
) -> Rules:
    """Return what the plan's server tells its scheduler. A hybrid's states are cached with its prefixes since 0.32.0.

    Source: vLLM 0.32.0, config/model.py is_prefix_caching_supported; models of states alone cache none.
    """
    s, kinds = p.settings, fit(p.deployment).layout.groups
    states = [group for group in kinds if group.keeps_states]
    if enable_prefix_caching is None:
        enable_prefix_caching = not states or (s.version.caches_states and len(states) < len(kinds))
    return Rules(
        num_gpu_blocks=num_gpu_blocks or p.num_gpu_blocks,
        block_size=p.block_size,
        groups=tuple((group.kind, group.size) for group in kinds),
        state_blocks=max((group.blocks_per_request for group in states), default=2),
        **{
            name: getattr(s, name)
            for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens")
        },
        enable_prefix_caching=enable_prefix_caching,
        pipeline_parallel_size=p.pipeline_parallel_size,
    )


def check(
    p: Plan,
    arrivals: Sequence[Arrival],
    slo: dict[str, float],
    clock: Clock,
    replicas: Sequence[int],
    router: str,
) -> None:
    """Raise BadInput for what the plan cannot take, or no server could keep."""
    if not p.fits:
        raise BadInput(f"{p.model} does not fit on {p.gpus} × {p.gpu}.", " ".join(p.advice[:1]))
    for count in replicas:
        if not 1 <= count * p.data_parallel_size <= MOST_REPLICAS:
            raise BadInput(
                f"{count} replicas cannot be.",
                f"Give 1 to {MOST_REPLICAS // p.data_parallel_size}.",
            )
    if router not in ROUTERS:
        raise BadInput(
            f"The router {router!r} is not known.", f"Choose from: {', '.join(ROUTERS)}."
        )
    longest = max(arrivals, key=lambda a: a.prompt_tokens + a.output_tokens)
    if longest.prompt_tokens + longest.output_tokens > p.max_model_len:
        lengths = f"A prompt of {longest.prompt_tokens:,} tokens with {longest.output_tokens:,} of an answer"
        remedy = "Give shorter --prompt and --output, or a larger --max-model-len where the model allows it."
        raise BadInput(
            f"{lengths} is longer than the context of {p.max_model_len:,} tokens.", remedy
        )
    check_size(arrivals)
    least_ms = {"tpot": clock.gpu_ms([(1, 1)])}
    least_ms["ttft"] = least_ms["e2el"] = (
        least_ms["tpot"] + (clock.way_in_s + clock.way_out_s) * 1e3
    )
    for name, limit in slo.items():
        if limit < least_ms[name]:
            alone = f"{p.model} takes {least_ms[name]:.1f} ms on {p.gpus} × {p.gpu}"
            said = f"No request can have {name} within {limit:g} ms: alone, {alone}."
            remedy = (
                "Give a larger limit, more GPUs in --tensor-parallel-size, or --quantization fp8."
            )
            raise BeyondReach(said, remedy, least_ms[name])

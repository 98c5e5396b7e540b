from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from workshop.cli.plan.model_argument import with_config
from workshop.cli.plan_options import SESSIONS, PlanningCommand, Range, Tokens, simulated_options
from workshop.cli.say import force_option, json_option, say, say_json, waiting
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.simulate.report import Simulation

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 60


LOAD = [
    click.Option(["--rate"], type=float, help="Requests a second, Poisson."),
    click.Option(["--seconds"], type=float, help="How long requests arrive."),
    click.Option(["--burst"], type=int, help="Or: this many requests at once."),
    click.Option(
        ["--concurrency"],
        type=int,
        help="Or: this many clients, each of which sends its next request after its answer.",
    ),
    click.Option(["--requests"], type=int, help="Of those clients together."),
    click.Option(
        ["--trace"], help="Or: a file of requests, one JSON line each (docs/simulate.md)."
    ),
    click.Option(
        ["--prompt"],
        type=Range(),
        default="64:512",
        show_default=True,
        help="Tokens of a prompt, drawn evenly.",
    ),
    click.Option(
        ["--output"], type=Range(), default="16:256", show_default=True, help="Tokens of an answer."
    ),
    click.Option(
        ["--prefix"],
        type=Tokens(),
        default=0,
        help="Tokens that all prompts share at their beginning.",
    ),
    click.Option(
        ["--sessions"], type=int, help="Or: this many agents, whose prompts grow with each turn."
    ),
    *SESSIONS,
    click.Option(
        ["--slo"],
        help="Limits, as ttft=500ms,tpot=50ms (also e2el): counts the requests that meet them.",
    ),
    click.Option(
        ["--seed"], type=int, default=0, show_default=True, help="Seed of arrivals and lengths."
    ),
]


@click.command(cls=PlanningCommand, params=[*LOAD, *simulated_options()])
@click.argument("model", required=False)
@click.option("--gpu", help="GPU name: h100, h200, a100-80gb, …")
@click.option(
    "--replicas", type=int, default=1, show_default=True, help="Servers behind one router."
)
@click.option(
    "--prefill-replicas",
    type=int,
    default=0,
    help="Further servers that only prefill (disaggregated prefill).",
)
@click.option(
    "--router", default="round-robin", show_default=True, help="round-robin, least-busy or prefix."
)
@click.option(
    "--search",
    is_flag=True,
    help="Find the split, replicas and settings that keep --slo on the fewest GPUs.",
)
@click.option(
    "--price",
    type=float,
    help="With --search: US dollars an hour for one GPU. Adds the cost of a million tokens.",
)
@click.option(
    "--max-gpus",
    type=int,
    default=16,
    show_default=True,
    help="With --search: no choice has more, over all replicas (64 at most).",
)
@click.option(
    "--plot",
    help="With --search: draw the choices into this new file (.svg).",
)
@click.option("--steps", help="Write every step to this new file, one JSON line each.")
@force_option()
@json_option(
    "{model, gpu, requests, seconds, tokens_per_s, ttft_ms, tpot_ms, itl_ms, e2el_ms, goodput_per_s, …}; with --search {choices: [{command, gpus, replicas, goodput_per_s, ttft_ms, tpot_ms, usd_per_million_tokens}]}"
)
@click.pass_context
def command(
    context: click.Context,
    model: str | None,
    gpu: str | None,
    search: bool,
    as_json: bool,
    force: bool,
    **options: Any,
) -> None:
    """Simulate a load on MODEL: waiting times, tokens/s, KV cache, preemptions. No GPU is needed.

    vLLM's own scheduler decides every step, and the plan says how long a step takes. The scheduler
    is that of the vLLM beside us; --vllm-version is the plan's.

    --search tries tensor and pipeline parallel sizes, replicas, weights and KV cache in FP8,
    max_num_batched_tokens and max_num_seqs. It lists the choices that no other beats in GPUs,
    requests within --slo and latency, the best first. All turns of a session go to one replica,
    other requests to the least busy one. --concurrency is the number of clients of all replicas.

    \b
      workshop simulate llama-3.1-8b --gpu h100 --rate 8 --seconds 60
      workshop simulate llama-3.1-8b --gpu h100 --rate 20 --seconds 30 --search --slo ttft=500ms,tpot=30ms --price 2.5
      workshop simulate llama-3.1-70b --gpu h100 -tp 4 --burst 256 --prompt 1024 --output 128
      workshop simulate llama-3.1-70b --gpu h200 -tp 2 --replicas 2 --rate 20 --seconds 60 --slo ttft=500ms,tpot=50ms
      workshop simulate llama-3.1-8b --gpu h100 --sessions 90 --turns 6 --think 3 --system 1500 --tool 50:600
      workshop simulate llama-3.1-8b --gpu h100 --concurrency 64 --requests 256 --prompt 1000 --output 200
    """
    from inference_planner.arguments import required

    model, gpu = required(model, gpu)
    assert gpu is not None  # no other option describes a card
    if search:
        from workshop.simulate.choices import DECIDED

        for name in DECIDED:
            if not _typed(context, name):
                del options[name]
        _search(model, gpu, options, force, as_json)
        return
    for name in ("price", "max_gpus", "plot"):
        if _typed(context, name):
            raise BadInput(
                f"--{name.replace('_', '-')} is about a search.",
                "Add --search --slo ttft=500ms,tpot=50ms.",
            )
        del options[name]
    _simulate(model, gpu, options, force, as_json)


def _typed(context: click.Context, name: str) -> bool:
    """Return True if the user gave this option."""
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _simulate(model: str, gpu: str, options: dict[str, Any], force: bool, as_json: bool) -> None:
    """Print one simulation. The exit code is 1 if the servers do not keep up."""
    from workshop.files import check_output

    if options["steps"]:
        check_output(options["steps"], force=force)
    from workshop.simulate.load import simulate

    config = with_config(model)
    with waiting("vLLM's scheduler decides, step by step …"):
        result = simulate(config, gpu, force=force, **options)
    if as_json:
        say_json(result.to_dict())
    else:
        say(as_text(result))
    if not result.keeps_up:
        sys.exit(1)


def _search(model: str, gpu: str, options: dict[str, Any], force: bool, as_json: bool) -> None:
    """Print the choices that no other beats for the load."""
    from workshop.files import check_output, output

    plot = options.pop("plot")
    if plot:
        check_output(plot, force=force)
    from workshop.cli.plan import choices as shown
    from workshop.simulate import choices

    config = with_config(model)
    best = choices.search(config, gpu, report=lambda text: say(f"· {text}", err=True), **options)
    if plot:
        with output(plot, force=force) as file:
            file.write(shown.drawing(best).encode(errors="backslashreplace"))
    if as_json:
        say_json({"choices": [choice.to_dict() for choice in best]})
    else:
        say(shown.as_text(best))


def as_text(simulation: Simulation) -> str:
    from workshop.simulate.report import MEASURES

    figures = simulation.to_dict()
    many = ""
    if simulation.prefill_replicas:
        many = f"{simulation.prefill_replicas} (prefill) + {simulation.replicas} (decode) × "
    elif simulation.replicas > 1:
        many = f"{simulation.replicas} × "
    lines = [
        f"{simulation.model} on {simulation.gpus} × {simulation.gpu}: {figures['requests']:,} requests in {simulation.seconds:,.1f} s, {simulation.tokens_per_s:,.0f} tokens/s",
        f"{many}{simulation.command}",
        "",
        f"{'ms':<34}{'p50':>10}{'p95':>10}{'p99':>10}{'mean':>10}",
    ]
    for measure, title in MEASURES.items():
        cells = []
        for value in simulation.of(measure).values():
            shown = "–"
            if value is not None:
                shown = format(value, ",.1f")
            cells.append(f"{shown:>10}")
        lines.append(f"{measure:<6}{title:<28}{''.join(cells)}")
    lines.append("")
    for name in ("running", "waiting"):
        lines.append(
            f"{name:<9}{curve(simulation.over_time[name])}  at most {max(simulation.over_time[name]):,} requests"
        )
    lines += [
        f"KV cache {curve(simulation.over_time['kv_cache_usage'])}  at most {simulation.kv_cache_usage_max:.1%} full",
        "",
    ]
    cached = f"{figures['prefix_hit_rate']:.0%} of the prompts' tokens were cached"
    lines.append(f"· {simulation.steps:,} steps, {figures['preempted']:,} preemptions, {cached}")
    lines.append(f"· {simulation.basis}: {_ranges(simulation)}")
    if simulation.slo:
        limits = ", ".join(f"{name} ≤ {ms:g} ms" for name, ms in simulation.slo.items())
        lines.append(f"· {simulation.goodput_per_s:.2f} requests a second meet {limits}")
    if not simulation.keeps_up:
        slow = "✗ It does not keep up: requests pile up as long as they come."
        lines.append(f"{slow} → More --replicas or GPUs, or a lower --rate.")
    return "\n".join([*lines, f"· simulated in {simulation.wall_s:.1f} s"])


def _ranges(simulation: Simulation) -> str:
    """Return between which values nine of ten measured figures lie.

    The figures are tokens/s, first token, and time per token.
    """
    tokens = simulation.tokens_per_s_interval
    parts = [f"{tokens.low:,.0f} to {tokens.high:,.0f} tokens/s"]
    for measure in ("ttft", "tpot"):
        figures = simulation.figures(measure)
        low = figures[f"{measure}_ms_low"]["p50"]
        high = figures[f"{measure}_ms_high"]["p50"]
        if low is not None:
            parts.append(f"{measure} p50 {low:,.1f} to {high:,.1f} ms")
    return ", ".join(parts)


def curve(values: list[float]) -> str:
    """Return a line of bars, from 0 to the largest value."""
    top, width = max(values) or 1, max(1, len(values) // COLUMNS)
    parts = (max(values[at : at + width]) for at in range(0, len(values), width))
    return "".join(BARS[min(len(BARS) - 1, int(part / top * len(BARS)))] for part in parts)

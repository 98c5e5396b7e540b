"""`workshop simulate`: what a load would find, from vLLM's own scheduler on the plan's clock."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

import click

from workshop.cli.plan import Tokens
from workshop.cli.say import json_option, say, say_json
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.simulate.report import Simulation

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 60


class Range(click.ParamType):
    """FEWEST:MOST tokens, or one number for both."""

    name = "fewest:most"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", str(value))
        if not found:
            self.fail(f"{str(value)[:40]!r} is not FEWEST:MOST tokens (64:512), or one number.", param, ctx)
        return int(found[1]), int(found[2] or found[1])


LOAD = (
    click.option("--gpu", help="GPU name, as `workshop plan --list-gpus` prints them."),
    click.option("--rate", type=float, help="Requests a second, Poisson."),
    click.option("--seconds", type=float, help="How long they come."),
    click.option("--burst", type=int, help="So many requests at once instead."),
    click.option("--trace", help="A file of requests instead, one JSON line each (docs/simulate.md)."),
    click.option(
        "--prompt", type=Range(), default="64:512", show_default=True, help="Tokens of a prompt, drawn evenly."
    ),
    click.option("--output", type=Range(), default="16:256", show_default=True, help="Tokens of an answer."),
    click.option("--prefix", type=Tokens(), default=0, help="Tokens that all prompts share at their beginning."),
    click.option("--slo", help="Limits, as ttft=500ms,tpot=50ms (also e2el): counts the requests that meet them."),
    click.option("--seed", type=int, default=0, show_default=True, help="Of arrivals and lengths."),
    click.option("--max-model-len", type=Tokens(), help="Tokens of one request.  [default: the model's]"),
    click.option("--gpus-per-node", type=int, help="GPUs in one node.  [default: 8]"),
    click.option("--gpu-memory-utilization", type=float, help="Share of the GPU that vLLM takes.  [default: 0.92]"),
)
ENGINE = (
    click.option("--tensor-parallel-size", "-tp", type=int, help="Without it the plan chooses."),
    click.option("--pipeline-parallel-size", "-pp", type=int, help="Without it the plan chooses."),
    click.option("--quantization", "-q", help="vLLM's name: fp8, awq, …"),
    click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, fp8, …"),
    click.option("--max-num-seqs", type=Tokens(), help="Requests of one step.  [default: vLLM's for this GPU]"),
    click.option("--max-num-batched-tokens", type=Tokens(), help="Tokens of one step.  [default: vLLM's]"),
    click.option("--enforce-eager", is_flag=True, help="No CUDA graphs."),
    click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="As vLLM's flag."),
)


def with_options(*groups: tuple) -> Callable:
    """Return a decorator that adds the options in this order."""

    def add(command: Callable) -> Callable:
        for option in reversed(list(chain(*groups))):
            command = option(command)
        return command

    return add


@click.command()
@click.argument("model", required=False)
@with_options(LOAD, ENGINE)
@click.option("--replicas", type=int, default=1, show_default=True, help="Servers behind one router.")
@click.option("--router", default="round-robin", show_default=True, help="round-robin, least-busy or prefix.")
@click.option("--local", is_flag=True, help="The teaching server here: measure its clock, simulate, compare.")
@click.option("--steps", help="Write every step to this file, one JSON line each.")
@json_option("{model, gpu, requests, seconds, tokens_per_s, ttft_ms, tpot_ms, itl_ms, e2el_ms, goodput_per_s, …}")
def command(model: str | None, gpu: str | None, local: bool, as_json: bool, **options: object) -> None:
    """Simulate a load on MODEL: waiting times, tokens/s, KV cache, preemptions. No GPU is needed.

    vLLM's own scheduler decides every step; the plan says how long a step takes.

    \b
      workshop simulate llama-3.1-8b --gpu h100 --rate 8 --seconds 60
      workshop simulate llama-3.1-70b --gpu h100 -tp 4 --burst 256 --prompt 1024 --output 128
      workshop simulate llama-3.1-70b --gpu h200 -tp 2 --replicas 2 --rate 20 --seconds 60 --slo ttft=500ms,tpot=50ms
      workshop simulate --local
    """
    if local:
        from workshop.simulate import local as here

        found = here.compare(seed=options["seed"])
        say_json(found.to_dict()) if as_json else say(str(found))
        return
    if not model or not gpu:
        missing = "MODEL" if not model else "--gpu"
        raise BadInput(
            f"{missing} is missing.", "For example: workshop simulate llama-3.1-8b --gpu h100 --rate 8 --seconds 60."
        )
    from workshop.simulate.load import simulate

    found = simulate(model, gpu, **options)
    say_json(found.to_dict()) if as_json else say(as_text(found))
    if not found.keeps_up:
        sys.exit(1)


def as_text(s: Simulation) -> str:
    """Return the simulation as people read it."""
    from workshop.simulate.report import MEASURES

    figures = s.to_dict()
    many = f"{s.replicas} × " if s.replicas > 1 else ""
    lines = [
        f"{s.model} on {s.gpus} × {s.gpu}: {figures['requests']:,} requests in {s.seconds:,.1f} s, {s.tokens_per_s:,.0f} tokens/s",
        f"{many}{s.command}",
        "",
        f"{'ms':<34}{'p50':>10}{'p95':>10}{'p99':>10}{'mean':>10}",
    ]
    for measure, words in MEASURES.items():
        cells = (f"{'–' if value is None else format(value, ',.1f'):>10}" for value in s.of(measure).values())
        lines.append(f"{measure:<6}{words:<28}{''.join(cells)}")
    lines += ["", *(f"{name:<9}{curve(values)}  at most {most}" for name, values, most in _curves(s)), ""]
    lines.append(
        f"· {s.steps:,} steps, {figures['preempted']:,} preemptions, {figures['prefix_hit_rate']:.0%} of the prompts' tokens were cached"
    )
    if s.slo:
        lines.append(
            f"· {s.goodput_per_s:.2f} requests a second meet {', '.join(f'{name} ≤ {ms:g} ms' for name, ms in s.slo.items())}"
        )
    if not s.keeps_up:
        lines.append(
            "✗ It does not keep up: requests pile up as long as they come. → More --replicas or GPUs, or a lower --rate."
        )
    return "\n".join([*lines, f"· simulated in {s.wall_s:.1f} s"])


def _curves(s: Simulation) -> list[tuple[str, list[float], str]]:
    over = s.over_time
    return [
        ("running", over["running"], f"{max(over['running']):,} requests"),
        ("waiting", over["waiting"], f"{max(over['waiting']):,} requests"),
        ("KV cache", over["kv_cache_usage"], f"{s.kv_cache_usage_max:.1%} full"),
    ]


def curve(values: list[float]) -> str:
    """Return a line of bars, from 0 to the largest value."""
    top, width = max(values) or 1, max(1, len(values) // COLUMNS)
    parts = (max(values[at : at + width]) for at in range(0, len(values), width))
    return "".join(BARS[min(len(BARS) - 1, int(part / top * len(BARS)))] for part in parts)

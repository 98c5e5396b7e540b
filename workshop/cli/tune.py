import click

from workshop.cli.say import force_option, json_option, say, say_json
from workshop.cli.simulate import LOAD, PLACE, inputs, planned, required
from workshop.errors import BadInput


@click.command(params=[*LOAD, *planned("gpu", *PLACE)])
@click.argument("model", required=False)
@click.option(
    "--price", type=float, help="US dollars an hour for one GPU: adds the cost of a million tokens."
)
@click.option(
    "--kwh-price",
    type=float,
    help="US dollars for a kWh: adds the GPUs' electricity. Needs --watts.",
)
@click.option(
    "--watts",
    type=float,
    help="What one GPU takes under load. An H100 took 340 to 360 W with an 8B model; its limit is 700.",
)
@click.option(
    "--max-gpus",
    type=int,
    default=16,
    show_default=True,
    help="No choice has more, over all replicas (64 at most).",
)
@click.option("--plot", help="Draw the choices into this new file (.svg); - is standard output.")
@force_option()
@click.option(
    "--verify",
    "verified",
    is_flag=True,
    help="Serve the best three here and measure with vllm bench serve.",
)
@json_option(
    "{choices: [{command, gpus, replicas, router, goodput_per_s, ttft_ms, tpot_ms, usd_per_million_tokens, kwh_per_million_tokens}]}"
)
def command(model, gpu, slo, plot, force, verified, as_json, **options) -> None:
    """Find the split, replicas and settings that serve a load on the fewest GPUs, by simulation.

    It tries tensor and pipeline parallel sizes, replicas, weights and KV cache in FP8,
    max_num_batched_tokens and max_num_seqs. It lists the choices that no other beats in GPUs,
    requests within the limits and latency, the best first. All turns of a session go to one
    replica, other requests to the least busy one.

    \b
      workshop tune llama-3.1-8b --gpu h100 --rate 20 --seconds 30 --slo ttft=500ms,tpot=30ms --price 2.5
    """
    from workshop.files import check_output, is_stream, output
    from workshop.servers import gpus

    example = "tune llama-3.1-8b --gpu h100 --rate 20 --seconds 30 --slo ttft=500ms,tpot=30ms"
    model = required(model, "MODEL", example)
    gpu = required(gpu, "--gpu", example)
    slo = required(slo, "--slo", example)
    read = inputs(model, options["trace"])
    if plot:
        check_output(plot, force=force, inputs=read)
    from workshop.simulate.choices import (
        STICKY_ROUTER,
        choices_for,
        power_of,
        refuse_sessions,
        verify,
    )
    from workshop.simulate.load import arriving

    power_of(options["kwh_price"], options["watts"])  # wrong options are refused before the load
    arrivals, others = arriving(options)
    if verified:
        refuse_sessions(arrivals)
    if verified and not gpus.visible():
        raise BadInput(
            "--verify serves the best choices here, and this machine has no GPU.",
            "Leave --verify out.",
        )
    choices = choices_for(
        model,
        gpu,
        arrivals,
        slo=slo,
        report=lambda text: say(f"· {text}", err=True),
        **others,
    )
    rows = [choice.to_dict() for choice in choices]
    if plot:
        with output(plot, force=force, inputs=read) as file:
            file.write(drawing(rows).encode(errors="backslashreplace"))
    if verified:
        for row, measured in zip(rows, verify(model, gpu, choices, arrivals), strict=False):
            row["measured"] = measured
    to_stderr = plot is not None and is_stream(plot)  # standard output has the drawing
    if as_json:
        say_json({"choices": rows}, err=to_stderr)
        return
    lines = [f"{'GPUs':>5}{'within':>8}{'ttft p95':>10}{'tpot p95':>10}{'$/M tokens':>12}  command"]
    for row in rows:
        times = _times(row["ttft_ms"], row["tpot_ms"])
        lines.append(f"{row['gpus']:>5}{row['slo_share']:>8.0%}{times}{_cost_and_command(row)}")
        if "measured" in row:
            times = _times(row["measured"]["ttft"], row["measured"]["tpot"])
            lines.append(f"{'measured':>13}{times}")
    if rows[0]["kwh_per_million_tokens"] is not None:
        kwh = " · ".join(f"{row['gpus']} GPUs {row['kwh_per_million_tokens']:.2f}" for row in rows)
        lines.append(f"kWh per million tokens, in the same order: {kwh}")
    if any(row["replicas"] > 1 and row["router"] == STICKY_ROUTER for row in rows):
        lines.append("Several replicas need a sticky router: all turns of a session go to one.")
    say("\n".join(lines), err=to_stderr)


def _cost_and_command(row: dict) -> str:
    """Return the end of a choice's line: dollars for a million tokens, and the command."""
    cost = "–"
    if row["usd_per_million_tokens"] is not None:
        cost = f"{row['usd_per_million_tokens']:.2f}"
    command_line = row["command"]
    if row["replicas"] > 1:
        command_line = f"{row['replicas']} × {command_line}"
    return f"{cost:>12}  {command_line}"


def _times(ttft_ms: dict, tpot_ms: dict) -> str:
    """Return the 95th percentiles of first token and of each further token."""
    return f"{ttft_ms['p95']:>7,.0f} ms{tpot_ms['p95'] or 0:>7,.1f} ms"


def drawing(rows: list[dict]) -> str:
    """Return the choices as SVG: what they cost against how long the first token takes."""
    from workshop.course.figure import figure, svg

    rows = sorted(rows, key=lambda row: row["ttft_ms"]["p95"])
    unit, key = "GPUs", "gpus"
    if rows[0]["usd_per_million_tokens"] is not None:
        unit, key = "US dollars a million tokens", "usd_per_million_tokens"
    cost: dict[float, float] = {}
    names: dict[float, str] = {}
    for row in rows:
        ttft_ms = row["ttft_ms"]["p95"]
        cost[ttft_ms] = row[key]
        names[ttft_ms] = f"{row['gpus']} GPUs, {row['slo_share']:.0%}"
    title = "What no other choice beats: fewer GPUs, or a shorter wait"
    drawn = figure(
        cost,
        names=list(names.values()),
        xlabel="first token, p95, ms",
        ylabel=unit,
        title=title,
    )
    return svg(drawn, alone=True)

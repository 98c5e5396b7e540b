from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from workshop.cli.batch import LINE_S, SIGNALS
from workshop.cli.say import Bar, json_option, say, say_json
from workshop.cli.simulate import as_text as simulation_text
from workshop.errors import BadInput

if TYPE_CHECKING:
    from inference_planner.answer.parallelism import Plan

    from workshop.course.classroom.report import Criteria, Report
    from workshop.simulate.arrivals import Arrival


@click.command
@click.option("--learners", type=int, required=True, help="How many; 1 to 500.")
@click.option(
    "--url",
    help="Server, ending in /v1. By default the one that connect() finds. Key: WORKSHOP_API_KEY.",
)
@click.option("--name", help="Name of a server that `workshop servers` lists.")
@click.option(
    "--minutes", type=float, help="How long. By default each cell once, one every 10 s: 80 s."
)
@click.option(
    "--seconds",
    type=float,
    help="The same in seconds. Less than 80: the cells follow each other faster.",
)
@click.option(
    "--max-ttft",
    default=5.0,
    show_default=True,
    help="Holds if 95 of 100 first tokens come in so many s …",
)
@click.option(
    "--max-e2el",
    default=30.0,
    show_default=True,
    help="… 95 of 100 whole answers in these, and none fails.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of who runs what when.")
@click.option(
    "--simulate", metavar="MODEL", help="Ask no server: simulate MODEL on --gpu (docs/simulate.md)."
)
@click.option("--gpu", help="With --simulate: the GPU.")
@click.option(
    "--tensor-parallel-size", "-tp", type=int, help="With --simulate: over how many GPUs."
)
@click.option(
    "--max-model-len",
    type=int,
    default=8192,
    show_default=True,
    help="With --simulate: its context.",
)
@json_option("Print everything that was measured as JSON.")
def command(
    learners, minutes, seconds, max_ttft, max_e2el, as_json, simulate, gpu, **options
) -> None:
    """Simulate a class against a server, and say whether it will hold.

    Everybody runs the same cells of the notebooks within a few seconds: short completions, 20
    samples, log probabilities, the batch of notebook 06, chat where there is one; cut to what the
    server allows.

    Exit codes: 0 it will hold, 1 it will not (or not everything could be measured), 2 wrong use.
    Ctrl-C prints what was measured so far.
    """
    from workshop.course.classroom.plan import arrivals
    from workshop.course.classroom.report import Criteria
    from workshop.course.classroom.run import Classroom
    from workshop.engine.exact import plan
    from workshop.servers.processes import on_signals

    if minutes is not None and seconds is not None:
        raise BadInput("--minutes and --seconds are both given.", "Give one of the two.")
    if options["url"] is not None and options["name"] is not None:
        raise BadInput("--url and --name are both given.", "Give one of the two.")
    if not (max_ttft > 0 and max_e2el > 0):  # nan is neither
        raise BadInput(
            "A limit that is not above 0 s cannot be met.",
            "Give --max-ttft and --max-e2el in seconds.",
        )
    if minutes is not None:
        seconds = minutes * 60
    criteria = Criteria(max_ttft, max_e2el)
    if simulate or gpu:
        if not (simulate and gpu) or options["url"] or options["name"]:
            example = "workshop classroom --learners 30 --simulate llama-3.1-70b --gpu h100 -tp 4"
            problem = "--simulate MODEL and --gpu GPU go together, and without a server."
            raise BadInput(problem, f"For example: {example}.")
        Classroom(learners, seconds)  # refuses what makes no class
        planned = plan(
            simulate,
            gpu,
            tensor_parallel_size=options["tensor_parallel_size"],
            max_model_len=options["max_model_len"],
        )
        load = arrivals(learners, seconds, options["seed"])
        holds = _simulated(planned, learners, load, criteria, as_json)
    else:
        room_options = {name: options[name] for name in ("url", "name", "seed")}
        with Bar(f"A class of {learners}", LINE_S) as bar:
            room = Classroom(learners, seconds, criteria=criteria, report=bar, **room_options)
            with on_signals(SIGNALS, room.stop):
                report = room.run()
        holds = report.holds
        if as_json:
            say_json(report.to_dict())
        else:
            say(as_text(report))
    if not holds:
        sys.exit(1)


def _simulated(
    planned: Plan, learners: int, load: list[Arrival], criteria: Criteria, as_json: bool
) -> bool:
    """Simulate a class on a plan and print the verdict; return whether it holds."""
    from inference_planner.speed.roofline import QUESTION_TOKENS

    from workshop.simulate.load import on_plan

    limits = {"ttft": criteria.p95_ttft_s * 1e3, "e2el": criteria.p95_e2el_s * 1e3}
    simulation = on_plan(planned, load, slo=limits)
    holds = True
    for measure, limit in limits.items():
        p95 = simulation.of(measure)["p95"]
        holds = holds and p95 is not None and p95 <= limit
    if as_json:
        say_json({**simulation.to_dict(), "holds": holds})
        return holds
    verdict = f"✗ It will not hold {learners} learners: {criteria}"
    if holds:
        verdict = f"✓ It will hold {learners} learners: {criteria}"
    verdict += f"\n· The plan alone: time to first token below 5 s for {planned.learners_at_once:,} simultaneous requests of {QUESTION_TOKENS} tokens."
    say(f"{simulation_text(simulation)}\n{verdict}")
    return holds


def _seconds(value: float | None) -> str:
    """Return a time as a table has it."""
    if value is None:
        return "–"
    if value < 0.1:
        return f"{value:.3f}"
    return f"{value:.2f}"


def as_text(report: Report) -> str:
    """Return what was measured of a class, and the verdict, as lines of text."""
    from workshop.simulate.report import MEASURES, percentiles

    lines = [
        f"{report.model} at {report.url}, {report.seconds:.0f} s, a cell every {report.every_s:.0f} s",
        "",
        f"{'seconds':<28}{'p50':>8}{'p95':>8}",
    ]
    for measure, title in MEASURES.items():
        at = percentiles(report.values_s(measure))
        lines.append(f"{measure:<5}{title:<24}{_seconds(at['p50']):>7}{_seconds(at['p95']):>8}")
    lines.append("")
    lines.append(
        f"{'cell':<28}{'asked':>8}{'errors':>8}{'ttft p50':>10}{'ttft p95':>10}{'e2el p95':>10}"
    )
    for cell, requests, errors, *times in report.rows():
        line = f"{cell:<28}{requests:>8,}{errors:>8,}"
        for time_s in times:
            line += f"{_seconds(time_s):>10}"
        lines.append(line)
    lines += ["", f"· {report.output_tokens_per_s:,.0f} tokens/s"]
    inside = "no /metrics: what waited inside is not known"
    if report.most_kv_cache_usage is not None:
        inside = f"at most {report.most_running} sequences at once, {report.most_waiting} waiting, KV cache {report.most_kv_cache_usage:.0%} full, {report.preemptions or 0} preemptions"
    lines.append(f"· {inside}")
    if report.late or report.not_reached:
        lines.append(f"· {report.late} cells began late, {report.not_reached} were not reached")
    if report.left_out:
        lines.append(f"· not taken by this server: {', '.join(report.left_out)}")
    lines.append(f"· it holds if: {report.criteria}")
    for error, count in report.errors.items():
        lines.append(f"  {count:,} × {error}")
    lines.append(f"✓ {report}" if report.holds else f"✗ {report}")
    for text in report.advice():
        lines.append(f"→ {text}")
    return "\n".join(lines)

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from workshop.cli.say import console, json_option, say, say_json, shown

if TYPE_CHECKING:
    from workshop.engine.reconcile.case import LoggedRun

NUMBERS = ("predicted", "actual", "error")


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--model",
    help="Catalog name, or a folder with a config.json, if the log's own path is not here.",
)
@click.option("--gpu", help="GPU of the run, such as h100: vLLM's logs do not name it.")
@click.option(
    "--tensor-parallel-size",
    "-tp",
    type=click.IntRange(1),
    help="Ranks of the run, if the log does not say them.",
)
@click.option(
    "--pipeline-parallel-size",
    "-pp",
    type=click.IntRange(1),
    help="Pipeline stages of the run, if the log does not say them.",
)
@click.option(
    "--vllm-version",
    metavar="VERSION",
    help="vLLM of the run, such as 0.10.1, if the log does not say it.",
)
@click.option(
    "--gpu-memory-utilization",
    type=float,
    metavar="SHARE",
    help="Share of the GPU that the run took, if the log does not say it.",
)
@click.option(
    "--gpu-memory",
    "gpu_memory_gib",
    type=float,
    metavar="GIB",
    help="Memory of one GPU as vLLM sees it, if the log does not say it; with --gpu or without.",
)
@click.option(
    "--no-keep",
    is_flag=True,
    help="Compare alone. Without it, plans of this card, version and kind of model use what the start measured.",
)
@click.option(
    "--anonymise",
    is_flag=True,
    help="Print the log without your names, addresses, keys and prompts; on stderr what changed.",
)
@json_option("Print JSON.")
def command(
    log: Path,
    model: str | None,
    gpu: str | None,
    no_keep: bool,
    anonymise: bool,
    as_json: bool,
    **of_the_run: Any,
) -> None:
    """Compare the plan with vLLM's own LOG, line by line.

    It says why they differ, and which flag to change. Of a run that failed it says why; the exit
    code is then 1. What the start measured is kept for plans on this site.

    \b
      workshop reconcile vllm.log --gpu h100             compare, and keep what was measured
      workshop reconcile vllm.log --gpu h100 --no-keep   compare a log of somebody else's machine
      workshop reconcile vllm.log --anonymise > out.log  a copy that can be shared
    """
    from workshop.engine import log as engine_log
    from workshop.engine.reconcile.compare import reconcile

    if anonymise:
        _anonymise(log)
        return
    result = reconcile(engine_log.read(log), model, gpu, **of_the_run)
    if result.failure:
        say(f"✗ {result.failure}", err=True)
    for assumption in result.assumed:
        say(f"· {assumption}", err=True)
    if as_json:
        say_json(result.to_dict())
    else:
        _print(result)
    if result.case and not no_keep and not _is_of_the_course(log):
        _keep(result.case)
    if result.failure:
        sys.exit(1)


def _is_of_the_course(log: Path) -> bool:
    """Return True for a recorded log that comes with the course: it is of no machine of this site."""
    from workshop.course.topics.recorded_data import DATA

    return log.resolve().is_relative_to(DATA.resolve())


def _keep(case: LoggedRun) -> None:
    """Keep what a start measured, and say so where something was."""
    from workshop.engine.reconcile import keeping

    file = keeping.keep_run(case)
    if file:
        say(
            "· Kept: plans of this card, version and kind of model use what this start measured "
            f"({file}). --no-keep compares alone; remove that file to forget the start.",
            err=True,
        )


def _anonymise(log: Path) -> None:
    """Print a log without what names its owner; show on stderr what changed, and ask a person first."""
    from workshop.engine import log as engine_log
    from workshop.engine.reconcile import anonymise

    before = engine_log.text_of(log)
    after, removed = anonymise.anonymise(before, *anonymise.own_names())
    say(anonymise.difference(before, after), err=True)
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(removed.items()))
    say(f"Removed: {counts or 'nothing'}. Names of others and of models stay.", err=True)
    if sys.stdin.isatty() and sys.stderr.isatty():
        click.confirm("May this copy be shared?", abort=True, err=True)
    click.echo(after, nl=False)


def _print(result) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for name in ("quantity", "predicted", "actual", "unit", "error", "why"):
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in result.rows:
        error = "–" if row.error_percent is None else f"{row.error_percent:+.2f} %"
        table.add_row(
            row.quantity,
            number(row.predicted),
            number(row.actual),
            row.unit,
            error,
            shown(row.reason),
        )
    if result.rows:
        out.print(table)
    if result.advice:
        out.print("\nWhat to change, the most effective first, more ranks last:")
    for item in result.advice:
        out.print(shown(f"  {item.flag} {item.value}".rstrip()), style="bold")
        out.print(shown(f"      {item.effect}"))


def number(value: float | None) -> str:
    """Write a value as people read it.

    Whole numbers, and values from 1,000, have commas; smaller values have two decimals.
    """
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1000:
        return f"{value:,.2f}"
    return f"{value:,.0f}"

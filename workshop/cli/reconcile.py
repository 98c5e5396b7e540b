from pathlib import Path

import click

from workshop.cli.say import console, json_option, say, say_json, shown
from workshop.engine.reconcile import reconcile

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
    "--record", type=click.Path(path_type=Path), help="Add the run to FILE, for docs/accuracy.md."
)
@json_option("Print JSON.")
def command(
    log: Path,
    model: str | None,
    gpu: str | None,
    tensor_parallel_size: int | None,
    pipeline_parallel_size: int | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Compare the plan with vLLM's own LOG, line by line: why they differ, and which flag to change."""
    result = reconcile(
        log,
        model,
        gpu,
        record,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
    )
    for assumption in result.assumed:
        say(f"· {assumption}", err=True)
    if as_json:
        say_json(result.to_dict())
    else:
        _print(result)


def _print(result) -> None:
    from rich.table import Table

    out = console()
    if result.failure:
        out.print(f"[red]✗ The start failed.[/red] {shown(result.failure)}")
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
    out.print(table)
    if result.advice:
        out.print("\nWhat to change, the most effective first, more ranks last:")
    for item in result.advice:
        out.print(shown(f"  {item.flag} {item.value}".rstrip()), style="bold")
        out.print(shown(f"      {item.effect}"))


def number(value: float | None) -> str:
    """Write a value as people read it: tokens with commas, the rest with three digits that count."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1000:
        return f"{value:,.2f}"
    return f"{value:,.0f}"

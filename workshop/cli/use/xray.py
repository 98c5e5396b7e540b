import click

from workshop.cli.say import force_option, say
from workshop.errors import BadInput


@click.command()
@click.argument("trace")
@click.option(
    "--html",
    help="The new file to write; by default the trace's name with .html.",
)
@force_option()
@click.option("--first", type=int, help="The first step that is drawn; a page holds 2,000.")
def command(trace: str, html: str | None, force: bool, first: int | None) -> None:
    """Make one page of TRACE, which needs no server and no network: open it by a double click.

    TRACE is a file, or the name of a server of yours that writes one. It replays what `workshop serve
    --trace FILE`, `slurm submit --trace` or `workshop simulate … --steps FILE` wrote: each request over the steps, the budget, the pool of KV blocks; and it asks what the next step will
    be.

    \b
      workshop serve --trace trace.jsonl
      workshop xray trace.jsonl --html trace.html
    """
    from workshop.course.widgets.xray.case import Replay, page, trace_file
    from workshop.engine.trace import read
    from workshop.files import check_output, output

    source = trace_file(trace)
    to = html or str(source.with_suffix(".html") if source.suffix != ".html" else f"{source}.html")
    check_output(to, force=force)
    steps = read(source)
    if first is not None and not steps[0].step <= first <= steps[-1].step:
        raise BadInput(
            f"The trace has no step {first}.",
            f"Choose one from {steps[0].step} to {steps[-1].step}.",
        )
    replay = Replay(f"{source.name} · {len(steps):,} steps", first)
    replay.extend(steps)
    with output(to, force=force) as file:
        file.write(page(replay.data()).encode(errors="backslashreplace"))
    note = ""
    if replay.left_out:
        note = f"; {replay.left_out:,} later ones are left out: --first"
    say(f"{to}: {len(replay.steps):,} steps of {len(replay.names):,} requests{note}")

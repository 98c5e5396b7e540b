from pathlib import Path

import click

from workshop.cli.say import say
from workshop.errors import BadInput


@click.command()
@click.argument("trace")
@click.option("--html", help="The file to write; by default the trace's name with .html.")
@click.option("--first", type=int, help="The first step that is drawn; a page holds 2,000.")
def command(trace: str, html: str | None, first: int | None) -> None:
    """Make one page of TRACE, which needs no server and no network: open it by a double click.

    It replays what `workshop serve --trace FILE` or `workshop simulate … --steps FILE` wrote: each request over the
    steps, the budget, the pool of KV blocks; and it asks what the next step will be.

    \b
      workshop serve --trace trace.jsonl
      workshop xray trace.jsonl --html trace.html
    """
    from workshop.engine.trace import read
    from workshop.learn.widgets.xray.case import Replay, page

    source, steps = Path(trace), read(trace)
    if first is not None and not steps[0].step <= first <= steps[-1].step:
        raise BadInput(f"The trace has no step {first}.", f"Choose one from {steps[0].step} to {steps[-1].step}.")
    to = Path(html) if html else source.with_suffix(".html")
    if to.resolve() == source.resolve():
        raise BadInput(f"{to} is the trace itself.", "Give the page another name.")
    replay = Replay(f"{source.name} · {len(steps):,} steps", first)
    replay.extend(steps)
    try:
        to.write_text(page(replay.data()), encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{to} cannot be written: {error.strerror}.", "Give --html FILE in a folder of yours.") from None
    left = f"; {replay.left_out:,} later ones are left out: --first" if replay.left_out else ""
    say(f"{to}: {len(replay.steps):,} steps of {len(replay.names):,} requests{left}")

import time
from concurrent.futures import ThreadPoolExecutor

import click

from workshop.cli.say import Seconds, console, json_option, say, say_json, shown
from workshop.client import configurations, reach
from workshop.engine import metrics
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

SIGNS = {"ready": "✓", "starting": "…", "failed": "✗"}
NOBODY = "No server is known here. Start one: workshop serve --background"
COLOURS = {"ready": "green", "failed": "red"}
Look = metrics.Metrics | WorkshopError | None


@click.command
@click.argument("name", required=False)
@click.option(
    "--client",
    metavar="KIND",
    help=f"Print what connects another program to server NAME: {', '.join(configurations.KINDS)}.",
)
@json_option("A list of records, without keys.")
@click.option(
    "--watch", is_flag=True, help="One table of what all of them do at the moment, until Ctrl-C."
)
@click.option(
    "--every",
    type=Seconds(0.5),
    default=2.0,
    metavar="SECONDS",
    show_default=True,
    help="--watch: new looks.",
)
def command(name: str | None, client: str | None, as_json: bool, watch: bool, every: float) -> None:
    """List your servers, and those that were shared with your class ($WORKSHOP_SHARED); with NAME, that one.

    \b
      workshop servers
      workshop servers teaching-model --client langchain
    """
    if as_json + watch + (client is not None) > 1:
        raise BadInput("--json, --watch and --client print different things.", "Give one of them.")
    if client is not None:
        _say_configuration(reach.choose(name), client)
        return
    found = _known()
    if name is not None:
        found = [record for record in found if record.name == name]
        if not found:
            raise WorkshopError(
                f"No server is called {name!r} here.", "List them: workshop servers"
            )
    if watch:
        _watch(every)
    elif as_json:
        say_json([record.public() for record in found])
    elif not found:
        say(NOBODY)
    else:
        for record in found:
            _say_record(record)


def _say_configuration(record: ServerRecord, kind: str) -> None:
    """Print the configuration alone on standard output, and what it needs beside it on standard error."""
    say(configurations.configuration(kind, record.name, record.url, record.model))
    path = records.path_of(record.name)
    note = f"The key is read from {configurations.KEY}."
    if path.exists():
        read_key = f"import json; print(json.load(open('{path}'))['api_key'])"
        note += f' Set it with:\n  export {configurations.KEY}="$(python3 -c "{read_key}")"'
    say(note, err=True)


def _say_record(record: ServerRecord) -> None:
    why = f": {record.reason}" if record.reason else ""
    sign = "?" if record.in_doubt else SIGNS.get(record.state, "?")
    colour = None if record.in_doubt else COLOURS.get(record.state)
    say(f"{sign} {record.name:<20} {record.state}{why}", fg=colour)
    place = (
        f"{record.where}, {record.cluster}, {record.host}"
        if record.cluster
        else f"{record.where}, {record.host}"
    )
    say(f"    {record.model} at {record.url} ({place}, since {record.started[:16]}Z)")
    if record.state == "failed":
        say(f"    its own words: {record.log}; forget it: workshop stop {record.name}")
    elif record.in_doubt:
        say(
            f"    look on its own cluster; if it has ended there: workshop stop {record.name} --forget"
        )


def _known() -> list[ServerRecord]:
    return [*records.own(), *records.shared()]


def _look(record: ServerRecord) -> Look:
    if record.state != "ready":
        return None
    try:
        return metrics.fetch(record.url, record.api_key)
    except WorkshopError as error:
        return error


def table(now: list[tuple[ServerRecord, Look]], before: dict[str, Look]) -> list[list[str]]:
    """Return a row for each server: name, state, running, waiting, KV cache, tokens/s, first token; "" is not known.

    before: what each said at the look before this, by its address.
    """
    rows = []
    for record, seen in now:
        state = record.state if not isinstance(seen, WorkshopError) else f"silent: {seen.message}"
        cells = [""] * 5
        if isinstance(seen, metrics.Metrics):
            cells[:2] = [
                "" if n is None else str(n) for n in (seen.requests_running, seen.requests_waiting)
            ]
            cells[2] = "" if seen.kv_cache_usage is None else f"{seen.kv_cache_usage:.0%}"
            last = before.get(record.url)
            if isinstance(last, metrics.Metrics) and last.time < seen.time:
                rates = metrics.rates(last, seen)
                cells[3] = f"{rates.generation_tokens_per_s:,.0f}"
                cells[4] = "" if rates.ttft_mean_s is None else f"{rates.ttft_mean_s * 1e3:,.0f} ms"
        rows.append([f"{SIGNS.get(record.state, '?')} {record.name}", state, *cells])
    return rows


def _watch(every: float) -> None:
    from rich.live import Live
    from rich.table import Table

    before: dict[str, Look] = {}
    with ThreadPoolExecutor(16) as pool, Live(console=console(), auto_refresh=False) as live:
        try:
            while True:
                known = _known()
                now = list(zip(known, pool.map(_look, known), strict=True))
                grid = Table("server", "state", box=None, padding=(0, 2))
                for head in ("running", "waiting", "KV cache", "tokens/s", "first token"):
                    grid.add_column(head, justify="right")
                for row in table(now, before):
                    grid.add_row(*map(shown, row))
                live.update(grid if known else NOBODY, refresh=True)
                before = {record.url: seen for record, seen in now}
                time.sleep(every)
        except KeyboardInterrupt:
            return

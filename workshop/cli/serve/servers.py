from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from workshop.cli.say import Seconds, console, json_option, say, say_json, shown
from workshop.client import configurations
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.engine import metrics
    from workshop.servers.records import ServerRecord

    Look = metrics.Metrics | WorkshopError | None

# Every other state is a trouble.
SIGNS = {"ready": "✓", "starting": "…", "waiting": "…", "suspended": "…"}
START = "Start one: workshop serve --background"
NOBODY = f"No server is known here. {START}"
COLOURS = {"ready": "green", "starting": None, "waiting": None, "suspended": None}


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
    """List your servers, and those that were shared with your class ($WORKSHOP_SHARED).

    So are jobs of `workshop slurm submit` that wait in SLURM's queue. NAME, or the number of a
    job, shows that one: where it is, and how to reach it.

    \b
      workshop servers
      workshop servers teaching-model
      workshop servers teaching-model --client langchain
    """
    if as_json + watch + (client is not None) > 1:
        raise BadInput("--json, --watch and --client print different things.", "Give one of them.")
    if client is not None:
        from workshop.client import reach

        _say_configuration(reach.choose(name), client)
        return
    listed = _known()
    if name is not None:
        listed = [record for record in listed if name in (record.name, record.job_id)]
        if not listed:
            _say_ended(name, as_json)
            return
    if watch:
        _watch(every)
        return
    if listed:
        from workshop.servers import hang

        listed = hang.of_records(listed)
    if as_json:
        say_json([_with_job(record, name) for record in listed])
    elif not listed:
        say(NOBODY)
    elif name is not None:
        for record in listed:
            _say_whole(record)
    else:
        _say_all(listed)


def _say_ended(name: str, as_json: bool) -> None:
    """Print what is known of a job without a record: it has ended, or is another cluster's.

    Raises WorkshopError: there is no such server and no such job; the remedy lists those here.
    """
    from dataclasses import asdict

    from workshop.cli.serve import job
    from workshop.servers import records
    from workshop.servers.slurm import status as slurm_status

    meant = slurm_status.job_of(name)
    if meant:
        now = slurm_status.status(*meant)
        if as_json:
            say_json([{"name": now.name, "job": asdict(now)}])
        else:
            job.say_status(now)
        return
    others = _known()
    raise records.unknown(name, others, "" if others else START)


def _say_whole(record: ServerRecord) -> None:
    """Print all that is known of one server, with its job, and what reaches it."""
    from workshop.cli.serve import job
    from workshop.servers.slurm import status as slurm_status

    _say_record(record)
    if record.state == "ready":
        for line in configurations.access(record):
            say(f"    {line}")
    if record.where == "slurm" and record.job_id:
        say()
        try:
            job.say_status(slurm_status.status(record.job_id))
        except WorkshopError as error:  # the controller does not answer: the record stays true
            say(f"? {error.message}")


def _with_job(record: ServerRecord, name: str | None) -> dict:
    """Return a record as --json prints it, with its job's state where one server is asked for."""
    from dataclasses import asdict

    from workshop.servers.slurm import status as slurm_status

    fields = record.public()
    if name is not None and record.where == "slurm" and record.job_id:
        fields["job"] = asdict(slurm_status.status(record.job_id))
    return fields


def _say_configuration(record: ServerRecord, kind: str) -> None:
    """Print the configuration alone on standard output, and how to set the key on standard error."""
    say(configurations.of_record(kind, record))
    if kind == "env":
        return
    note = f"The key is read from {configurations.KEY}."
    command = configurations.key_command(record)
    if command:
        note += f' Set it with:\n  export {configurations.KEY}="$({command})"'
    say(note, err=True)


def _say_all(listed: list[ServerRecord]) -> None:
    """Print the servers; of several that have failed one line."""
    from workshop.servers import records

    failed = [record for record in listed if record.state == "failed"]
    if len(failed) < 2:
        failed = []
    for record in listed:
        if record not in failed:
            _say_record(record)
    if failed:
        say(records.failed_line(failed), fg="red")


def _say_record(record: ServerRecord) -> None:
    from workshop.servers import hang
    from workshop.servers.records import record_file

    sign = SIGNS.get(record.state, "✗")
    colour = COLOURS.get(record.state, "red")
    if record.in_doubt:
        sign = "?"
        colour = None
    state = record.state
    if state in (record_file.WAITING, record_file.SUSPENDED):
        state = record.reason
    elif record.reason:
        state += f": {record.reason}"
    say(f"{sign} {record.name:<20} {state}", fg=colour)
    if not record.url:
        say(f"    SLURM job {record.job_id}; cancel it: workshop stop {record.job_id}")
        return
    place = ", ".join(filter(None, (record.where, record.cluster, record.host)))
    say(f"    {record.model} at {record.url} ({place}, since {record.started[:16]}Z)")
    if record.state == "failed":
        say(f"    its own words: {record.log}; forget it: workshop stop {record.name}")
    elif record.state == hang.HANGS:
        say(f"    {hang.REMEDY} workshop stop {record.name}")
    elif record.in_doubt:
        say(
            f"    look on its own cluster; if it has ended there: workshop stop {record.name} --forget"
        )


def _known() -> list[ServerRecord]:
    from workshop.servers import records

    return [*records.own(), *records.waiting(), *records.shared()]


def _look(record: ServerRecord) -> Look:
    from workshop.engine import metrics

    if record.state != "ready":
        return None
    try:
        return metrics.fetch(record.url, record.api_key)
    except WorkshopError as error:
        return error


def table(now: list[tuple[ServerRecord, Look]], before: dict[str, Look]) -> list[list[str]]:
    """Return a row for each server; "" is not known.

    A row is name, state, running, waiting, KV cache, tokens/s and first token.

    before: what each said at the look before this, by its address.
    """
    from workshop.engine import metrics

    rows = []
    for record, look in now:
        state = record.state
        cells = [""] * 5
        if isinstance(look, WorkshopError):
            state = f"silent: {look.message}"
        elif isinstance(look, metrics.Metrics):
            cells = _cells(look, before.get(record.url))
        rows.append([f"{SIGNS.get(record.state, '✗')} {record.name}", state, *cells])
    return rows


def _cells(look: metrics.Metrics, last: Look) -> list[str]:
    """Return running, waiting, KV cache, tokens/s and first token of a server.

    `last` is the look before.
    """
    from workshop.engine import metrics

    running, waiting, usage, tokens_per_s, first_token = "", "", "", "", ""
    if look.requests_running is not None:
        running = str(look.requests_running)
    if look.requests_waiting is not None:
        waiting = str(look.requests_waiting)
    if look.kv_cache_usage is not None:
        usage = f"{look.kv_cache_usage:.0%}"
    if isinstance(last, metrics.Metrics) and last.time < look.time:
        rates = metrics.rates(last, look)
        tokens_per_s = f"{rates.generation_tokens_per_s:,.0f}"
        if rates.ttft_mean_s is not None:
            first_token = f"{rates.ttft_mean_s * 1e3:,.0f} ms"
    return [running, waiting, usage, tokens_per_s, first_token]


def _watch(every: float) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from rich.live import Live
    from rich.table import Table

    from workshop.servers import hang

    before: dict[str, Look] = {}
    checks = hang.Checks()
    with ThreadPoolExecutor(16) as pool, Live(console=console(), auto_refresh=False) as live:
        try:
            while True:
                latest = checks.of(_known())
                now = list(zip(latest, pool.map(_look, latest), strict=True))
                grid = Table("server", "state", box=None, padding=(0, 2))
                for head in ("running", "waiting", "KV cache", "tokens/s", "first token"):
                    grid.add_column(head, justify="right")
                for row in table(now, before):
                    grid.add_row(*map(shown, row))
                live.update(grid if latest else NOBODY, refresh=True)
                before = {record.url: look for record, look in now}
                time.sleep(every)
        except KeyboardInterrupt:
            return

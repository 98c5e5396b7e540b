from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workshop.cli.say import say
from workshop.errors import BadInput

if TYPE_CHECKING:
    from workshop.servers.records import ServerRecord

POLL_S = 0.3
RUNS = ("ready", "starting")


@click.command
@click.argument("name")
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help="Show what comes, until the server ends or Ctrl-C; of a job, until its server is ready.",
)
@click.option("--tail", "-n", type=click.IntRange(0), metavar="LINES", help="Only the last lines.")
def command(name: str, follow: bool, tail: int | None) -> None:
    """Show what the server NAME (see `workshop servers`) has written.

    NAME may be the number of a SLURM job. The log of a server that has ended stays until the next
    one of that name starts.
    """
    from workshop.cli.serve import job
    from workshop.files import reason
    from workshop.servers import records
    from workshop.servers.slurm import status as slurm_status

    meant = slurm_status.job_of(name)
    if meant:
        if follow:
            job.follow(*meant)
        else:
            job.say_logs(*meant, tail)
        return
    record = records.read(name)
    path = _log_of(name, record)
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = file.readlines()
            if tail is not None:
                lines = lines[len(lines) - min(tail, len(lines)) :]
            for line in lines:
                _print(line)
            if follow and record is not None:
                _follow(name, file)
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {reason(error)}.", "Look at the file.") from None
    except KeyboardInterrupt:
        return


def _log_of(name: str, record: ServerRecord | None) -> Path:
    """Return the log of a server of this machine.

    Raises WorkshopError: there is none.
    """
    from workshop.home import home
    from workshop.servers import records

    if record is not None and record.log:
        return Path(record.log)
    path = home() / "logs" / f"{name}.log"
    if path.name == f"{name}.log" and path.is_file():
        return path
    raise records.unknown(name, records.own(), records.OTHERS)


def _follow(name: str, file) -> None:
    """Print what is appended to a log, until the server has ended."""
    from workshop.servers import records

    while True:
        line = file.readline()
        if line:
            _print(line)
            continue
        record = records.read(name)
        if record is None or record.state not in RUNS:
            for last in file:
                _print(last)
            return
        time.sleep(POLL_S)


def _print(line: str) -> None:
    say(line.rstrip("\n").rstrip("\r"))

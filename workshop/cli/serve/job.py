"""A server that is a job of SLURM, as `servers NAME` and `logs NAME` show it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from workshop.cli.say import Bar, say, say_remedy

if TYPE_CHECKING:
    from workshop.servers.slurm.status import Status


def say_status(now: Status) -> None:
    """Print where a job is: in the queue, loading, ready at an address, or why it has ended."""
    line = f"Job {now.job_id} {now.name}: {now.state}"
    if now.nodes:
        line += f" on {now.nodes}"
    if now.cluster:
        line += f" of {now.cluster}"
    if now.elapsed:
        line += f", {now.elapsed} elapsed"
    if now.left:
        line += f", {now.left} left"
    if now.reason:
        line += f" ({now.reason})"
    say(line)
    if now.error:
        say(f"✗ {now.error}", fg="red")
    elif now.server == "ready":
        say(f"✓ ready at {now.url}", fg="green")
        say(f"In a notebook: workshop.connect(); stop it: workshop stop {now.name}")
    else:
        say(f"{now.fraction:4.0%} {now.message}")
    if now.remedy:
        say_remedy(now.remedy)
    if now.output:
        say(f"Its words: {now.output}")


def say_logs(number: str, cluster: str, last: int | None) -> None:
    """Print the files of a job; SLURM is asked only where the server's record names none.

    Args:
        number: the job's.
        cluster: '' for the one of this login node.
        last: lines of each file; None: all.
    """
    from workshop.servers import records
    from workshop.servers.slurm import status as slurm_status

    record = next((own for own in records.own() if own.job_id == number), None)
    paths = slurm_status.files_of(number, None, record)
    if not paths:
        now = slurm_status.status(number, cluster)
        paths = tuple(Path(file) for file in (now.output, now.error_file) if file)
    for path in paths:
        if not path.exists():
            continue
        say(f"==> {path} <==", bold=True)
        lines = path.read_text(errors="replace").splitlines()
        if last is not None:
            lines = lines[max(0, len(lines) - last) :]
        for line in lines:
            click.echo(line)


def follow(number: str, cluster: str) -> None:
    """Show a job's progress until its server is ready, or the job has ended: then exit with 1."""
    from workshop.servers.slurm import status as slurm_status

    with Bar(f"Job {number}") as bar:
        now = slurm_status.follow(
            number, bar, lambda text: say(f"  {text[:200]}", err=True), cluster
        )
    say_status(now)
    if now.fraction != 1.0:
        sys.exit(1)

import click

from workshop.cli.say import say
from workshop.errors import BadInput


@click.command
@click.argument("name", required=False)
@click.option(
    "--forget",
    is_flag=True,
    help="Remove the record, with its key, of a server on SLURM whose job is not known there any more; cancel nothing.",
)
@click.option("--failed", is_flag=True, help="Forget all servers that have failed.")
def command(name: str | None, forget: bool, failed: bool) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record.

    A job that waits in SLURM's queue is cancelled, by its name or its number.
    """
    from workshop.servers.local import stopping

    if failed:
        if name is not None or forget:
            raise BadInput("--failed takes no name.", "Give the name or --failed.")
        names = stopping.stop_failed()
        say(f"Forgotten: {', '.join(names)}." if names else "No server has failed.")
        return
    if name is None:
        raise _nameless()
    say(stopping.forget(name) if forget else stopping.stop(name))


def _nameless() -> BadInput:
    """Return the refusal of a command without a name: it lists the names that there are."""
    from workshop.servers import records

    names = [record.name for record in (*records.own(), *records.waiting())]
    if not names:
        return BadInput("Nothing is stopped: you have no server.", "Start one: workshop serve.")
    commands = ", ".join(f"workshop stop {name}" for name in names)
    return BadInput("Nothing is stopped: it takes the server's name.", f"Yours: {commands}")

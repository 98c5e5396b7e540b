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
def command(name: str | None, forget: bool) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record.

    A job that waits in SLURM's queue is cancelled, by its name or its number.
    """
    from workshop.servers.local import stopping

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

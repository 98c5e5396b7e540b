import click

from workshop.cli.say import say
from workshop.servers.local import stopping


@click.command
@click.argument("name")
@click.option(
    "--forget",
    is_flag=True,
    help="Remove the record, with its key, of a server on SLURM whose job is not known there any more; cancel nothing.",
)
def command(name: str, forget: bool) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record."""
    say(stopping.forget(name) if forget else stopping.stop(name))

import click

from workshop.cli.say import say
from workshop.launch.local import stopping


@click.command
@click.argument("name")
def command(name: str) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record."""
    say(stopping.stop(name))

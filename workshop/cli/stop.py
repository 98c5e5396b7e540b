"""`workshop stop`: end a server and all that it started."""

import click

from workshop.cli.say import say


@click.command
@click.argument("name")
def command(name: str) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record."""
    from workshop.launch.local import stopping

    say(stopping.stop(name))

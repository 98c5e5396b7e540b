"""`workshop stop`: end a server and all that it started."""

from __future__ import annotations

import click


@click.command
@click.argument("name")
def command(name: str) -> None:
    """Stop the server NAME (see `workshop servers`) and forget its record."""
    from workshop.launch import supervise

    click.echo(supervise.stop(name))

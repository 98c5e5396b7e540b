"""`workshop servers`: what is known to run, without keys."""

from __future__ import annotations

import json

import click

from workshop.cli.say import say


@click.command
@click.option("--json", "as_json", is_flag=True, help="A list of records, without keys.")
def command(as_json: bool) -> None:
    """List your servers, and those that were shared with your class ($WORKSHOP_SHARED)."""
    from workshop.launch import records

    found = [*records.own(), *records.shared()]
    if as_json:
        click.echo(json.dumps([record.public() for record in found], indent=1))
        return
    if not found:
        say("No server is known here. Start one: workshop serve --background")
    for record in found:
        sign = {"ready": "✓", "starting": "…", "failed": "✗"}.get(record.state, "?")
        colour = {"ready": "green", "failed": "red"}.get(record.state)
        why = f": {record.reason}" if record.reason else ""
        say(f"{sign} {record.name:<20} {record.state}{why}", fg=colour)
        say(f"    {record.model} at {record.url} ({record.where}, {record.host}, since {record.started[:16]}Z)")
        if record.state == "failed":
            say(f"    its own words: {record.log}; forget it: workshop stop {record.name}")

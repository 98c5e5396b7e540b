"""Words on a terminal: what comes from files, servers and arguments is shown there, never obeyed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from workshop.errors import plain

if TYPE_CHECKING:
    from rich.console import Console


def plain_lines(text: str) -> str:
    """Return text of several lines with its control characters, but for the line breaks, as escapes."""
    return "\n".join(map(plain, text.split("\n")))


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: object) -> None:
    """Print text, its control characters as escapes; style: as of click.style."""
    click.secho(plain_lines(text), err=err, nl=nl, **style)


def json_option(shape: str) -> Callable:
    """Return the option --json; its help is the shape of what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=shape)


def say_json(data: object) -> None:
    """Print data as JSON, which escapes control characters itself."""
    click.echo(json.dumps(data, indent=1))


def console(least: int = 0) -> Console:
    """Return rich's terminal, at least so wide; strings that are not ours go through `shown`."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, width=max(least, min(Console().width, 1000)))


def shown(text: object) -> str:
    """Return text for rich's console and tables: brackets are brackets, and control characters are escapes."""
    from rich.markup import escape

    return escape(plain(str(text)))

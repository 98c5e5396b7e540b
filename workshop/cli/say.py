"""Prints text and progress bars on a terminal.

Control characters of text from elsewhere are made harmless.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from workshop.errors import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from workshop.servers.progress import TaskProgress


def plain_lines(text: str) -> str:
    """Return text of several lines with its control characters as escapes.

    Line breaks stay.
    """
    return "\n".join(map(plain, text.split("\n")))


def say(text: str = "", *, err: bool = False, nl: bool = True, **style: Any) -> None:
    """Print text, its control characters as escapes; style: as of click.style."""
    click.secho(plain_lines(text), err=err, nl=nl, **style)


def say_remedy(remedy: str, *, err: bool = False, **style: Any) -> None:
    """Print what to do, with the commands and files that this user has."""
    from workshop import install_words

    if "site.sh" in remedy:  # it takes the planner's catalog to import
        from workshop.servers.slurm import site

        remedy = site.adapted(remedy)
    else:
        remedy = install_words.adapted(remedy)
    say(f"→ {remedy}", err=err, **style)


class Seconds(click.FloatRange):
    """An option that says how long to wait, in seconds: from `min` to `max`, or four months.

    NaN, which is neither below nor above, is refused.
    """

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = super().convert(value, param, ctx)
        most = self.max or 1e7
        if not seconds <= most:
            self.fail(
                f"{seconds} s cannot be waited for: give {self.min:g} to {most:,.0f}.", param, ctx
            )
        return seconds


def json_option(shape: str) -> Callable:
    """Return the option --json; its help is the shape of what it prints."""
    return click.option("--json", "as_json", is_flag=True, help=shape)


def say_json(data: object) -> None:
    """Print data as JSON, which escapes control characters itself."""
    import json

    click.echo(json.dumps(data, indent=1))


def force_option() -> Callable:
    """Return the option --force of a command that writes a file."""
    return click.option("--force", is_flag=True, help="Replace the output file if it exists.")


def console(least: int = 0) -> Console:
    """Return rich's terminal, at least so wide; strings that are not ours go through `shown`."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, width=max(least, min(Console().width, 1000)))


def waiting(message: str) -> Status:
    """Return what shows on a terminal, beside the output, that something is going on: a context."""
    from rich.console import Console

    return Console(stderr=True).status(message)


def shown(text: object) -> str:
    """Return text for rich's console and tables.

    Brackets stay brackets, and control characters become escapes.
    """
    from rich.markup import escape

    return escape(plain(str(text)))


LONGEST_SILENCE_S = 60.0  # between two lines of a run without a terminal


class Bar:
    """A progress bar; where there is no terminal (a log, CI), it prints lines instead.

    Call it with each TaskProgress, from any thread; it draws what changed.

    Args:
        every_s: seconds until the first line without a terminal; until the next ones a tenth more
            of the time so far, up to a minute. By default each new message is a line.
        bare: the messages say how far it is, so the bar shows no percentage and no time.
    """

    def __init__(self, title: str, every_s: float = 0.0, bare: bool = False):
        self._title = title
        self._last = ""
        self._live = None
        self._every_s = every_s
        self._began = time.monotonic()
        self._next_s = every_s
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            far = [] if bare else [TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()]
            columns = (
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24 if bare else 30),
                *far,
            )
            column = TextColumn("[dim]{task.fields[message]}")
            self._live = Live(*columns, column, console=Console(stderr=True), transient=True)
            self._task = self._live.add_task(shown(title), total=1.0, message="")
            self._live.start()

    def __call__(self, progress: TaskProgress) -> None:
        if self._live:
            self._live.update(
                self._task, completed=progress.fraction, message=shown(progress.message[:90])
            )
        elif self._is_due(progress.message):
            say(f"{self._title}: {progress.fraction:4.0%} {progress.message}", err=True)
        self._last = progress.message

    def _is_due(self, message: str) -> bool:
        """Return whether a line is to be printed now, where there is no terminal."""
        if not self._every_s:
            return message not in ("", self._last)
        elapsed_s = time.monotonic() - self._began
        if elapsed_s < self._next_s or not message:
            return False
        self._next_s = elapsed_s + min(max(self._every_s, elapsed_s / 10), LONGEST_SILENCE_S)
        return True

    def close(self) -> None:
        """Take the bar away; twice does no harm."""
        if self._live:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

"""The progress bar of whatever takes long, on a terminal; lines where there is none (a log, CI)."""

from __future__ import annotations

import sys
import time

from workshop.cli.say import say, shown
from workshop.launch.local.supervise import Progress


class Bar:
    """Call it with each Progress, from any thread; it draws what changed.

    Args:
        every_s: where there is no terminal, a line so often at the most; by default one for each new message.
        bare: the words say how far it is, so that no share and no time stand beside the bar.
    """

    def __init__(self, title: str, every_s: float = 0.0, bare: bool = False):
        self._title, self._last, self._live = title, "", None
        self._every_s, self._printed = every_s, time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Live

            far = [] if bare else [TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn()]
            columns = TextColumn("[bold]{task.description}"), BarColumn(bar_width=24 if bare else 30), *far
            words = TextColumn("[dim]{task.fields[message]}")
            self._live = Live(*columns, words, console=Console(stderr=True), transient=True)
            self._task = self._live.add_task(shown(title), total=1.0, message="")
            self._live.start()

    def __call__(self, progress: Progress) -> None:
        if self._live:
            self._live.update(self._task, completed=progress.fraction, message=shown(progress.message[:90]))
        elif progress.message not in ("", self._last) and time.monotonic() - self._printed >= self._every_s:
            self._printed = time.monotonic()
            say(f"{self._title}: {progress.fraction:4.0%} {progress.message}", err=True)
        self._last = progress.message

    def close(self) -> None:
        """Take the bar away; twice does no harm."""
        if self._live:
            self._live.stop()
            self._live = None

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

"""Waits in a notebook for a server that is starting, with a bar; says that an answer is late."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

from workshop.client import lost
from workshop.client.reach import StillStarting
from workshop.servers.local import supervise
from workshop.servers.progress import TaskProgress

SILENCE_S = 10.0  # without a token, before it is said that one waits
SILENCE = (
    "! No token for {seconds:.0f} s: the request waits its turn, its prompt is long, or the server "
    "hangs (`workshop servers` in another terminal tells). It waits on; Ctrl-C ends it."
)


@contextmanager
def told_of_silence() -> Iterator[None]:
    """Say on stderr, once, that nothing has come, if the block takes longer than SILENCE_S."""
    text = SILENCE.format(seconds=SILENCE_S)
    timer = threading.Timer(SILENCE_S, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_notebook() -> bool:
    """Return True in the kernel of a notebook."""
    if "ipykernel" not in sys.modules:
        return False
    return getattr(lost.shell(), "kernel", None) is not None


def wait_for(starting: StillStarting) -> None:
    """Show how far a start is until it is done, also where it failed.

    Raises:
        WorkshopError: it took more than ten minutes.
    """
    from IPython.display import HTML, display

    name = starting.record.name
    shown = display(HTML(bar(name, TaskProgress(0.0, ""))), display_id=True)
    assert shown is not None  # as a display_id was asked for
    try:
        supervise.follow(
            name, lambda progress: shown.update(HTML(bar(name, progress))), look=starting.look
        )
    finally:
        shown.update(HTML(""))


def bar(name: str, progress: TaskProgress) -> str:
    """Return HTML: the server's name, a bar, and the engine's own words."""
    percent = round(100 * progress.fraction)
    return (
        f'<div role="status">The server <b>{escape(name)}</b> is starting '
        f'<progress max="100" value="{percent}" style="vertical-align: middle"></progress> '
        f"{percent} % {escape(progress.message[:90])}</div>"
    )

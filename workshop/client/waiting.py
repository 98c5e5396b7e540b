"""Waits in a notebook for a server that is starting, with a bar."""

import sys
from html import escape

from workshop.client import lost
from workshop.client.reach import StillStarting
from workshop.servers.local import supervise
from workshop.servers.progress import Progress


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
    shown = display(HTML(bar(name, Progress(0.0, ""))), display_id=True)
    assert shown is not None  # as a display_id was asked for
    try:
        supervise.follow(
            name, lambda progress: shown.update(HTML(bar(name, progress))), look=starting.look
        )
    finally:
        shown.update(HTML(""))


def bar(name: str, progress: Progress) -> str:
    """Return HTML: the server's name, a bar, and the engine's own words."""
    percent = round(100 * progress.fraction)
    return (
        f'<div role="status">The server <b>{escape(name)}</b> is starting '
        f'<progress max="100" value="{percent}" style="vertical-align: middle"></progress> '
        f"{percent} % {escape(progress.message[:90])}</div>"
    )

"""What the panel of notebook 00 says of a server: one line on its state, and the engine's own words."""

from __future__ import annotations

from workshop.errors import WorkshopError
from workshop.launch.local import supervise
from workshop.launch.records import ServerRecord
from workshop.learn.html import Html, alert, bar, bold, muted, panel, tag

LINES_SHOWN = 6


def status(
    record: ServerRecord | None, progress: supervise.Progress | None = None, error: WorkshopError | None = None
) -> Html:
    """Return one line on the state, with a bar while it starts.

    Args:
        record: the server that was found or is starting; None if there is none.
        progress: how far the start is.
        error: why it failed.
    """
    if error is not None:
        return alert(error)
    if record is not None and record.state == "ready":
        return panel(tag("b", f"✓ {record.model} answers", cls="ink-good"), " at ", tag("code", record.url))
    if progress is not None:
        percent = round(100 * progress.fraction)
        filled = bar([("blue", percent)], label="start of the server", now=percent, cls="short")
        return panel(bold(f"Starting … {percent} %"), filled, muted(progress.message))
    return panel(bold("No server is running yet."), " Press the button, or just run the next cell.")


def words(lines: list[str]) -> Html:
    """Return the last lines of the engine's log, as they are."""
    if not lines:
        return Html()
    shown = "\n".join(line[:160] for line in lines[-LINES_SHOWN:])
    return panel(tag("pre", shown, cls="log", aria_label="last lines of the log"))

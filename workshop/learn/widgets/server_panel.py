"""The panel of notebook 00: find a server or start one, with a progress bar and the engine's own words."""

from __future__ import annotations

import html
import threading
from pathlib import Path

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.launch import local, supervise
from workshop.launch.records import ServerRecord
from workshop.learn.widgets import style
from workshop.use import client

LINES_SHOWN = 6


def status_html(record: ServerRecord | None, progress: supervise.Progress | None = None,
                error: WorkshopError | None = None) -> str:
    """Return one line on the state, with a bar while it starts.

    Args:
        record: the server that was found or is starting; None if there is none.
        progress: how far the start is.
        error: why it failed.
    """
    if error is not None:
        return style.panel(f'<b style="color:{style.BAD}">✗ {html.escape(error.message)}</b><br>'
                           f"→ {html.escape(error.remedy)}")
    if record is not None and record.state == "ready":
        return style.panel(f'<b style="color:{style.GOOD}">✓ {html.escape(record.model)} answers</b> at '
                           f'<code>{html.escape(record.url)}</code>')
    if progress is not None:
        percent = round(100 * progress.fraction)
        bar = (f'<div role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100" '
               f'style="background:{style.FREE};border-radius:6px;height:12px;width:100%;max-width:560px;margin:6px 0">'
               f'<div style="background:{style.BLUE};border-radius:6px;height:12px;width:{percent}%;'
               f'transition:width .3s"></div></div>')
        return style.panel(f"<b>Starting … {percent} %</b>{bar}"
                           f'<span style="color:{style.MUTED}">{html.escape(progress.message)}</span>')
    return style.panel("<b>No server is running yet.</b> Press the button, or just run the next cell.")


def words_html(lines: list[str]) -> str:
    """Return the last lines of the engine's log, as they are."""
    if not lines:
        return ""
    body = html.escape("\n".join(line[:160] for line in lines[-LINES_SHOWN:]))
    return style.panel(f'<pre style="font-family:{style.MONO};font-size:11px;color:{style.MUTED};margin:4px 0 0;'
                       f'padding:6px 8px;border:1px solid {style.LINE};border-radius:6px;white-space:pre-wrap;'
                       f'overflow-wrap:anywhere" aria-label="last lines of the log">{body}</pre>')


def last_lines(log: Path, count: int = LINES_SHOWN) -> list[str]:
    """Return the last lines of a log that is being written; [] if it is not there yet."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-count:]


class ServerPanel(widgets.VBox):
    """Shows the server that `connect()` finds, or starts one at a click; `connect()` waits for it."""

    def __init__(self, model: str | None = None):
        self._model, self._worker, self.error = model, None, None
        self.status, self.words = widgets.HTML(), widgets.HTML()
        self.button = widgets.Button(description="Start the server", button_style="primary", icon="play",
                                     tooltip="Starts vLLM on this machine", layout=widgets.Layout(width="180px"))
        self.button.on_click(lambda _: self.start())
        super().__init__([self.button, self.status, self.words])
        self.refresh()

    def refresh(self) -> None:
        """Look again which server is there."""
        record = self._found()
        self.button.layout.display = "none" if record else ""
        self.status.value = status_html(record, error=self.error)

    def _found(self) -> ServerRecord | None:
        try:
            return client.find()
        except WorkshopError:
            return None

    def start(self) -> None:
        """Start a server in the background, once."""
        if self._worker and self._worker.is_alive():
            return
        if self._found():
            self.refresh()
            return
        self.error = None
        self.button.disabled = True
        self._worker = threading.Thread(target=self._start, daemon=True)
        self._worker.start()

    def _start(self) -> None:
        try:
            launch = local.prepare(self._model)

            def report(progress: supervise.Progress) -> None:
                self.status.value = status_html(None, progress)
                self.words.value = words_html(last_lines(launch.log))

            supervise.start(launch, report)
        except WorkshopError as error:
            self.error = error
        finally:
            self.button.disabled = False
            self.refresh()

    def connect(self) -> client.Client:
        """Return a client of the server; starts one if there is none, and waits until it answers."""
        self.start()
        if self._worker:
            self._worker.join()
        if self.error:
            raise self.error
        return client.connect()

"""The panel of notebook 00: find a server, or start one.

A start shows a progress bar and the last lines of the log.
"""

import threading
from pathlib import Path

import ipywidgets as widgets

from workshop.client import client
from workshop.course.drawing.html import Html, alert, bar, bold, muted, panel, tag
from workshop.course.widgets.controls import View, button, set_shown
from workshop.engine.log.lines import ANSI
from workshop.errors import WorkshopError
from workshop.servers import hang, local, records
from workshop.servers.local import supervise
from workshop.servers.records import ServerRecord

LINES_SHOWN = 6


def status(record: ServerRecord | None, progress: supervise.TaskProgress | None = None,
           error: WorkshopError | None = None) -> Html:  # fmt: skip
    """Return one line on the state of the server.

    The address of a server that runs, a bar of its start, or why the start failed.
    """
    if error is not None:
        return alert(error)
    if record is not None and record.state == "ready":
        return panel(
            tag("b", f"✓ {record.model} answers", cls="ink-good"), " at ", tag("code", record.url)
        )
    if record is not None and record.state not in ("starting", "failed"):
        problem = f"The server {record.name} is there, and does not work ({record.state}): "
        return alert(WorkshopError(f"{problem}{record.reason}.", hang.REMEDY))
    if progress is not None:
        percent = round(100 * progress.fraction)
        filled = bar([("blue", percent)], label="start of the server", now=percent, cls="short")
        return panel(bold(f"Starting … {percent} %"), filled, muted(progress.message))
    return panel(bold("No server is running yet."), " Press the button, or just run the next cell.")


def log_lines(lines: list[str]) -> Html:
    """Return lines of the engine's log, as they are."""
    if not lines:
        return Html()
    text = "\n".join(line[:160] for line in lines)
    return panel(tag("pre", text, cls="log", aria_label="last lines of the log"))


def last_lines(log: Path, count: int = LINES_SHOWN) -> list[str]:
    """Return the last lines of a growing log, without colors; [] if there is no log.

    A notebook's kernel asks the programs that it starts for colors, so vLLM writes their codes into
    its log.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    plain_text = ANSI.sub("", text).replace("\r", "\n")
    lines = [line.rstrip() for line in plain_text.splitlines() if line.strip()]
    return lines[-count:]


class ServerPanel(View):
    """The server that `connect()` finds, or a button that starts one.

    The button starts vLLM, with a progress bar and the last lines of its log.

    Without a GPU the small teaching model is served on the CPU. A server that is starting already
    is waited for.

    >>> from workshop import ServerPanel
    >>> panel = ServerPanel()
    >>> llm = panel.connect()                   # waits until the server answers

    Args:
        model: what to serve: a catalog name, a folder, or None for the teaching model.
    """

    def __init__(self, model: str | None = None):
        self._model, self._worker, self.error = model, None, None
        self.status, self.words = widgets.HTML(), widgets.HTML()
        look = {"button_style": "primary", "icon": "play", "tooltip": "Starts vLLM on this machine"}
        self.button = button("Start the server", self.start, "180px", **look)
        super().__init__(self.button, self.status, self.words)
        if not self.refresh() and records.starting():
            self.start()  # shows how far it is

    def refresh(self) -> bool:
        """Look again whether a server runs, and show which.

        If there are several, the panel says that connect(NAME) has to choose.
        """
        is_ready = bool(records.ready())
        record, error = None, self.error
        try:
            record = client.find()
        except WorkshopError as undecided:
            if is_ready:
                error = undecided
        if record is not None:
            record = hang.of_record(record)
        set_shown(self.button, not (is_ready or record))
        self.status.value = status(record, error=error)
        return is_ready or bool(record)

    def start(self) -> None:
        if (self._worker and self._worker.is_alive()) or self.refresh():
            return
        self.error, self.button.disabled = None, True
        self._worker = threading.Thread(target=self._start, daemon=True)
        self._worker.start()

    def _start(self) -> None:
        """Start a server, or wait for the one that is starting already."""
        try:
            starting = records.starting()
            if starting:
                supervise.follow(starting.name, self._reporter(Path(starting.log)))
            else:
                launch = local.prepare(self._model)
                supervise.start(launch, self._reporter(launch.log))
        except WorkshopError as error:
            self.error = error
        finally:
            self.button.disabled = False
            self.refresh()

    def _reporter(self, log: Path) -> supervise.Report:
        def report(progress: supervise.TaskProgress) -> None:
            self.status.value = status(None, progress)
            self.words.value = log_lines(last_lines(log))

        return report

    def connect(self) -> client.Client:
        """Return a client of the server; start one if there is none, and wait until it answers."""
        self.start()
        if self._worker:
            self._worker.join()
        if self.error:
            raise self.error
        return client.connect()

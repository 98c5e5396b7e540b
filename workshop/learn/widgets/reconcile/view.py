"""The plan beside a log of vLLM: choose a recorded one, or give a path."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import ipywidgets as widgets

from workshop.engine import log as engine_log
from workshop.engine.reconcile import reconcile
from workshop.errors import WorkshopError
from workshop.learn.html import Html, alert, panel
from workshop.learn.widgets.controls import AUTO, View, choice
from workshop.learn.widgets.reconcile.case import recorded
from workshop.learn.widgets.reconcile.picture import picture
from workshop.plan.catalog import list_gpus

OWN = "a file of yours …"


@lru_cache(maxsize=64)
def _read(path: Path, changed_ns: int) -> engine_log.EngineLog:
    return engine_log.read(path)


def compared(path: str | Path, model: str | None, gpu: str | None) -> Html:
    """Read a log, compare, and draw; errors become their sentence. Reading is done once a change of the file."""
    path = Path(path).expanduser()
    try:
        source = _read(path, path.stat().st_mtime_ns) if path.is_file() else path
        return picture(reconcile(source, model or None, gpu or None))
    except WorkshopError as error:
        return alert(error)


class ReconcileView(View):
    """The plan beside what vLLM's log says: weights, KV cache, tokens, and why they differ; then what to change.

    A bar shows the error in percent of the log's number. Below stands which flags would give more, and how much.

    >>> from workshop import ReconcileView
    >>> view = ReconcileView()                  # or ReconcileView("vllm.log", model="llama-3.1-8b", gpu="h200")
    >>> view.choice.value = next(log for log in view.choice.options if log.startswith("llama-3.1-8b"))
    >>> "914,304" in view.picture.value         # tokens of KV cache, as that log says
    True

    Args:
        log: a log of your own; without one, the recorded logs are offered.
        model: catalogue name or folder, where the log's own path is of no use.
        gpu: catalogue name; logs do not say which GPU it was.
    """

    def __init__(self, log: str | Path | None = None, model: str = "", gpu: str = ""):
        self._recorded = recorded()
        wide = {"layout": widgets.Layout(width="560px"), "style": AUTO, "continuous_update": False}
        self.choice = choice("log", [*self._recorded, OWN], next(iter(self._recorded)), "560px")
        self.path = widgets.Text(placeholder="path of vLLM's log", description="file", **wide)
        about = "catalogue name or folder, if the log's path is of no use"
        self.model = widgets.Text(placeholder=about, description="model", **wide)
        self.gpu = choice("GPU", [("as the log says", ""), *((name, name) for name in list_gpus())], "")
        self.own = widgets.VBox([self.path, self.model, self.gpu])
        self.picture = widgets.HTML()
        if log is not None:
            self.choice.value, self.path.value, self.model.value, self.gpu.value = OWN, str(log), model, gpu
        for control in (self.choice, self.path, self.model, self.gpu):
            control.observe(lambda _: self.draw(), names="value")
        super().__init__(self.choice, self.own, self.picture)
        self.draw()

    def draw(self) -> None:
        """Show the chosen log."""
        own = self.choice.value == OWN
        self.own.layout.display = "" if own else "none"
        if not own:
            self.picture.value = compared(**self._recorded[self.choice.value])
        elif self.path.value.strip():
            self.picture.value = compared(self.path.value.strip(), self.model.value.strip(), self.gpu.value)
        else:
            self.picture.value = panel("Give the path of a log that vLLM wrote.")

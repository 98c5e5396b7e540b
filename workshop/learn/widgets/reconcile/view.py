"""The plan beside a log of vLLM: predicted, actual, a bar of the error, what to change."""

from pathlib import Path

import ipywidgets as widgets

from workshop.engine.reconcile import Reconciliation, reconcile
from workshop.learn.html import Html, panel
from workshop.learn.widgets.controls import Explorer, choice, made
from workshop.learn.widgets.reconcile.case import picture, recorded
from workshop.plan.catalog import list_gpus

OWN = "a file of yours …"


class ReconcileView(Explorer):
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
        self._recorded, wide = recorded(), {"width": "560px", "continuous_update": False}
        logs = [*self._recorded, OWN]
        self.choice = choice("log", logs, logs[0] if log is None else OWN, "560px")
        self.path = made(widgets.Text, "file", str(log or ""), placeholder="path of vLLM's log", **wide)
        about = "catalogue name or folder, if the log's path is of no use"
        self.model = made(widgets.Text, "model", model, placeholder=about, **wide)
        self.gpu = choice("GPU", [("as the log says", ""), *((name, name) for name in list_gpus())], gpu)
        super().__init__({"log": self.choice, "path": self.path, "model": self.model, "gpu": self.gpu}, max_width=None)

    def arranged(self) -> tuple[widgets.Widget, ...]:
        self.own = widgets.VBox([self.path, self.model, self.gpu])
        return self.choice, self.own, self.picture

    def adapt(self, name: str) -> None:
        self.own.layout.display = "" if self.choice.value == OWN else "none"

    def compute(self) -> Reconciliation | None:
        if self.choice.value != OWN:
            return reconcile(*self._recorded[self.choice.value].values())
        path, model = Path(self.path.value.strip()).expanduser(), self.model.value.strip()
        return reconcile(path, model or None, self.gpu.value or None) if path.name else None

    def picture_of(self, result: Reconciliation | None) -> Html:
        return panel("Give the path of a log that vLLM wrote.") if result is None else picture(result)

"""Below the explorer: the same seed under two settings, and 20 completions at once; each asks when its button says so."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.html import alert, panel
from workshop.learn.widgets.controls import button, in_a_row
from workshop.learn.widgets.sampling.picture import side_by_side
from workshop.learn.widgets.sampling.source import Completion
from workshop.use.sampling_settings import Settings

SEEDS = 5


class Panel(widgets.VBox):
    """A button, the picture that `work` returns, and what went wrong."""

    def __init__(self, text: str, work: Callable[[], str], *more: widgets.Widget):
        self.work, self.picture = work, widgets.HTML()
        self.button = button(text, self.run, button_style="primary")
        super().__init__([in_a_row(self.button, *more), self.picture])

    def run(self) -> None:
        """Ask the source; say why if that fails."""
        self.button.disabled = True
        self.picture.value = panel("…")
        try:
            self.picture.value = self.work()
        except WorkshopError as error:
            self.picture.value = alert(error)
        finally:
            self.button.disabled = False


def same_seeds(ask: Callable[..., list[Completion]], a: Settings, b: Settings, live: bool) -> str:
    """Return texts under two settings, seed by seed; `ask` takes settings, a seed and how many."""
    if live:
        pairs = [(seed, ask(a, seed)[0], ask(b, seed)[0]) for seed in range(1, SEEDS + 1)]
    else:  # one request was recorded with n=20: its i-th answer has seed + i
        one, other = (ask(each, 1, SEEDS) * (SEEDS if each.greedy else 1) for each in (a, b))
        pairs = [(seed, x, y) for seed, (x, y) in enumerate(zip(one, other, strict=True), 1)]
    return side_by_side(pairs, a, b)

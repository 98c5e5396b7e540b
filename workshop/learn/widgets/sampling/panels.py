"""Two panels below the explorer: the same seed under two settings, and 20 completions at once."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.html import alert, panel, says
from workshop.learn.widgets.controls import button, in_a_row
from workshop.learn.widgets.sampling.picture import MANY, completions, in_words, side_by_side
from workshop.learn.widgets.sampling.source import Completion
from workshop.use.sampling_settings import DEFAULTS, Settings

Ask = Callable[[Settings, int, int], list[Completion]]  # settings, seed, how many


class _Panel(widgets.VBox):
    """A button, a picture, and what went wrong. `ask` completes what stands in the explorer."""

    def __init__(self, ask: Ask, text: str, *controls: widgets.Widget):
        self.ask, self.picture = ask, widgets.HTML()
        self.button = button(text, self.run, button_style="primary")
        super().__init__([in_a_row(self.button, *controls), self.picture])

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

    def work(self) -> str:
        """Return the picture."""
        raise NotImplementedError


class SameSeedPanel(_Panel):
    """A is where the sliders stand, B what was pinned (or the model's own distribution).

    Args:
        settings: returns those of A, and of B where some are pinned.
        live: whether a server answers; a recording has all seeds of one request.
    """

    SEEDS = 5

    def __init__(self, ask: Ask, settings: Callable[[], tuple[Settings, Settings | None]], live: bool):
        self.which, self.settings, self.live = widgets.HTML(), settings, live
        super().__init__(ask, f"Run both with seeds 1 to {self.SEEDS}", self.which)
        self.refresh()

    def refresh(self) -> None:
        """Say what B is."""
        own = "the model’s own distribution (pin other settings to compare with those)"
        pinned = self.settings()[1]
        self.which.value = says(f"A: the sliders; B: {own if pinned is None else in_words(pinned)}")

    def work(self) -> str:
        a, b = self.settings()
        b, n = b or DEFAULTS, self.SEEDS
        if self.live:
            pairs = [(seed, self.ask(a, seed, 1)[0], self.ask(b, seed, 1)[0]) for seed in range(1, n + 1)]
        else:  # one request was recorded with n=20: its i-th answer has seed + i
            one, other = (self.ask(each, 1, n) * (n if each.greedy else 1) for each in (a, b))
            pairs = [(seed, x, y) for seed, (x, y) in enumerate(zip(one, other, strict=True), 1)]
        return side_by_side(pairs, a, b)


class CompletionsPanel(_Panel):
    """Twenty at once: n=20 in one request. `settings` returns settings and seed."""

    def __init__(self, ask: Ask, settings: Callable[[], tuple[Settings, int]]):
        self.settings = settings
        super().__init__(ask, f"Write {MANY} completions")

    def work(self) -> str:
        settings, seed = self.settings()
        return completions(self.ask(settings, seed, MANY), settings)

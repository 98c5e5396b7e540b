"""Watch a server load: a recorded log, played line by line."""

from __future__ import annotations

import ipywidgets as widgets

from workshop.learn.widgets.controls import View, choice, in_a_row, whole
from workshop.learn.widgets.loading.case import RECORDED, STEPS, moments, recorded_text
from workshop.learn.widgets.loading.picture import picture

STEP_MS = 250


class LoadingView(View):
    """A recorded start of `vllm serve`, to play or to drag through; what is known at each moment is case.moments."""

    def __init__(self, name: str = "70b"):
        self.model = choice("recorded start of", RECORDED, name)
        self.play = widgets.Play(value=0, max=STEPS, interval=STEP_MS, tooltip="Play the log")
        self.place = whole("place in the log", 0, 0, STEPS, readout=False, layout=widgets.Layout(width="420px"))
        widgets.link((self.play, "value"), (self.place, "value"))
        self.readout = widgets.HTML()
        self.model.observe(self._draw, "value")
        self.place.observe(self._draw, "value")
        super().__init__(in_a_row(self.model, self.play, self.place), self.readout)
        self._draw()

    def _draw(self, _=None) -> None:
        self.readout.value = picture(moments(recorded_text(self.model.value))[self.place.value])

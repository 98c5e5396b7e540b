from html import escape
from pathlib import Path
from typing import Self

import ipywidgets as widgets

from workshop.course.drawing.html import Html, panel, tag
from workshop.course.widgets.controls import Watching
from workshop.course.widgets.xray.case import RECORDED, Replay, packed, page, trace_file
from workshop.engine.trace import Trace

LIVE_STEPS = 200  # before the newest, that a trace shows which is followed


class XRay(Watching):
    """The engine's work, step by step: which requests ran, with how many tokens.

    It also shows which request holds which block of the KV cache.

    It replays a trace (`workshop serve --trace FILE`, `workshop simulate … --steps FILE`):
    forwards, backwards, by buttons, slider and keys. "Predict the next step" asks what vLLM will
    do, and says by which rule. `start` follows a trace that a server still writes, `stop` ends
    that. `workshop xray FILE --html PAGE` makes one file of it.

    >>> from workshop.course.notebooks import nb11
    >>> xray = nb11.XRay()                              # a recorded run of the teaching model
    >>> xray.steps, xray.score             # how many steps; predictions that were right, and made
    (56, (0, 0))

    Args:
        trace: the file, or the name of your server that writes one; by default a recorded one.
        first: the first step that is drawn; a page holds at most 2,000.
    """

    def __init__(
        self, trace: str | Path = RECORDED, first: int | None = None, every_s: float = 0.5
    ):
        self.trace = Trace(trace_file(trace))
        self._replay = Replay(self.trace.path.name, first)
        self._replay.extend(self.trace.more())
        hidden = {"layout": widgets.Layout(display="none")}
        self._feed, self._says = (
            widgets.HTML(**hidden),
            widgets.Text(f"0 of 0, {self.steps} steps", **hidden),
        )
        self._says.observe(self._give, "value")
        self._feed.add_class("xray-feed")
        self._says.add_class("xray-says")
        self.picture = widgets.HTML(self._frame())
        super().__init__(self.picture, self._feed, self._says, every_s=every_s)
        self.add_class("xray")

    def _frame(self) -> Html:
        title = f"X-ray of {self._replay.about}"
        return panel(tag("iframe", srcdoc=self.page, title=title, cls="xray-frame"), cls="wide")

    def start(self) -> Self:
        """Follow the trace from its last steps on: what a class does now, not what it did first."""
        self._follow()
        return super().start()

    def _follow(self) -> None:
        """Draw the last steps so far, with the newest in sight."""
        if self.steps > LIVE_STEPS:
            newest = (self._replay.first or 0) + self.steps + self._replay.left_out - 1
            self.trace = Trace(self.trace.path)  # from its beginning: earlier steps fill the pool
            self._replay = Replay(self.trace.path.name, newest - LIVE_STEPS + 1)
            self._replay.extend(self.trace.more())
        self._replay.is_followed = True
        self.picture.value = self._frame()

    @property
    def page(self) -> str:
        """The page of all steps so far: HTML that asks for nothing elsewhere."""
        return page(self._replay.data())

    @property
    def steps(self) -> int:
        return len(self._replay.steps)

    @property
    def score(self) -> tuple[int, int]:
        """Predictions that were right, and those that were made."""
        right, _, answered = self._says.value.split(",")[0].split()
        return int(right), int(answered)

    def look(self) -> int:
        """Read what was added to the trace, draw it, and return how many steps there are."""
        self._replay.extend(self.trace.more())
        if self._replay.is_followed and self._replay.left_out:  # a page holds no more
            self._follow()
        self._give()
        return self.steps

    def _give(self, _change: object = None) -> None:
        """Give the page the steps that it lacks; a page that was loaded again lacks most."""
        shown = int(self._says.value.split()[-2])
        if shown < self.steps:
            self._feed.value = escape(packed(self._replay.data(shown)), quote=False)

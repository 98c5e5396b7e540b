"""Watch a server load: a recorded log, played line by line, with the stages of a start and the figures so far."""

from __future__ import annotations

import ipywidgets as widgets

from workshop.engine.log import STAGES
from workshop.learn.html import Html, bar, between, bold, div, muted, panel, tag, tiles
from workshop.learn.widgets.controls import Explorer, choice, in_a_row, whole
from workshop.learn.widgets.loading.case import RECORDED, STEPS, Moment, moments, recorded_text

STEP_MS = 250


class LoadingView(Explorer):
    """A recorded start of `vllm serve`, to play or to drag through; what is known at each moment is case.moments."""

    def __init__(self, name: str = "70b"):
        self.model = choice("recorded start of", RECORDED, name)
        self.play = widgets.Play(value=0, max=STEPS, interval=STEP_MS, tooltip="Play the log")
        self.place = whole("place in the log", 0, 0, STEPS, readout=False, width="420px")
        widgets.link((self.play, "value"), (self.place, "value"))
        super().__init__({"model": self.model, "place": self.place}, max_width=None)

    def arranged(self) -> tuple[widgets.Widget, ...]:
        """The controls, with the player between them, above the picture."""
        return in_a_row(self.model, self.play, self.place), self.picture

    def compute(self) -> Moment:
        return moments(recorded_text(self.model.value))[self.place.value]

    def picture_of(self, result: Moment) -> Html:
        return picture(result)


def picture(moment: Moment) -> Html:
    """Return the bar with the stages of a start, the figures so far, and the last lines, one row each."""
    percent = round(100 * moment.fraction)
    marks = [tag("i", cls="at", title=name, style=f"left:{100 * at:.0f}%") for name, at in STAGES.items() if 0 < at < 1]
    filled = bar([("good" if percent == 100 else "blue", percent)], *marks, label=moment.stage, now=percent)
    stages = [tag("b", name, cls="ink-text") if name == moment.stage else name for name in STAGES]
    head = (bold(f"{percent} %"), f" {moment.message[:110]}", filled, muted(*between(" → ", stages)))
    shown = moment.words or ("Press ▶ to play the log, or move the slider.",)
    lines = (div(line, cls="cut", title=line) for line in shown)  # what is too long for a row is in its title
    done, total = moment.shards
    figures = (
        (moment.clock or "–", "clock"),
        (f"{done} of {total}" if total else "–", "shards"),
        (f"{moment.weights_gib:.2f} GiB" if moment.weights_gib else "–", "weights a GPU"),
        (f"{moment.available_kv_gib:.2f} GiB" if moment.available_kv_gib else "–", "left for KV cache a GPU"),
        (f"{moment.kv_cache_tokens:,} tokens" if moment.kv_cache_tokens else "–", "KV cache"),
    )
    return panel(*head, tiles(figures, columns=5), div(*lines, cls="log fixed"))

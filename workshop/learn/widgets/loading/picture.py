"""The picture of a loading server: the bar with the stages of a start, the figures so far, the last lines."""

from __future__ import annotations

from workshop.engine.log import STAGES
from workshop.learn.html import Html, bold, div, muted, panel, tag, tiles
from workshop.learn.widgets.loading.case import Moment


def picture(moment: Moment) -> Html:
    """Return the HTML of one moment."""
    percent = round(100 * moment.fraction)
    stages = [tag("b", name, cls="ink-text") if name == moment.stage else name for name in STAGES]
    steps = [part for stage in stages for part in (" → ", stage)]
    head = (bold(f"{percent} %"), f" {moment.message[:110]}", _bar(moment, percent), muted(*steps[1:]))
    return panel(*head, _figures(moment), _words(moment))


def _bar(moment: Moment, percent: int) -> Html:
    marks = [tag("i", cls="at", title=name, style=f"left:{100 * at:.0f}%") for name, at in STAGES.items() if 0 < at < 1]
    filled = tag("i", cls="bg-good" if percent == 100 else "bg-blue", style=f"width:{percent}%")
    said = {"aria_valuenow": percent, "aria_valuemin": 0, "aria_valuemax": 100, "aria_label": moment.stage}
    return div(filled, *marks, cls="bar", role="progressbar", **said)


def _words(moment: Moment) -> Html:
    """The last lines, one row each; what is too long for a row is in its title."""
    shown = moment.words or ("Press ▶ to play the log, or move the slider.",)
    return div(*(div(line, cls="cut", title=line) for line in shown), cls="log fixed")


def _figures(moment: Moment) -> Html:
    done, total = moment.shards
    figures = (
        (moment.clock or "–", "clock"),
        (f"{done} of {total}" if total else "–", "shards"),
        (f"{moment.weights_gib:.2f} GiB" if moment.weights_gib else "–", "weights a GPU"),
        (f"{moment.available_kv_gib:.2f} GiB" if moment.available_kv_gib else "–", "left for KV cache a GPU"),
        (f"{moment.kv_cache_tokens:,} tokens" if moment.kv_cache_tokens else "–", "KV cache"),
    )
    return tiles(figures, columns=5)

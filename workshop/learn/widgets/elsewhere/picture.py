"""One plan in three places, side by side: lines that spell the same fact have the same colour. Pure: text out."""

from __future__ import annotations

from workshop.learn.html import Html, bold, div, legend, panel, tag, verdict
from workshop.learn.widgets.elsewhere.case import FACTS, Elsewhere, Line, Place
from workshop.plan.catalog import load_gpu

COLOURS = dict(zip(FACTS, ("blue", "orange", "purple", "yellow", "sky", "grey", "green"), strict=True))


def picture(result: Elsewhere) -> Html:
    """Return the verdict, a legend of the colours, and the three columns."""
    p = result.plan
    if p.fits:
        speed = f"about {p.single_stream_tokens_per_s:.0f} tokens/s for one stream"
        words = f"{p.kv_cache_tokens:,} tokens of KV cache, {speed}."
    else:
        words = (p.advice or p.reasons)[0]
    split = f"TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}"
    said = f" on {p.gpus} × {load_gpu(p.gpu).title}: {split}. {words}"
    head = verdict("✓" if p.fits else "✗", "good" if p.fits else "bad", p.model, said)
    keys = legend((f"bg-{COLOURS[name]}", about) for name, (about, _) in FACTS.items())
    return panel(head, keys, div(*map(_column, result.places), cls="columns"), cls="wide")


def _column(place: Place) -> Html:
    head = div(bold(place.name), div(place.command, cls="mono"))
    if place.problem:
        return tag("section", head, tag("p", place.problem), cls="column")
    return tag("section", head, div(*map(_line, place.lines), cls="script", tabindex="0"), cls="column")


def _line(line: Line) -> Html:
    if not line.fact:
        return div(line.text or " ")
    return div(line.text, cls=f"of-{COLOURS[line.fact]}", title=FACTS[line.fact][0])

"""Three charts of what a server says at /metrics, over one time axis. Pure: looks in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.learn.chart import Axes, line, path, round_up, svg
from workshop.learn.html import Html, bold, div, join, muted, panel, tag
from workshop.learn.widgets import style

WIDTH, HEIGHT, LEFT = 820, 84, 64
DRAWN = 120  # points of a line: more than the eye tells apart here
Chart = tuple[str, str, list[float], list[tuple[str, str, list[float]]]]


def charts(looks: Sequence[Metrics]) -> list[Chart]:
    """Return (title, unit, times in s, series) of each chart; a series is (name, colour, one value for each time).

    Rates stand at the later of the two looks.
    """
    times = [look.time - looks[0].time for look in looks]
    rates = [metrics.rates(before, after) for before, after in pairwise(looks)]
    running = ("running", "blue", [float(look.requests_running or 0) for look in looks])
    waiting = ("waiting", "orange", [float(look.requests_waiting or 0) for look in looks])
    generation = ("generation", "green", [rate.generation_tokens_per_s for rate in rates])
    prompt = ("prompt", "purple", [rate.prompt_tokens_per_s for rate in rates])
    usage = ("KV cache", "kv", [100 * (look.kv_cache_usage or 0.0) for look in looks])
    return [
        ("Requests", "", times, [running, waiting]),
        ("Tokens per second", "tokens/s", times[1:], [generation, prompt]),
        ("KV-cache usage", "%", times, [usage]),
    ]


def picture(looks: Sequence[Metrics]) -> Html:
    """Return the three charts, with the numbers of now in words."""
    if len(looks) < 2:
        return panel("Looking at the server's /metrics …")
    drawn = charts([*looks[:-1][:: -(-len(looks) // DRAWN)], looks[-1]])
    now = [f"{name} {values[-1]:,.0f} {unit}".rstrip() for _, unit, _, series in drawn for name, _, values in series]
    preempted = (looks[-1].preemptions_total or 0) - (looks[0].preemptions_total or 0)
    note = (" · ", tag("b", f"{preempted:,.0f} preempted", cls="ink-bad")) if preempted > 0 else ()
    label = "Server metrics, now: " + ", ".join(now)
    # A number and its unit stay in one line.
    head = muted("now: ", " · ".join(one.replace(" ", "\u00a0") for one in now), *note)
    return panel(head, *(chart(*each, last=each is drawn[-1]) for each in drawn), label=label)


def chart(title: str, unit: str, times: list[float], series: list[tuple[str, str, list[float]]], last: bool) -> Html:
    """Return one chart; the last one has the numbers of the axis of time."""
    top = 100.0 if unit == "%" else axis_end(max(max(values) for _, _, values in series))
    axes = Axes(LEFT, 8, WIDTH - 12, HEIGHT - 22, max(times[-1], 1e-9), top)
    names = [tag("b", f" ━ {name}", cls=f"ink-{colour}") for name, colour, _ in series]
    parts = [path(f"M{axes.left} {axes.top}H{axes.right}", style.LINE, dash="3 4")]
    parts.append(path(f"M{axes.left} {axes.bottom}H{axes.right}", style.LINE))
    parts.append(axes.y_ticks((0, top), lambda value: f"{value:,.0f} %" if unit == "%" and value else f"{value:,.0f}"))
    parts += [line(axes.points(times, values), style.NAMES[colour], 2) for _, colour, values in series]
    if last:
        parts.append(axes.x_ticks(say=lambda value: f"{value:.3g} s", inside=True))
    drawn = svg("".join(parts), WIDTH, HEIGHT if last else HEIGHT - 12)
    return join([div(bold(title), *names, cls="name-of-chart"), drawn])


def axis_end(most: float) -> float:
    """Return where the axis ends: 5, 10, 20, 50 … so that it does not jump at every step."""
    return max(5.0, round_up(most)) if most else 5.0

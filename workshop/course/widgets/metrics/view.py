"""Show what a server reports at /metrics while it works.

Requests running and waiting, tokens per second, and the KV-cache usage.
"""

from collections.abc import Sequence
from itertools import pairwise

import ipywidgets as widgets

from workshop.course.drawing import html
from workshop.course.drawing.chart import Axes, line, path, round_up, svg
from workshop.course.drawing.html import Html, bold, div, join, legend, muted, panel, tag
from workshop.course.widgets import style
from workshop.course.widgets.controls import Watching
from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError

KEPT = 600  # looks: ten minutes at one a second
WIDTH, HEIGHT, LEFT = 820, 84, 64
DRAWN = 120  # points of a line: more than the eye tells apart here
Chart = tuple[str, str, list[float], list[tuple[str, str, list[float]]]]


def charts(looks: Sequence[Metrics]) -> list[Chart]:
    """Return (title, unit, times in s, series) of each chart.

    A series is (name, colour, one value for each time).

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
    every = -(-len(looks) // DRAWN)
    drawn = charts([*looks[:-1][::every], looks[-1]])
    now = []
    for _, unit, _, series in drawn:
        for name, _, values in series:
            now.append(f"{name} {values[-1]:,.0f} {unit}".rstrip())
    # A number and its unit stay in one line.
    unbroken = [number.replace(" ", "\u00a0") for number in now]
    parts: list[object] = ["now: ", " · ".join(unbroken)]
    preempted = (looks[-1].preemptions_total or 0) - (looks[0].preemptions_total or 0)
    if preempted > 0:
        parts += [" · ", tag("b", f"{preempted:,.0f} preempted", cls="ink-bad")]
    *first, last = drawn
    pictures = [chart(*data) for data in first]
    pictures.append(chart(*last, last=True))
    return panel(muted(*parts), *pictures, label=f"Server metrics, now: {', '.join(now)}")


def chart(
    title: str,
    unit: str,
    times: list[float],
    series: list[tuple[str, str, list[float]]],
    last: bool = False,
) -> Html:
    """Return one chart; the last one has the numbers of the axis of time."""
    axes = Axes(LEFT, 8, WIDTH - 12, HEIGHT - 22, max(times[-1], 1e-9), _top(unit, series))
    parts = [path(f"M{axes.left} {axes.top}H{axes.right}", style.LINE, dash="3 4")]
    parts.append(path(f"M{axes.left} {axes.bottom}H{axes.right}", style.LINE))
    parts.append(axes.y_ticks((0, axes.y_end), lambda value: _tick(value, unit)))
    keys = []
    for name, colour, values in series:
        parts.append(line(axes.points(times, values), style.NAMES[colour], 2))
        keys.append((f"bg-{colour} thin", name))
    height = HEIGHT - 12
    if last:
        parts.append(axes.x_ticks(say=lambda value: f"{value:.3g} s", inside=True))
        height = HEIGHT
    head = div(bold(title), legend(keys), cls="name-of-chart")
    return join([head, svg("".join(parts), WIDTH, height)])


def _top(unit: str, series: list[tuple[str, str, list[float]]]) -> float:
    """Return where the axis ends: at 5, 10, 20, 50 …, so that it does not jump at every step."""
    if unit == "%":
        return 100.0
    highest = 5.0
    for _, _, values in series:
        highest = max(highest, *values)
    return round_up(highest)


def _tick(value: float, unit: str) -> str:
    if unit == "%" and value:
        return f"{value:,.0f} %"
    return f"{value:,.0f}"


class MetricsPanel(Watching):
    """The metrics that a server reports at /metrics, drawn as it works.

    Requests that run and that wait, tokens a second (generated, and read as prompts), and the
    KV-cache usage in percent. vLLM counts; the panel looks every `every_s` seconds, in a thread,
    and divides differences by the time.

    >>> from workshop import MetricsPanel, connect
    >>> panel = MetricsPanel(connect(), every_s=0.5).start()    # ... send requests ...
    >>> looks = panel.stop()
    >>> 0 <= looks[-1].kv_cache_usage <= 1
    True

    Args:
        server: what connect() returns, or an address (its key: None).
        every_s: seconds between two looks.
    """

    def __init__(self, server, every_s: float = 1.0):
        if every_s < 0.05:
            wrong = f"Every {every_s} s would be work for the server itself."
            raise BadInput(wrong, "Look every 0.25 s or more seldom.")
        if isinstance(server, str):
            self._url, self._key, self._proxy = server, None, None
        else:
            self._url, self._key, self._proxy = server.url, server.record.api_key, server.proxy
        self.looks: list[Metrics] = []
        self.picture = widgets.HTML(picture([]))
        super().__init__(self.picture, every_s=every_s)

    def look(self) -> Metrics | None:
        """Look once and draw; None if the server did not answer."""
        try:
            look = metrics.fetch(self._url, self._key, proxy=self._proxy)
        except WorkshopError as error:
            self.picture.value = html.alert(error)
            return None
        self.looks = [*self.looks[-KEPT + 1 :], look]
        self.picture.value = picture(self.looks)
        return look

    def stop(self) -> list[Metrics]:
        if self._thread is not None:
            super().stop()
        return self.looks

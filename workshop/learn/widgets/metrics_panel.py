"""What a server says at /metrics while it works: requests running and waiting, tokens per second, KV-cache usage.

panel = MetricsPanel(llm); panel.start()      # … send requests … panel.stop()
"""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from itertools import pairwise

import ipywidgets as widgets

from workshop.engine import metrics
from workshop.engine.metrics import Metrics
from workshop.errors import BadInput, WorkshopError
from workshop.learn.widgets import style

WIDTH, HEIGHT, LEFT, BOTTOM = 820, 84, 64, 16
DRAWN = 120  # points of a line: more than the eye tells apart here
KEPT = 600  # looks: ten minutes at one a second
Series = list[tuple[str, str, list[float]]]  # name, colour, one value for each time


def charts(looks: Sequence[Metrics]) -> list[tuple[str, str, list[float], Series]]:
    """Return (title, unit, times in s, series) of each chart; rates stand at the later of the two looks."""
    if not looks:
        return []
    began = looks[0].time
    times = [look.time - began for look in looks]
    pairs = [metrics.rates(before, after) for before, after in pairwise(looks)]
    running, waiting = (
        [float(getattr(look, name) or 0) for look in looks] for name in ("requests_running", "requests_waiting")
    )
    return [
        ("Requests", "", times, [("running", style.BLUE, running), ("waiting", style.ORANGE, waiting)]),
        (
            "Tokens per second",
            "tokens/s",
            times[1:],
            [
                ("generation", style.GREEN, [pair.generation_tokens_per_s for pair in pairs]),
                ("prompt", style.PURPLE, [pair.prompt_tokens_per_s for pair in pairs]),
            ],
        ),
        (
            "KV-cache usage",
            "%",
            times,
            [("KV cache", style.KV_CACHE, [100 * (look.kv_cache_usage or 0.0) for look in looks])],
        ),
    ]


def panel_html(looks: Sequence[Metrics]) -> str:
    """Return the three charts over one time axis, with the numbers of now in words."""
    if len(looks) < 2:
        return style.panel("Looking at the server's /metrics …")
    drawn = charts([*looks[:-1][:: -(-len(looks) // DRAWN)], looks[-1]])
    now = [
        f"{name} {values[-1]:,.0f}{'&nbsp;' + unit if unit else ''}"
        for _, unit, _, series in drawn
        for name, _, values in series
    ]
    preempted = (looks[-1].preemptions_total or 0) - (looks[0].preemptions_total or 0)
    note = f' · <b style="color:{style.BAD}">{preempted:,.0f} preempted</b>' if preempted > 0 else ""
    label = html.escape("Server metrics, now: " + ", ".join(now).replace("&nbsp;", " "), quote=True)
    return style.panel(
        f'<div style="color:{style.MUTED};font-size:12px;margin:0 0 2px">now: {" · ".join(now)}{note}</div>'
        + "".join(_chart(*each, last=each is drawn[-1]) for each in drawn),
        label=label,
    )


def _chart(title: str, unit: str, times: list[float], series: Series, last: bool) -> str:
    top = 100.0 if unit == "%" else _round_up(max(max(values) for _, _, values in series))
    span = max(times[-1], 1e-9)
    right, height = WIDTH - 12, HEIGHT - (0 if last else 12)

    def at(time: float, value: float) -> str:
        return f"{LEFT + (right - LEFT) * time / span:.1f},{8 + (HEIGHT - BOTTOM - 14) * (1 - value / top):.1f}"

    lines = "".join(
        f'<polyline points="{" ".join(map(at, times, values))}" fill="none" stroke="{colour}" '
        f'stroke-width="2" stroke-linejoin="round"/>'
        for _, colour, values in series
    )
    foot = 8 + HEIGHT - BOTTOM - 14
    text = f'font-size="11" fill="{style.MUTED}" font-family="{html.escape(style.FONT, quote=True)}"'
    ticks = "".join(
        f'<text x="{LEFT + (right - LEFT) * part:.0f}" y="{HEIGHT - 3}" text-anchor="{anchor}" {text}>'
        f"{span * part:.0f} s</text>"
        for part, anchor in ((0, "start"), (0.5, "middle"), (1, "end"))
    )
    names = " ".join(f'<span style="color:{colour};font-weight:600">━ {name}</span>' for name, colour, _ in series)
    return (
        f'<div style="font-size:12px;margin-top:6px"><b>{title}</b> {names}</div>'
        f'<svg viewBox="0 0 {WIDTH} {height}" width="100%" style="display:block" aria-hidden="true">'
        f'<line x1="{LEFT}" x2="{right}" y1="8" y2="8" stroke="{style.LINE}" stroke-dasharray="3 4"/>'
        f'<line x1="{LEFT}" x2="{right}" y1="{foot}" y2="{foot}" stroke="{style.LINE}"/>'
        f'<text x="{LEFT - 6}" y="12" text-anchor="end" {text}>{top:,.0f}{"&#8201;%" if unit == "%" else ""}</text>'
        f'<text x="{LEFT - 6}" y="{foot + 4}" text-anchor="end" {text}>0</text>{lines}{ticks if last else ""}</svg>'
    )


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, …, so that the axis does not jump at every step."""
    step = 1.0
    while step < value:
        step *= 2.5 if str(step)[0] == "2" else 2.0
    return max(step, 5.0)


class MetricsPanel(widgets.VBox):
    """View only: `panel_html` draws what `engine.metrics` reads. Looks at the server every `every_s`, in a thread."""

    def __init__(self, server, every_s: float = 1.0):
        """`server` is what connect() returns, or an address (its key: None)."""
        if every_s < 0.05:
            raise BadInput(
                f"Every {every_s} s would be work for the server itself.", "Look every 0.25 s or more seldom."
            )
        self._url, self._key, self._proxy = ((server, None, None) if isinstance(server, str) else
                                             (server.url, server.record.api_key, server.proxy))
        self.every_s, self.looks, self._thread, self._end = every_s, [], None, threading.Event()
        self.picture = widgets.HTML(panel_html([]))
        super().__init__([self.picture])

    def look(self) -> Metrics | None:
        """Look once and draw; None if the server did not answer."""
        try:
            seen = metrics.fetch(self._url, self._key, proxy=self._proxy)
        except WorkshopError as error:
            self.picture.value = style.panel(f'<b style="color:{style.BAD}">✗ {html.escape(error.message)}</b>')
            return None
        self.looks = [*self.looks[-KEPT + 1 :], seen]
        self.picture.value = panel_html(self.looks)
        return seen

    def start(self) -> MetricsPanel:
        """Look until `stop`; returns the panel, so that a cell can end in it."""
        if self._thread is None:
            self._end.clear()
            self._thread = threading.Thread(target=self._watch, daemon=True, name="metrics-panel")
            self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.is_set():
            self.look()
            self._end.wait(self.every_s)

    def stop(self) -> list[Metrics]:
        """Stop looking; return what was seen."""
        if self._thread is not None:
            self._end.set()
            self._thread.join(timeout=10)
            self._thread = None
            self.look()
        return self.looks

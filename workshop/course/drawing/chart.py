"""One kit for drawings in SVG: text, boxes, lines, and axes with ticks. Pure: numbers in, text out.

    axes = Axes(60, 20, 600, 200, x_end=64, y_end=10)
    Picture(axes.y_ticks() + line(axes.points(x, y), style.BLUE), 640, 240, "what it shows, in words")

All lengths are SVG units, which are pixels where a picture has its full width.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from workshop.course.drawing import html
from workshop.course.drawing.readable_numbers import number
from workshop.course.widgets import style

FRAME = style.GREY
# A drawing shrinks to the room that there is, down to this width in pixels; then it scrolls. Beside
# the file browser of a window of 900 pixels there are 440.
LEAST_WIDTH = 400


class Picture:
    """An SVG in notebooks, its words elsewhere.

    `width` is in SVG units. A page shows it with as many pixels, with fewer where it has no room,
    and with `most_pixels` where that is given.
    """

    def __init__(
        self,
        body: str,
        width: int,
        height: int,
        description: str,
        *,
        most_pixels: int | None = None,
    ):
        self.words = description
        least = min(width, LEAST_WIDTH)
        self.svg = svg(body, width, height, min_width=least, max_width=most_pixels or width)

    def __repr__(self) -> str:
        return self.words

    @property
    def drawn(self) -> html.Html:
        """The picture with its words for screen readers; the stylesheet is not with it."""
        return scrolled(self.svg, self.words)

    def _repr_html_(self) -> str:
        return html.alone(self.drawn)


def scrolled(drawn: html.Html, description: str) -> html.Html:
    """Return a drawing that a narrow page can scroll, with a description for screen readers."""
    return html.panel(html.div(drawn, cls="scroll"), label=description)


def svg(
    body: str, width: float, height: float, *, min_width: int = 0, max_width: float | None = None
) -> html.Html:
    """Return an SVG that takes the available width, up to `max_width` pixels.

    `max_width` is by default the drawing's own width.
    """
    least = ""
    if min_width:
        least = f"min-width:{min_width}px;"
    size = f'viewBox="0 0 {width} {height}" style="{least}max-width:{max_width or width}px"'
    return html.Html(f'<svg {size} aria-hidden="true">{body}</svg>')


def text(
    x: float,
    y: float,
    content: str,
    *,
    anchor: str = "start",
    size: float = 12,
    fill: str = style.TEXT,
    bold: bool = False,
) -> str:
    """Return a text; y is its base line, anchor (start, middle, end) where x is."""
    weight = ""
    if bold:
        weight = ' font-weight="600"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{fill}"{weight}>{escape(content)}</text>'


def box(
    x: float, y: float, w: float, h: float, fill: str, *, stroke: str = "none", radius: float = 2
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}"'
    return f'<rect {place} rx="{radius}" fill="{fill}" stroke="{stroke}"/>'


def path(
    d: str, colour: str = FRAME, width: float = 1, *, dash: str = "", opacity: float = 1
) -> str:
    """Return an open path, `d` in SVG's own words (M, H, V, L …); dash as in "3 2"."""
    more = ""
    if dash:
        more = f' stroke-dasharray="{dash}"'
    if opacity != 1:
        more += f' stroke-opacity="{opacity}"'
    return f'<path d="{d}" stroke="{colour}" stroke-width="{width}" fill="none"{more}/>'


def line(points: Iterable[tuple[float, float]], colour: str, width: float = 2.5) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    look = f'stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"'
    return f'<polyline points="{places}" fill="none" {look}/>'


def dot(
    x: float, y: float, radius: float, fill: str, *, stroke: str = "none", title: str = ""
) -> str:
    """Return a circle; its title is shown where the mouse rests on it."""
    edge = ""
    if stroke != "none":
        edge = f' stroke="{stroke}" stroke-width="1.8"'
    label = ""
    if title:
        label = f"<title>{escape(title)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"{edge}>{label}</circle>'


def round_up(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten, where an axis may end; 10 for nothing."""
    if value <= 0:
        return 10.0
    power = 10.0 ** math.floor(math.log10(value))
    for step in (1, 2, 5):
        if step * power >= value * (1 - 1e-9):
            return step * power
    return 10 * power


@dataclass(frozen=True)
class Axes:
    """The field of a chart: edges in SVG units, and the numbers at its ends; y grows upwards."""

    left: float
    top: float
    right: float
    bottom: float
    x_end: float = 1.0  # the number at the right
    y_end: float = 1.0  # at the top
    x_start: float = 0.0
    y_start: float = 0.0

    def x(self, value: float) -> float:
        """Return where a number stands from left to right."""
        numbers = (self.x_end - self.x_start) or 1
        return self.left + (self.right - self.left) * (value - self.x_start) / numbers

    def y(self, value: float) -> float:
        """Return where a number stands from top to bottom."""
        numbers = (self.y_end - self.y_start) or 1
        return self.bottom - (self.bottom - self.top) * (value - self.y_start) / numbers

    def points(self, x: Iterable[float], y: Iterable[float]) -> list[tuple[float, float]]:
        return [(self.x(a), self.y(b)) for a, b in zip(x, y, strict=True)]

    def x_ticks(
        self,
        values: Iterable[float] = (),
        say: Callable[[float], str] = number,
        *,
        inside: bool = False,
    ) -> str:
        """Return numbers below the field, by default three.

        With `inside` the outer two stay within its edges.
        """
        values = list(values) or _three(self.x_start, self.x_end)
        anchors = ["middle"] * len(values)
        if inside:
            anchors[0], anchors[-1] = "start", "end"
        y = self.bottom + 16
        ticks = ""
        for value, anchor in zip(values, anchors, strict=True):
            ticks += text(self.x(value), y, say(value), anchor=anchor, size=11, fill=style.MUTED)
        return ticks

    def y_ticks(self, values: Iterable[float] = (), say: Callable[[float], str] = number) -> str:
        """Return numbers to the left of the field, by default three."""
        x = self.left - 6
        ticks = ""
        for value in list(values) or _three(self.y_start, self.y_end):
            y = self.y(value) + 4
            ticks += text(x, y, say(value), anchor="end", size=11, fill=style.MUTED)
        return ticks


def _three(start: float, end: float) -> list[float]:
    return [start, (start + end) / 2, end]

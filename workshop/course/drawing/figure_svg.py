"""Draws the course's figures as SVG where matplotlib is missing."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from workshop.course.drawing import chart
from workshop.course.drawing.readable_numbers import number
from workshop.course.widgets import style

LETTER = 6.8  # a letter's width in SVG units, at a size of 12
# SVG units of a pixel: text of 11 units still has 10 pixels where a page leaves 440 of 560.
SCALE = 0.84
BASE_LINE = {"top": 12, "center": 4, "bottom": -4}  # of a text, below the place that it is for


class SvgAxes:
    """The methods of matplotlib's axes that `figure.draw` calls, and `picture`, which shows them.

    Their arguments are matplotlib's; what only matplotlib needs (`_`) changes nothing.
    """

    def __init__(self, width: int, height: int):
        self.pixels = width
        self.width, self.height = round(width * SCALE), round(height * SCALE)
        self.label_height = 16 / (self.height - 92)  # a line of text, as a share of the field
        # Where a mark stands is clear when all are there: (zorder, what draws it in a field).
        self.marks: list[tuple[float, Callable[[chart.Axes], str]]] = []
        self.colours: dict[str, str] = {}  # by label, for the legend
        self.rows: Sequence[str] = ()  # names on the y axis
        self.columns: dict[str, float] = {}  # names on the x axis → their places
        self.xs: list[float] = []
        self.ys: list[float] = []
        self.x_ends: tuple[float, float] | None = None
        self.y_ends: tuple[float, float | None] = (0.0, None)
        self.longest_text = 0

    def plot(
        self, xs, ys, *, color, marker, linestyle="-", markersize=7, zorder=2, label="", **_
    ) -> None:
        places = [self._place(x) for x in xs]
        self.xs += places
        self.ys += ys
        self.colours[label] = color

        def drawn(field: chart.Axes) -> str:
            points = field.points(places, ys)
            marks = ""
            if linestyle:
                marks = chart.line(points, color)
            if marker:
                for x, y in points:
                    marks += chart.dot(x, y, 0.56 * markersize, color)
            return marks

        self.marks.append((zorder, drawn))

    def barh(self, places, lengths, height: float, *, left, color: str, label: str) -> None:
        ends = [start + length for start, length in zip(left, lengths, strict=True)]
        self.xs += [*left, *ends]
        self.colours[label] = color

        def drawn(field: chart.Axes) -> str:
            bars = ""
            for place, *edges in zip(places, left, ends, strict=True):
                start, end = sorted(map(field.x, edges))
                top, bottom = field.y(place - height / 2), field.y(place + height / 2)
                bars += chart.box(start, top, end - start, bottom - top, color)
            return bars

        self.marks.append((1, drawn))

    def annotate(self, text: str, place, offset, *, ha: str, va: str, weight: str, **_) -> None:
        x, y = self._place(place[0]), place[1]
        anchor = {"left": "start", "right": "end"}[ha]
        self.longest_text = max(self.longest_text, len(text))

        def drawn(field: chart.Axes) -> str:
            left, base = field.x(x) + offset[0], field.y(y) + BASE_LINE[va]
            return chart.text(left, base, text, anchor=anchor, bold=weight == "bold")

        self.marks.append((3, drawn))

    def set_yticks(self, _places, names: Sequence[str]) -> None:
        self.rows = names

    def set_xlim(self, start: float, end: float) -> None:
        self.x_ends = start, end

    def set_ylim(self, bottom: float, top: float | None = None) -> None:
        self.y_ends = bottom, top

    def get_ylim(self) -> tuple[float, float]:
        bottom, top = self.y_ends
        if top is None:
            top = chart.round_up(max(self.ys))
        return bottom, top

    def _place(self, x: Any) -> float:
        """Return where x stands: a name has the next place, as in matplotlib."""
        if isinstance(x, str):
            return self.columns.setdefault(x, len(self.columns))
        return x

    def picture(self, title: str, xlabel: str, ylabel: str, description: str) -> chart.Picture:
        """Return the figure; `description` is for screen readers."""
        foot, legend = self._legend()
        left, top = 64.0, 32
        if self.rows:
            left = 16 + LETTER * max(map(len, self.rows))
        if ylabel:
            top = 48
        right = self.width - 20 - LETTER * self.longest_text
        x_start, x_end = self.x_ends or (min(self.xs), max(self.xs))
        y_start, y_end = self.get_ylim()
        field = chart.Axes(left, top, right, foot - 36, x_end, y_end, x_start, y_start)
        title_x = max(0.0, min(left, self.width - 8 * len(title)))  # a long one begins further left
        drawn = [chart.text(title_x, 18, title, bold=True, size=14), self._scales(field)]
        for _, mark in sorted(self.marks, key=lambda mark: mark[0]):
            drawn.append(mark(field))
        drawn.append(chart.text(left, foot, xlabel, fill=style.MUTED))
        drawn.append(chart.text(0, 36, ylabel, fill=style.MUTED))
        body = "".join(drawn) + legend
        return chart.Picture(body, self.width, self.height, description, most_pixels=self.pixels)

    def _scales(self, field: chart.Axes) -> str:
        """Return the lines of the axes and the numbers or names beside them."""
        names = {place: name for name, place in self.columns.items()}
        ticks = field.x_ticks(names, lambda x: names.get(x, number(x)))
        if not self.rows:
            edges = chart.path(f"M{field.left} {field.top}V{field.bottom}H{field.right}")
            return edges + ticks + field.y_ticks()
        for n, row in enumerate(self.rows):
            ticks += chart.text(field.left - 8, field.y(n) + 4, row, anchor="end")
        return ticks + chart.path(f"M{field.x(0)} {field.top}V{field.bottom}")

    def _legend(self) -> tuple[float, str]:
        """Return how far down the figure has room for axes, and the legend below."""
        foot = self.height - 8
        labels = list(filter(None, self.colours))
        if len(labels) < 2:
            return foot, ""
        label_width = 34 + LETTER * max(map(len, labels))
        per_line = max(1, int(self.width // label_width))
        foot -= 20 * math.ceil(len(labels) / per_line)
        drawn = ""
        for n, label in enumerate(labels):
            x, y = n % per_line * label_width, foot + 10 + 20 * (n // per_line)
            drawn += chart.box(x, y, 12, 12, self.colours[label])
            drawn += chart.text(x + 18, y + 11, label)
        return foot, drawn

"""Draws the course's figures as SVG where matplotlib is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.course.drawing import chart
from workshop.course.drawing.readable_numbers import number
from workshop.course.drawing.series import Series, rows_of
from workshop.course.widgets import style

LETTER = 6.8  # a letter's width in SVG units, at a size of 12
# SVG units of a pixel: text of 11 units still has 10 pixels where a page leaves 440 of 560.
SCALE = 0.84


def spread(values: Sequence[float], apart: float) -> list[float]:
    """Return the values, the larger ones raised until all are at least `apart` from each other.

    The names at the ends of lines need it.
    """
    out, below = [0.0] * len(values), float("-inf")
    for n in sorted(range(len(values)), key=values.__getitem__):
        out[n] = below = max(values[n], below + apart)
    return out


def picture(
    series: Sequence[Series],
    kind: str,
    colours: Mapping[str, str],
    xlabel: str,
    ylabel: str,
    title: str,
    *,
    names: Sequence[str],
    limit: float | None,
    width: int,
    height: int,
    description: str,
) -> chart.Picture:
    """Return the figure; the arguments are those of `figure.figure`.

    Width and height are in pixels. `description` is for screen readers.
    """
    pixels = width
    width, height = round(width * SCALE), round(height * SCALE)
    labels = _legend(series, kind)
    label_width = 34 + LETTER * max(map(len, labels), default=0)
    per_line = max(1, int(width // label_width))
    lines = -(-len(labels) // per_line)
    foot = height - 8 - 20 * lines
    if kind == "line":
        axes, drawn = _lines(series, colours, names, width, height)
    else:
        axes, drawn = _rows(series, kind, colours, limit, width, foot)
    for n, label in enumerate(labels):
        x = n % per_line * label_width
        y = foot + 10 + 20 * (n // per_line)
        drawn += [chart.box(x, y, 12, 12, colours[label]), chart.text(x + 18, y + 11, label)]
    y_label_x = 0
    if ylabel:
        y_label_x = axes.left - 50
    title_x = max(0.0, min(axes.left, width - 8 * len(title)))  # a long one begins further left
    drawn.insert(0, chart.text(title_x, 18, title, bold=True, size=14))
    drawn.append(chart.text(axes.left, foot, xlabel, fill=style.MUTED))
    drawn.append(chart.text(y_label_x, 36, ylabel, fill=style.MUTED))
    return chart.Picture("".join(drawn), width, height, description, most_pixels=pixels)


def _legend(series: Sequence[Series], kind: str) -> list[str]:
    """Return the labels of a legend: none for lines, labelled at their ends, or a single series."""
    labels = []
    for label, _, _ in series:
        if label:
            labels.append(label)
    if kind == "line" or len(labels) < 2:
        return []
    return labels


def _lines(series, colours, names, width, height) -> tuple[chart.Axes, list[str]]:
    has_names = isinstance(series[0][1][0], str)  # on its x axis, in place of numbers
    places_of_x: dict[Any, float] = {}
    highest = 0.0
    texts = list(names)
    for label, xs, ys in series:
        texts.append(label)
        for n, x in enumerate(xs):
            places_of_x[x] = x
            if has_names:
                places_of_x[x] = n
        highest = max(highest, *ys)
    room = 20 + LETTER * max(map(len, texts))
    first, last = min(places_of_x.values()), max(places_of_x.values())
    y_end = chart.round_up(highest)
    axes = chart.Axes(
        64, 48, width - room, height - 44, last, y_start=0, x_start=first, y_end=y_end
    )
    drawn = [chart.path(f"M{axes.left} {axes.top}V{axes.bottom}H{axes.right}"), axes.y_ticks()]
    if has_names:
        ticks = series[0][1]
        drawn.append(axes.x_ticks(range(len(ticks)), ticks.__getitem__))
    else:
        drawn.append(axes.x_ticks())
    apart = 16 / (axes.bottom - axes.top) * axes.y_end
    ends = spread([ys[-1] for _, _, ys in series], apart)
    for (label, xs, ys), end in zip(series, ends, strict=True):
        places = axes.points([places_of_x[x] for x in xs], ys)
        drawn.append(chart.line(places, colours[label]))
        if len(xs) <= 20:
            drawn += [chart.dot(x, y, 4, colours[label]) for x, y in places]
        for (x, y), name in zip(places, names, strict=False):
            drawn.append(chart.text(x + 10, y + 12, name, bold=True))
        if not names:
            drawn.append(chart.text(places[-1][0] + 10, axes.y(end) + 4, label, bold=True))
    return axes, drawn


def _sums(series: Sequence[Series], rows: Sequence[str]) -> dict[str, float]:
    """Return how long each row of a stacked chart is."""
    sums = dict.fromkeys(rows, 0.0)
    for _, xs, ys in series:
        for x, y in zip(xs, ys, strict=True):
            sums[str(x)] += y
    return sums


def _far(series: Sequence[Series], kind: str, limit: float | None) -> float:
    """Return the number at the end of the axis."""
    if kind == "stacked":
        return max(_sums(series, rows_of(series)).values())
    if limit:
        return limit
    farthest = 0.0
    for _, _, ys in series:
        farthest = max(farthest, *map(abs, ys))
    return farthest


def _rows(series, kind, colours, limit, width, foot) -> tuple[chart.Axes, list[str]]:
    rows = rows_of(series)
    far = _far(series, kind, limit)
    start = 0
    if kind == "points":
        start = -far
    left = 16 + LETTER * max(map(len, rows))
    axes = chart.Axes(left, 32, width - 56, foot - 36, far, x_start=start)
    tall = (axes.bottom - axes.top) / len(rows)
    middles = {}
    drawn = []
    for n, row in enumerate(rows):
        middles[row] = axes.top + (n + 0.5) * tall
        drawn.append(chart.text(left - 8, middles[row] + 4, row, anchor="end"))
    drawn += [chart.path(f"M{axes.x(0)} {axes.top}V{axes.bottom}"), axes.x_ticks()]
    if kind == "points":
        drawn += _points(axes, series, colours, middles, far)
    elif kind == "stacked":
        drawn += _stacked_bars(axes, series, colours, middles, 0.7 * tall)
    else:
        drawn += _bars(axes, series, colours, middles, 0.76 * tall / len(series))
    return axes, drawn


def _stacked_bars(axes, series, colours, middles, thick) -> list[str]:
    """Draw bars one after the other, and at the end of each row its sum."""
    drawn = []
    ends = dict.fromkeys(middles, 0.0)
    for label, xs, ys in series:
        for row, y in zip(map(str, xs), ys, strict=True):
            top = middles[row] - thick / 2
            width = axes.x(y) - axes.left
            drawn.append(chart.box(axes.x(ends[row]), top, width, 0.94 * thick, colours[label]))
            ends[row] += y
    for row, end in ends.items():
        drawn.append(chart.text(axes.x(end) + 6, middles[row] + 4, number(end), bold=True))
    return drawn


def _bars(axes, series, colours, middles, thick) -> list[str]:
    """Draw bars one below the other, each with its number."""
    drawn = []
    for n, (label, xs, ys) in enumerate(series):
        for row, y in zip(map(str, xs), ys, strict=True):
            top = middles[row] - (len(series) / 2 - n) * thick
            width = axes.x(y) - axes.left
            drawn.append(chart.box(axes.left, top, width, 0.94 * thick, colours[label]))
            drawn.append(chart.text(axes.x(y) + 6, top + thick / 2 + 4, number(y), bold=True))
    return drawn


def _points(axes, series, colours, middles, far) -> list[str]:
    drawn = []
    for label, xs, ys in reversed(series):  # the first over the others
        for row, y in zip(map(str, xs), ys, strict=True):
            at = axes.x(max(-far, min(far, y)))
            drawn.append(
                chart.dot(at, middles[row], 5, colours[label], title=f"{label}: {number(y)}")
            )
            if abs(y) > far:  # beyond the axis: its number stands inside, where there is room
                side, anchor = 9, "start"
                if y > 0:
                    side, anchor = -9, "end"
                drawn.append(
                    chart.text(at + side, middles[row] + 4, f"{y:+.0f}", size=11, anchor=anchor)
                )
    return drawn

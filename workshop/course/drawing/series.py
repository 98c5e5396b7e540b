"""Series of numbers that a figure shows: their names, colours and descriptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.course.drawing.readable_numbers import number
from workshop.course.widgets import style

MEANING = {
    "weights": style.WEIGHTS,
    "KV cache": style.KV_CACHE,
    "overhead": style.OVERHEAD,
    "Float16": style.WEIGHTS,
    "Float8": style.SKY,
    "INT4": "#B5DDF3",
    "with a KV cache": style.KV_CACHE,
    "without a cache": style.VERMILLION,
    "workshop plan": style.GREEN,
    "sent, no token yet": style.ORANGE,
    "tokens come": style.BLUE,
}
Series = tuple[str, list, list[float]]  # label, x (numbers or names), y


def rows_of(series: Sequence[Series]) -> list[str]:
    """Return the names of a chart's rows, in order: every x once."""
    rows: dict[str, None] = {}
    for _, xs, _ in series:
        rows |= dict.fromkeys(map(str, xs))
    return list(rows)


def series_of(data: Any) -> list[Series]:
    """Return a table's columns as (label, x, y), without NaN.

    Tables of pandas and dictionaries both have `items`.
    """
    columns = list(data.items())
    if columns and not hasattr(columns[0][1], "items"):
        columns = [("", data)]
    series = []
    for label, column in columns:
        xs, ys = [], []
        for x, y in column.items():
            if y == y:  # NaN is not itself
                xs.append(x)
                ys.append(float(y))
        series.append((str(label), xs, ys))
    return series


def colours_of(series: Sequence[Series], chosen: Mapping[str, str] | None) -> dict[str, str]:
    """Return label → colour: chosen, by the label's meaning, or the next in the course's order."""
    labels = [label for label, _, _ in series]
    unnamed = style.BLUE
    if len(series) > 1:
        unnamed = "none"
    by_label = {**MEANING, **(chosen or {}), "": unnamed}
    used_colours = set(map(by_label.get, labels))
    free = [colour for colour in style.CYCLE if colour not in used_colours]
    order = iter(free + list(style.CYCLE) * len(series))
    colours = {}
    for label in labels:
        colours[label] = by_label.get(label) or next(order)
    return colours


def words_of(series: Sequence[Series], title: str, xlabel: str, ylabel: str) -> str:
    """Return a sentence with the title, the axes and the numbers.

    For a line of more than 16 points it has the first and the last number only.
    """
    parts = [title, " against ".join(filter(None, (ylabel, xlabel)))]
    for label, xs, ys in series:
        points = []
        for x, y in zip(xs, ys, strict=True):
            if not isinstance(x, str):
                x = number(x)
            points.append(f"{x}: {number(y)}")
        if len(points) > 16:
            points = [points[0], points[-1]]
        numbers = ", ".join(points)
        if label:
            numbers = f"{label}: {numbers}"
        parts.append(numbers)
    return ". ".join(part.rstrip(".:") for part in parts if part) + "."

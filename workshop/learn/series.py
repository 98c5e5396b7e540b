"""What a figure draws, whatever draws it: series of numbers with their names, colours and words."""

from collections.abc import Mapping, Sequence
from typing import Any

from workshop.learn.numbers import number
from workshop.learn.widgets import style

MEANING = {"weights": style.WEIGHTS, "KV cache": style.KV_CACHE, "overhead": style.OVERHEAD,
           "Float16": style.WEIGHTS, "Float8": style.SKY, "INT4": "#B5DDF3",
           "with a KV cache": style.KV_CACHE, "without a cache": style.VERMILLION, "workshop plan": style.GREEN,
           "sent, no token yet": style.ORANGE, "tokens come": style.BLUE}  # fmt: skip
Series = tuple[str, list, list[float]]  # label, x (numbers or names), y


def rows_of(series: Sequence[Series]) -> list[str]:
    """Return the names of a chart's rows, in order: every x once."""
    return list(dict.fromkeys(str(x) for _, xs, _ in series for x in xs))


def spread(values: Sequence[float], apart: float) -> list[float]:
    """Return the values, the larger ones raised until all are that far apart: for the names at the ends of lines."""
    out, below = [0.0] * len(values), float("-inf")
    for n in sorted(range(len(values)), key=values.__getitem__):
        out[n] = below = max(values[n], below + apart)
    return out


def series_of(data: Any) -> list[Series]:
    """Return a table's columns as (label, x, y), without NaN; pandas and dictionaries both have `items`."""
    columns = list(data.items())
    if columns and not hasattr(columns[0][1], "items"):
        columns = [("", data)]
    found = []
    for label, column in columns:
        points = [(x, float(y)) for x, y in column.items() if y == y]  # NaN is not itself
        found.append((str(label), [x for x, _ in points], [y for _, y in points]))
    return found


def colours_of(series: Sequence[Series], given: Mapping[str, str] | None) -> dict[str, str]:
    """Return label → colour: as given, else by what a label means, else in the course's order."""
    known = {**MEANING, **(given or {}), "": "none" if len(series) > 1 else style.BLUE}
    taken = {known[label] for label, _, _ in series if label in known}
    order = iter([colour for colour in style.CYCLE if colour not in taken] + list(style.CYCLE) * len(series))
    return {label: known.get(label) or next(order) for label, _, _ in series}


def words_of(series: Sequence[Series], title: str, xlabel: str, ylabel: str) -> str:
    """Return title, axes and numbers in a sentence; of a line of more than 16 points the first and the last."""
    said = []
    for label, xs, ys in series:
        points = [f"{x if isinstance(x, str) else number(x)}: {number(y)}" for x, y in zip(xs, ys, strict=True)]
        points = points if len(points) <= 16 else [points[0], points[-1]]
        said.append(f"{label}: {', '.join(points)}" if label else ", ".join(points))
    axes = " against ".join(name for name in (ylabel, xlabel) if name)
    return ". ".join(part.rstrip(".:") for part in (title, axes, *said) if part) + "."

"""One way to draw numbers: `figure(data, kind, …)` draws a pandas table with matplotlib.

The figure has the course's style.

Where matplotlib cannot be imported (a browser, a small machine) the same call returns the same
picture as SVG. matplotlib takes a second or two to import, so nothing here imports it before the
first figure.
"""

import hashlib
import io
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workshop.course.drawing import chart, figure_svg, html
from workshop.course.drawing.readable_numbers import number
from workshop.course.drawing.series import Series, colours_of, rows_of, series_of, words_of
from workshop.course.widgets import style
from workshop.errors import BadInput

KINDS = ("line", "barh", "stacked", "points")
WIDTH = 560  # pixels of a figure, with text of 13: 10 where the page leaves 440
TEXT_SIZE = 13  # as in course.mplstyle
TITLE_LETTER = 8.4  # pixels of a letter of the title
# The theme's own stand for them where a notebook shows the figure.
INK, SOFT, HAIR = style.INK, style.SOFT, style.HAIR
# what matplotlib's `context` and `style.use` take
STYLE = str(Path(__file__).with_name("course.mplstyle"))


def figure(data: Any, kind: str = "line", *, xlabel: str = "", ylabel: str = "", title: str = "",
           colours: Mapping[str, str] | None = None, names: Sequence[str] = (), limit: float | None = None,
           width: int = WIDTH, height: int | None = None, description: str = ""):  # fmt: skip
    """Draw a table of numbers: a column is a line or a colour, and the index is x.

    Of bars, the index has the names of the rows.

    The arguments have the names of pandas' `DataFrame.plot`. What they leave open, matplotlib does:
    `axes = figure(…).axes[0]`, then for example `axes.set_yscale("log")`.

    Args:
        data: a DataFrame or a Series; or {label: {x: y}}, or {x: y}. NaN is left out.
        kind: line · barh (bars side by side) · stacked (bars one after the other; a column without
            a name is a gap) · points (a dot for each column in each row; the axis ends at `limit`
            in both directions).
        xlabel, ylabel: what an axis counts, with its unit. Bars have their names in place of
            ylabel.
        title: what there is to see: the finding, not the names of the axes.
        colours: label → colour; otherwise what a label means decides (weights, KV cache), then the
            course's order.
        names: of the points of a single line, each written beside its point.
        width, height: in pixels.
        description: what a screen reader says; by default the title and the numbers.
    Returns:
        A matplotlib Figure, without matplotlib a Picture. A notebook shows either as SVG in the
        theme's colours.
    Raises:
        BadInput: an unknown kind, or nothing to draw.
    """
    if kind not in KINDS:
        raise BadInput(
            f"There is no kind of figure {kind!r}.", f"Choose one of {', '.join(KINDS)}."
        )
    series = series_of(data)
    if not any(xs for _, xs, _ in series):
        raise BadInput(
            "There are no numbers to draw.", "Give a table with at least one row and one column."
        )
    description = description or words_of(series, title, xlabel, ylabel)
    height = height or _height(series, kind, width)
    try:
        from matplotlib.figure import Figure
        from matplotlib.style import context
    except ImportError:
        axes = figure_svg.SvgAxes(width, height)
        draw(axes, data, kind, colours, names=names, limit=limit)
        return axes.picture(title, xlabel, ylabel, description)
    with context(STYLE):
        # not pyplot's, which shows it again
        fig = Figure(figsize=(width / 72, height / 72), layout="constrained")
        # for screen readers
        fig.words = description  # pyright: ignore[reportAttributeAccessIssue]
        axes = fig.subplots()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(textwrap.fill(title, _letters_of_title(series, kind, width)))
        draw(axes, data, kind, colours, names=names, limit=limit)
    show_figures()
    return fig


def _letters_of_title(series: list[Series], kind: str, width: int) -> int:
    """Return how many letters of a title fit beside the axis on the left."""
    left = 64.0
    if kind != "line":
        left = 16 + figure_svg.LETTER * max(map(len, rows_of(series)))
    return max(20, int((width - left) / TITLE_LETTER))


def _height(series: list[Series], kind: str, width: int) -> int:
    """Return the height of a figure in pixels: of bars and points by the number of rows."""
    if kind == "line":
        return 280
    row = {"barh": 10 + 22 * len(series), "stacked": 34, "points": 26}[kind]
    height = 92 + len(rows_of(series)) * row
    labels = [label for label, _, _ in series if label]
    if len(labels) > 1:
        height += 22 * math.ceil(len(labels) / _columns(labels, width, TEXT_SIZE))
    return height


def draw(
    axes,
    data: Any,
    kind: str,
    colours: Mapping[str, str] | None = None,
    *,
    names: Sequence[str] = (),
    limit: float | None = None,
    legend: bool = True,
) -> None:
    """Draw data into axes, matplotlib's or figure_svg's; the other arguments are figure's."""
    series = series_of(data)
    colours = colours_of(series, colours)
    if kind == "line":
        _lines(axes, series, colours, names)
    else:
        rows = rows_of(series)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        in_rows = []
        for label, xs, ys in series:
            in_rows.append((label, [rows.index(str(x)) for x in xs], ys))
        if kind == "points":
            _points(axes, in_rows, colours, limit)
        elif kind == "stacked":
            _stacked_bars(axes, in_rows, colours)
        else:
            _bars(axes, in_rows, colours)
    if not isinstance(axes, figure_svg.SvgAxes):
        _finish(axes, series, kind, legend)


def _finish(axes, series: list[Series], kind: str, legend: bool) -> None:
    """Give matplotlib's axes numbers, a grid and a legend; figure_svg's have their own."""
    if kind != "line" or not isinstance(series[0][1][0], str):
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
    if kind == "line":
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        return
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(axis="y", visible=kind == "points")
    if kind == "points":
        axes.axvline(0, color=SOFT, linewidth=1)
    labels = [label for label, _, _ in series if label]
    if legend and len(labels) > 1:
        width = axes.figure.get_figwidth() * 72
        columns = _columns(labels, width, axes.xaxis.label.get_size())
        axes.figure.legend(loc="outside lower left", ncols=columns)


def _columns(labels: Sequence[str], width: float, text_size: float) -> int:
    """Return how many labels of a legend stand side by side in so many pixels."""
    return max(1, int(width // (text_size * (0.6 * max(map(len, labels)) + 4))))


def _lines(axes, series: list[Series], colours: Mapping[str, str], names: Sequence[str]) -> None:
    """Draw lines, with a label at the end of each or the names of the points of the only one."""
    lowest = 0.0
    for label, xs, ys in series:
        marker = ""
        if len(xs) <= 20:
            marker = "o"
        axes.plot(xs, ys, color=colours[label], marker=marker, clip_on=False)
        lowest = min(lowest, *ys)
    axes.set_ylim(lowest)
    if not names:
        apart = _label_height(axes) * axes.get_ylim()[1]
        heights = keep_apart([ys[-1] for _, _, ys in series], apart)
        for (label, xs, _), y in zip(series, heights, strict=True):
            _write(axes, label, (xs[-1], y), 10, annotation_clip=False)
    _, xs, ys = series[0]
    for n, name in enumerate(names):
        # Where the line falls to the next point, there is room above.
        side = "top"
        if n + 1 < len(ys) and ys[n + 1] < ys[n]:
            side = "bottom"
        _write(axes, name, (xs[n], ys[n]), 10, va=side, annotation_clip=False)


def _label_height(axes) -> float:
    """Return the share of the height of axes that the label of a line needs."""
    if isinstance(axes, figure_svg.SvgAxes):
        return axes.label_height
    rows = axes.get_subplotspec().get_gridspec().nrows
    height = axes.figure.get_figheight() * 72 / rows
    return 2.4 * axes.xaxis.label.get_size() / height


def keep_apart(values: Sequence[float], apart: float) -> list[float]:
    """Return the values, the larger ones raised until all are at least `apart` from each other.

    The names at the ends of lines need it.
    """
    out, below = [0.0] * len(values), float("-inf")
    for n in sorted(range(len(values)), key=values.__getitem__):
        out[n] = below = max(values[n], below + apart)
    return out


def _write(axes, text: str, place: tuple[Any, float], away: float, **more: Any) -> None:
    """Write a text so many pixels to the right of a place; a negative number is to the left."""
    look = {"ha": "left", "va": "center", "weight": "bold", **more}
    if away < 0:
        look["ha"] = "right"
    axes.annotate(text, place, (away, 0), textcoords="offset points", **look)


def _bars(axes, series: list[Series], colours: Mapping[str, str]) -> None:
    """Draw the bars of a row one below the other, each with its number at its end."""
    thick = 0.76 / len(series)
    for n, (label, rows, ys) in enumerate(series):
        offset = (n - (len(series) - 1) / 2) * thick
        places = [row + offset for row in rows]
        left = [0.0] * len(ys)
        axes.barh(places, ys, 0.94 * thick, left=left, color=colours[label], label=label)
        for place, y in zip(places, ys, strict=True):
            away = 5
            if y < 0:
                away = -5
            _write(axes, number(y), (y, place), away)


def _stacked_bars(axes, series: list[Series], colours: Mapping[str, str]) -> None:
    """Draw bars one after the other, with the sum of each row at its end."""
    ends: dict[int, float] = defaultdict(float)
    for label, rows, ys in series:
        left = [ends[row] for row in rows]
        axes.barh(rows, ys, 0.94 * 0.7, left=left, color=colours[label], label=label)
        for row, y in zip(rows, ys, strict=True):
            ends[row] += y
    for row, end in ends.items():
        _write(axes, number(end), (end, row), 6)


def _points(axes, series: list[Series], colours: Mapping[str, str], limit: float | None) -> None:
    """Draw a dot for each number: those of the first series larger, and over the others."""
    far = limit or max(abs(y) for _, _, ys in series for y in ys)
    axes.set_xlim(-far, far)
    look: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 9, "clip_on": False}
    for n, (label, rows, ys) in enumerate(series):
        inside = [max(-far, min(far, y)) for y in ys]
        axes.plot(inside, rows, color=colours[label], label=label, zorder=9 - n, **look)
        look["markersize"] = 7
        for y, x, row in zip(ys, inside, rows, strict=True):
            # The number of a point beyond the axis stands inside, where there is room.
            if y > x:
                _write(axes, f"{y:+.0f}", (x, row), -9, weight="normal")
            elif y < x:
                _write(axes, f"{y:+.0f}", (x, row), 9, weight="normal")


def svg(fig, *, alone: bool = False) -> str:
    """Return a matplotlib figure as SVG, without a background.

    Text stays text, in the page's typeface.

    With `alone` it is for a file: on white, with a typeface.
    """
    from matplotlib.style import context

    file = io.StringIO()
    without = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with context(STYLE):
        fig.savefig(file, format="svg", transparent=not alone, metadata=without)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # it styles the whole page
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    generated = r' id="(?:\w+_\d+|matplotlib\.axis_\d)"| version="1.1"|font-family: [^;]+; '
    text = re.sub(generated, "", text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r' (?:d|x|y|width|height)="[^"]*"', _rounded, text)
    if alone:
        text = text.replace("<svg ", '<svg font-family="sans-serif" ', 1)
    text = re.sub(r">\s+<", "><", text)
    text = re.sub(r"\s*\n\s*", " ", text).strip()
    return _with_stable_identifiers(text)


def _with_stable_identifiers(text: str) -> str:
    """Return an SVG whose identifiers depend on what it shows, rounded.

    matplotlib's identifiers are digests of unrounded numbers, whose last bit differs between
    processors. Two different figures of one page still get different identifiers.
    """
    identifiers = dict.fromkeys(re.findall(r' id="([mp][0-9a-f]{10})"', text))
    shown = text
    for identifier in identifiers:
        shown = shown.replace(identifier, "")
    digest = hashlib.sha256(shown.encode()).hexdigest()[:10]
    for place, identifier in enumerate(identifiers):
        text = text.replace(identifier, f"p{digest}-{place}")
    return text


def _rounded(attribute: re.Match) -> str:
    """Return an attribute in hundredths of a pixel.

    The numbers that are written as text keep all their digits.
    """
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])


def to_html(fig) -> str:
    """Return a matplotlib figure as a notebook shows it, in the theme's colours.

    A description is there for screen readers.
    """
    drawn = svg(fig)
    drawn = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", drawn, count=1)
    for own, of_theme in ((INK, style.TEXT), (SOFT, style.MUTED), (HAIR, style.LINE)):
        drawn = drawn.replace(own, of_theme)
    width = round(fig.get_figwidth() * 72)
    look = f"min-width:{min(width, chart.LEAST_WIDTH)}px;max-width:{width}px"
    drawn = f'<svg style="{look}" aria-hidden="true" {drawn.removeprefix("<svg ")}'
    description = getattr(fig, "words", "") or _titles(fig) or "A figure"
    return html.alone(chart.scrolled(html.Html(drawn), description))


def _titles(fig) -> str:
    """Return the titles of a matplotlib figure and the names of its axes, for a screen reader."""
    titles = []
    for axes in fig.axes:
        title = axes.get_title("left") or axes.get_title()
        titles += [title, axes.get_ylabel(), axes.get_xlabel()]
    return ". ".join(filter(None, titles))


def show_figures() -> None:
    """In a notebook, show every matplotlib figure by to_html, not as a PNG on a white ground."""
    from IPython import get_ipython
    from matplotlib.figure import Figure
    from matplotlib_inline.config import InlineBackend

    shell = get_ipython()
    if shell:
        InlineBackend.instance(parent=shell).figure_formats = set()
        shell.display_formatter.formatters["text/html"].for_type(Figure, to_html)


def course_style() -> None:
    """Give every later plot the course's style, also those of pandas and of pyplot."""
    import matplotlib.style
    from cycler import cycler

    matplotlib.style.use([STYLE, {"axes.prop_cycle": cycler(color=style.CYCLE)}])
    show_figures()

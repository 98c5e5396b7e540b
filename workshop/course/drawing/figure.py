"""One way to draw numbers: `figure(data, kind, …)` draws a pandas table with matplotlib.

The figure has the course's style.

Where matplotlib cannot be imported (a browser, a small machine) the same call returns the same
picture as SVG. matplotlib takes a second or two to import, so nothing here imports it before the
first figure.
"""

import hashlib
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workshop.course.drawing import chart, figure_svg, html
from workshop.course.drawing.figure_svg import spread
from workshop.course.drawing.readable_numbers import number
from workshop.course.drawing.series import Series, colours_of, rows_of, series_of, words_of
from workshop.course.widgets import style
from workshop.errors import BadInput

KINDS = ("line", "barh", "stacked", "points")
WIDTH = 560  # pixels of a figure, with text of 13: 10 where the page leaves 440
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
    height = height or _height(series, kind)
    try:
        from matplotlib.figure import Figure
        from matplotlib.style import context
    except ImportError:
        return figure_svg.picture(
            series,
            kind,
            colours_of(series, colours),
            xlabel,
            ylabel,
            title,
            names=names,
            limit=limit,
            width=width,
            height=height,
            description=description,
        )
    with context(STYLE):
        # not pyplot's, which shows it again
        fig = Figure(figsize=(width / 72, height / 72), layout="constrained")
        # for screen readers
        fig.words = description  # pyright: ignore[reportAttributeAccessIssue]
        axes = fig.subplots()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(textwrap.fill(title, _letters_of_title(series, kind, width)))
        draw(axes, series, kind, colours, names=names, limit=limit)
    show_figures()
    return fig


def _letters_of_title(series: list[Series], kind: str, width: int) -> int:
    """Return how many letters of a title fit beside the axis on the left."""
    left = 64.0
    if kind != "line":
        left = 16 + figure_svg.LETTER * max(map(len, rows_of(series)))
    return max(20, int((width - left) / TITLE_LETTER))


def _height(series: list[Series], kind: str) -> int:
    """Return the height of a figure in pixels: of bars and points by the number of rows."""
    if kind == "line":
        return 280
    row = {"barh": 10 + 22 * len(series), "stacked": 34, "points": 26}[kind]
    height = 92 + len(rows_of(series)) * row
    if len(series) > 1:
        height += 22 * (1 + len(series) // 4)  # the legend
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
    """Draw data into matplotlib's axes; the arguments are figure's."""
    series = data
    if not isinstance(data, list):
        series = series_of(data)
    colours = colours_of(series, colours)
    if kind == "line":
        _lines(axes, series, colours, names)
        return
    rows = rows_of(series)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", labelcolor=INK)
    axes.grid(axis="y", visible=kind == "points")
    if kind == "points":
        _points(axes, series, rows, colours, limit)
    else:
        _bars(axes, series, rows, colours, stacked=kind == "stacked")
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    labels = [label for label, _, _ in series if label]
    if legend and len(labels) > 1:
        label_width = axes.xaxis.label.get_size() * (0.6 * max(map(len, labels)) + 4)
        columns = max(1, int(axes.figure.get_figwidth() * 72 // label_width))
        axes.figure.legend(loc="outside lower left", ncols=columns)


def _lines(axes, series: list[Series], colours: Mapping[str, str], names: Sequence[str]) -> None:
    lowest = 0.0
    last_values = []
    for label, xs, ys in series:
        marker = ""
        if len(xs) <= 20:
            marker = "o"
        axes.plot(xs, ys, color=colours[label], marker=marker, clip_on=False)
        lowest = min(lowest, *ys)
        last_values.append(ys[-1])
    axes.set_ylim(bottom=lowest)
    axes.yaxis.set_major_formatter(lambda value, _: number(value))
    _, xs, ys = series[0]
    if not isinstance(xs[0], str):
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
    beside = {
        "xytext": (10, 0),
        "textcoords": "offset points",
        "annotation_clip": False,
        "weight": "bold",
    }
    if not names:
        rows = axes.get_subplotspec().get_gridspec().nrows
        height = axes.figure.get_figheight() * 72 / rows
        apart = 2.4 * axes.xaxis.label.get_size() / height * axes.get_ylim()[1]
        for (label, xs, _), y in zip(series, spread(last_values, apart), strict=True):
            axes.annotate(label, (xs[-1], y), va="center", **beside)
    for n, name in enumerate(names):
        # Where the line falls to the next point, there is room above.
        side = "top"
        if n + 1 < len(ys) and ys[n + 1] < ys[n]:
            side = "bottom"
        axes.annotate(name, (xs[n], ys[n]), va=side, **beside)


def _bars(
    axes, series: list[Series], rows: list[str], colours: Mapping[str, str], *, stacked: bool
) -> None:
    if stacked:
        _stacked_bars(axes, series, rows, colours)
        return
    thick = 0.76 / len(series)
    for n, (label, xs, ys) in enumerate(series):
        offset = (n - (len(series) - 1) / 2) * thick
        places = [place + offset for place in _places(xs, rows)]
        drawn = axes.barh(places, ys, 0.94 * thick, left=0, color=colours[label], label=label)
        numbers = list(map(number, ys))
        axes.bar_label(drawn, numbers, padding=5, color=INK, weight="bold")


def _places(xs: list, rows: list[str]) -> list[int]:
    """Return the number of the row of each x."""
    return [rows.index(str(x)) for x in xs]


def _stacked_bars(axes, series: list[Series], rows: list[str], colours: Mapping[str, str]) -> None:
    """Draw bars one after the other, with the sum of each row at its end."""
    ends = [0.0] * len(rows)
    for label, xs, ys in series:
        places = _places(xs, rows)
        left = [ends[place] for place in places]
        axes.barh(places, ys, 0.94 * 0.7, left=left, color=colours[label], label=label)
        for place, y in zip(places, ys, strict=True):
            ends[place] += y
    look = {"textcoords": "offset points", "va": "center", "weight": "bold"}
    for place, end in enumerate(ends):
        axes.annotate(number(end), (end, place), (6, 0), **look)


def _points(
    axes, series: list[Series], rows: list[str], colours: Mapping[str, str], limit: float | None
) -> None:
    far = limit or _farthest(series)
    axes.set_xlim(-far, far)
    axes.axvline(0, color=SOFT, linewidth=1)
    look: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
    for n, (label, xs, ys) in enumerate(series):
        places = _places(xs, rows)
        inside = [max(-far, min(far, y)) for y in ys]
        size = 7
        if n == 0:
            size = 9
        axes.plot(
            inside,
            places,
            "o",
            label=label,
            clip_on=False,
            color=colours[label],
            zorder=9 - n,
            ms=size,
        )
        for y, x, place in zip(ys, inside, places, strict=True):
            # The number of a point beyond the axis stands inside, where there is room.
            if y > x:
                axes.annotate(f"{y:+.0f}", (x, place), xytext=(-9, 0), ha="right", **look)
            elif y < x:
                axes.annotate(f"{y:+.0f}", (x, place), xytext=(9, 0), ha="left", **look)


def _farthest(series: list[Series]) -> float:
    """Return the largest distance of a value from 0."""
    farthest = 0.0
    for _, _, ys in series:
        farthest = max(farthest, *map(abs, ys))
    return farthest


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

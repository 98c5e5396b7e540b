"""One way to draw numbers: `figure(data, kind, …)` makes a matplotlib figure in the course's style from a pandas table.

Where matplotlib cannot be imported (a browser, a small machine) the same call returns the same picture as SVG.
matplotlib takes a second or two to import, so nothing here imports it before the first figure.
"""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workshop.course import chart, figure_svg, html
from workshop.course.figure_svg import Series, colours_of, rows_of, series_of, spread, words_of
from workshop.course.numbers import number
from workshop.course.widgets import style
from workshop.errors import BadInput

KINDS = ("line", "barh", "stacked", "points")
# The theme's own stand for them where a notebook shows the figure.
INK, SOFT, HAIR = style.INK, style.SOFT, style.HAIR
# what matplotlib's `context` and `style.use` take
STYLE = str(Path(__file__).with_name("course.mplstyle"))


def figure(data: Any, kind: str = "line", *, xlabel: str = "", ylabel: str = "", title: str = "",
           colours: Mapping[str, str] | None = None, names: Sequence[str] = (), limit: float | None = None,
           width: int = 720, height: int | None = None, words: str = ""):  # fmt: skip
    """Draw a table of numbers: a column is a line or a colour, the index is x (or, of bars, the name of a row).

    The arguments have the names of pandas' `DataFrame.plot`. What they leave open, matplotlib does:
    `axes = figure(…).axes[0]`, then for example `axes.set_yscale("log")`.

    Args:
        data: a DataFrame or a Series; or {label: {x: y}}, or {x: y}. NaN is left out.
        kind: line · barh (bars side by side) · stacked (bars one after the other; a column without a name is a gap) ·
            points (a dot for each column in each row; the axis ends at `limit` in both directions).
        xlabel, ylabel: what an axis counts, with its unit. Bars have their names in place of ylabel.
        title: what there is to see: the finding, not the names of the axes.
        colours: label → colour; otherwise what a label means decides (weights, KV cache), then the course's order.
        names: of the points of a single line, each written beside its point.
        width, height: in pixels.
        words: what a screen reader says; by default the title and the numbers.
    Returns:
        A matplotlib Figure, without matplotlib a Picture. A notebook shows either as SVG in the theme's colours.
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
    words = words or words_of(series, title, xlabel, ylabel)
    if not height and kind != "line":
        each = {"barh": 10 + 22 * len(series), "stacked": 34, "points": 26}[kind]
        height = (
            92
            + len(rows_of(series)) * each
            + (22 * (1 + len(series) // 4) if len(series) > 1 else 0)
        )
    height = height or 280
    try:
        from matplotlib.figure import Figure
        from matplotlib.style import context
    except ImportError:
        return figure_svg.picture(series, kind, colours_of(series, colours), xlabel, ylabel, title, names=names,
                                  limit=limit, width=width, height=height, words=words)  # fmt: skip
    with context(STYLE):
        # not pyplot's, which shows it again
        made = Figure(figsize=(width / 72, height / 72), layout="constrained")
        made.words = words  # pyright: ignore[reportAttributeAccessIssue]  for screen readers
        axes = made.subplots()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title)
        draw(axes, series, kind, colours, names=names, limit=limit)
    show_figures()
    return made


def draw(axes, data: Any, kind: str, colours: Mapping[str, str] | None = None, *, names: Sequence[str] = (),
         limit: float | None = None, legend: bool = True) -> None:  # fmt: skip
    """Draw data into matplotlib's axes; the arguments are figure's."""
    series = data if isinstance(data, list) else series_of(data)
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
        wide = axes.xaxis.label.get_size() * (0.6 * max(map(len, labels)) + 4)
        axes.figure.legend(
            loc="outside lower left", ncols=max(1, int(axes.figure.get_figwidth() * 72 // wide))
        )


def _lines(axes, series: list[Series], colours: Mapping[str, str], names: Sequence[str]) -> None:
    for label, xs, ys in series:
        axes.plot(xs, ys, color=colours[label], marker="o" if len(xs) <= 20 else "", clip_on=False)
    axes.set_ylim(bottom=min(0, *(min(ys) for _, _, ys in series)))
    for axis in (axes.yaxis, *([] if isinstance(series[0][1][0], str) else [axes.xaxis])):
        axis.set_major_formatter(lambda value, _: number(value))
    beside = {
        "xytext": (10, 0),
        "textcoords": "offset points",
        "annotation_clip": False,
        "weight": "bold",
    }
    apart = (
        2.4 * axes.xaxis.label.get_size() / (axes.figure.get_figheight() * 72) * axes.get_ylim()[1]
    )
    for (label, xs, _), y in zip(
        series, spread([ys[-1] for _, _, ys in series], apart), strict=True
    ):
        if not names:
            axes.annotate(label, (xs[-1], y), va="center", **beside)
    _, xs, ys = series[0]
    for n, name in enumerate(names):
        # then the line to the next point leaves room above
        falls = n + 1 < len(ys) and ys[n + 1] < ys[n]
        axes.annotate(name, (xs[n], ys[n]), va="bottom" if falls else "top", **beside)


def _bars(
    axes, series: list[Series], rows: list[str], colours: Mapping[str, str], *, stacked: bool
) -> None:
    thick, ends = 0.7 if stacked else 0.76 / len(series), [0.0] * len(rows)
    for n, (label, xs, ys) in enumerate(series):
        places = [rows.index(str(x)) for x in xs]
        at = (
            places if stacked else [place + (n - (len(series) - 1) / 2) * thick for place in places]
        )
        left = [ends[place] for place in places] if stacked else 0
        drawn = axes.barh(at, ys, 0.94 * thick, left=left, color=colours[label], label=label)
        for place, y in zip(places, ys, strict=True):
            ends[place] += y
        if not stacked:
            axes.bar_label(drawn, [number(y) for y in ys], padding=5, color=INK, weight="bold")
    for place, end in enumerate(ends if stacked else ()):
        axes.annotate(
            number(end),
            (end, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            weight="bold",
        )


def _points(
    axes, series: list[Series], rows: list[str], colours: Mapping[str, str], limit: float | None
) -> None:
    far = limit or max(abs(y) for _, _, ys in series for y in ys)
    axes.set_xlim(-far, far)
    axes.axvline(0, color=SOFT, linewidth=1)
    for n, (label, xs, ys) in enumerate(series):
        places, shown = [rows.index(str(x)) for x in xs], [max(-far, min(far, y)) for y in ys]
        look = {"color": colours[label], "zorder": 9 - n, "ms": 7 + 2 * (not n)}
        axes.plot(shown, places, "o", label=label, clip_on=False, **look)
        for y, at, place in zip(ys, shown, places, strict=True):
            if y != at:  # beyond the axis: its number stands inside, where there is room
                inside = (
                    {"xytext": (-9, 0), "ha": "right"}
                    if y > 0
                    else {"xytext": (9, 0), "ha": "left"}
                )
                axes.annotate(
                    f"{y:+.0f}",
                    (at, place),
                    textcoords="offset points",
                    va="center",
                    size=10,
                    **inside,
                )


def svg(made, *, alone: bool = False) -> str:
    """Return a matplotlib figure as SVG: text as text in the page's typeface, no ground, nothing but the drawing.

    With `alone` it is for a file: on white, with a typeface.
    """
    from matplotlib.style import context

    file, without = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with context(STYLE):
        made.savefig(file, format="svg", transparent=not alone, metadata=without)
    text = file.getvalue()[file.getvalue().index("<svg") :]
    # it styles the whole page
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(
        r' id="(?:\w+_\d+|matplotlib\.axis_\d)"| version="1.1"|font-family: [^;]+; ', "", text
    )
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    # Places need no more than hundredths of a pixel; the numbers that are written keep all their digits.
    text = re.sub(
        r' (?:d|x|y|width|height)="[^"]*"',
        lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]),
        text,
    )
    text = text.replace("<svg ", '<svg font-family="sans-serif" ', 1) if alone else text
    return re.sub(r"\s*\n\s*", " ", re.sub(r">\s+<", "><", text)).strip()


def to_html(made) -> str:
    """Return any matplotlib figure as a notebook shows it: in the theme's colours, with words for screen readers."""
    titles = [each for axes in made.axes for each in (axes.get_title("left") or axes.get_title(), axes.get_ylabel(),
                                                      axes.get_xlabel()) if each]  # fmt: skip
    drawn = re.sub(r' width="[\d.]+pt" height="[\d.]+pt"', "", svg(made), count=1).removeprefix(
        "<svg "
    )
    for ours, theirs in ((INK, style.TEXT), (SOFT, style.MUTED), (HAIR, style.LINE)):
        drawn = drawn.replace(ours, theirs)
    wide = round(made.get_figwidth() * 72)
    drawn = f'<svg style="min-width:{min(wide, chart.LEAST_WIDTH)}px;max-width:{wide}px" aria-hidden="true" {drawn}'
    return html.alone(
        chart.scrolled(
            html.Html(drawn), getattr(made, "words", "") or ". ".join(titles) or "A figure"
        )
    )


def show_figures() -> None:
    """In a notebook, show every matplotlib figure by to_html, in place of a PNG on a white ground."""
    from IPython import get_ipython
    from matplotlib.figure import Figure
    from matplotlib_inline.config import InlineBackend

    if shell := get_ipython():
        InlineBackend.instance(parent=shell).figure_formats = set()
        shell.display_formatter.formatters["text/html"].for_type(Figure, to_html)


def course_style() -> None:
    """Give every plot from here on the course's style, those of pandas' `frame.plot` and of pyplot as well."""
    import matplotlib.style
    from cycler import cycler

    matplotlib.style.use([STYLE, {"axes.prop_cycle": cycler(color=style.CYCLE)}])
    show_figures()

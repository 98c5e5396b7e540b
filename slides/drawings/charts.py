"""Charts of numbers on slides: drawn by `workshop.course.drawing.figure`, as in the notebooks, in the size of a slide."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib.figure import Figure
from matplotlib.style import context

from drawings.canvas import SANS, WIDTH
from workshop.course.drawing.figure import STYLE, svg

SLIDE = [
    STYLE,
    {
        "font.size": 20,
        "axes.titlesize": 24,
        "axes.labelpad": 9,
        "lines.linewidth": 5,
        "lines.markersize": 14,
    },
]


class Chart:
    """A matplotlib figure of a slide's width. `words` is what a screen reader says instead of it."""

    def __init__(self, height: float, description: str, panels: int):
        self.height, self.words = height, description
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        self.panels = list(self.figure.subplots(1, panels, squeeze=False)[0])
        self.axes = self.panels[0]

    def svg(self) -> str:
        """Return the file, with the same head as a Canvas has."""
        description = html.escape(self.words, quote=True)
        body = re.sub(r"^<svg [^>]*>", "", svg(self.figure)).removesuffix("</svg>")
        return (f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
                f'viewBox="0 0 {WIDTH} {self.height:g}" width="{WIDTH}" height="{self.height:g}" role="img" '
                f'aria-label="{description}" font-family="{SANS}"><title>{description}</title>{body}</svg>\n')  # fmt: skip


@contextmanager
def chart(height: float, description: str = "", *, panels: int = 1) -> Iterator[Chart]:
    """Give an empty chart; what is drawn inside of `with` has the slides' style."""
    with context(SLIDE):
        yield Chart(height, description, panels)

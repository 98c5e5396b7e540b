"""A canvas of slide pixels: boxes, words, arrows, and words for those who do not see them.

One unit is one pixel of a 1280 × 720 slide, so that a font size here is the size on the wall.
"""

from __future__ import annotations

import html

from workshop.course.widgets import style

WIDTH = 1136  # a slide's width between its margins
INK, SOFT = style.INK, style.SOFT
HAIR = "#c9d1d9"  # darker than style.HAIR: a projector makes thin lines paler
PALE = "#eef1f4"
BLUE, ORANGE, GREEN, VERMILLION = style.BLUE, style.ORANGE, style.GREEN, style.VERMILLION
SKY, PURPLE, YELLOW, GREY = style.SKY, style.PURPLE, style.YELLOW, style.GREY
WEIGHTS, KV_CACHE, OVERHEAD = style.WEIGHTS, style.KV_CACHE, style.OVERHEAD
KV_CACHE_PALE, KV_CACHE_LIGHT = (
    "#FDF1D7",
    "#F3CF80",
)  # KV_CACHE towards white: a ground, a second kind
FREE = "#e3e7eb"  # the widgets' FREE, on a light page
GPUS = (BLUE, ORANGE, GREEN, PURPLE)
SMALL, NORMAL, LARGE = 20, 22, 28  # 15, 16.5 and 21 points: a text of 14 is read from the last row
SANS = "Inter Variable, Inter, DejaVu Sans, sans-serif"
MONO = "JetBrains Mono Variable, JetBrains Mono, DejaVu Sans Mono, monospace"


def ink_on(fill: str) -> str:
    """Return the colour of text that reads well on a fill (WCAG relative luminance)."""
    parts = [int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#ffffff" if 1.05 / (luminance + 0.05) > 3.3 else INK


class Canvas:
    """An SVG picture. `words` is what a screen reader says instead of it."""

    def __init__(self, height: float, description: str = "", width: float = WIDTH):
        self.width, self.height, self.words = width, height, description
        self.parts: list[str] = []

    def raw(self, text: str) -> Canvas:
        self.parts.append(text)
        return self

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = NORMAL,
        *,
        fill: str = INK,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
        italic: bool = False,
    ) -> Canvas:
        more = (' font-weight="650"' if bold else "") + (f' font-family="{MONO}"' if mono else "")
        more += ' font-style="italic"' if italic else ""
        space = ' xml:space="preserve"' if mono else ""
        return self.raw(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"'
            f"{more}{space}>{html.escape(text)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        fill: str = "none",
        *,
        stroke: str = "none",
        radius: float = 5,
        dash: str = "",
        line: float = 2,
        opacity: float = 1,
    ) -> Canvas:
        more = (f' stroke-dasharray="{dash}"' if dash else "") + (
            f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        )
        return self.raw(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius:g}" '
            f'fill="{fill}" stroke="{stroke}" stroke-width="{line:g}"{more}/>'
        )

    def label(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        text: str,
        fill: str = PALE,
        *,
        size: float = NORMAL,
        stroke: str = "none",
        bold: bool = False,
        mono: bool = False,
        ink: str = "",
        dash: str = "",
        radius: float = 6,
    ) -> Canvas:
        """A box with words in its middle; a newline begins another line."""
        self.box(x, y, w, h, fill, stroke=stroke, dash=dash, radius=radius)
        ink = ink or (ink_on(fill) if fill.startswith("#") else INK)
        lines = text.split("\n")
        top = y + h / 2 + size * 0.36 - (len(lines) - 1) * size * 0.62
        for n, line in enumerate(lines):
            self.text(
                x + w / 2,
                top + n * size * 1.24,
                line,
                size,
                fill=ink,
                anchor="middle",
                bold=bold,
                mono=mono,
            )
        return self

    def line(
        self,
        points: list[tuple[float, float]],
        stroke: str = SOFT,
        width: float = 2.5,
        *,
        dash: str = "",
        head: bool = False,
    ) -> Canvas:
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        self.raw(
            f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{width:g}" stroke-linejoin="round"{more}/>'
        )
        return self._head(points[-2], points[-1], stroke) if head else self

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        stroke: str = SOFT,
        width: float = 2.5,
        *,
        dash: str = "",
    ) -> Canvas:
        return self.line([(x1, y1), (x2, y2)], stroke, width, dash=dash, head=True)

    def _head(self, start: tuple[float, float], end: tuple[float, float], fill: str) -> Canvas:
        (x1, y1), (x2, y2) = start, end
        length = max(1e-6, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        corners = [(x2 + 1.5 * ux, y2 + 1.5 * uy)]
        corners += [
            (x2 - 12 * ux + side * 6.5 * uy, y2 - 12 * uy - side * 6.5 * ux) for side in (1, -1)
        ]
        return self.raw(
            f'<path d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in corners)}z" fill="{fill}"/>'
        )

    def dot(self, x: float, y: float, radius: float, fill: str) -> Canvas:
        return self.raw(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}"/>')

    def legend(self, x: float, y: float, entries: list[tuple[str, str]], gap: float = 34) -> Canvas:
        """Coloured squares with their meaning, in one row; `dashed:` before a colour draws an outline."""
        for colour, meaning in entries:
            dashed = colour.startswith("dashed:")
            colour = colour.removeprefix("dashed:")
            self.box(
                x,
                y - 16,
                18,
                18,
                "none" if dashed else colour,
                stroke=colour if dashed else "none",
                radius=3,
                dash="4 3" if dashed else "",
            )
            self.text(x + 27, y, meaning, SMALL, fill=SOFT)
            x += 27 + len(meaning) * SMALL * 0.53 + gap
        return self

    def svg(self) -> str:
        """Return the file: no identifiers, so that several can stand in one page."""
        description = html.escape(self.words, quote=True)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" '
            f'width="{self.width:g}" height="{self.height:g}" role="img" aria-label="{description}" '
            f'font-family="{SANS}"><title>{description}</title>' + "".join(self.parts) + "</svg>\n"
        )

"""The small pictures of notebooks 01 and 02: SVG in the course's colours, with words for screen readers.

Every function returns a Picture; drawing them as SVG keeps them sharp, quick, and readable in light and dark themes.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from workshop.learn.widgets import style

FRAME = "#8C8C8C"
EMPTY = "var(--jp-layout-color2, #eeeeee)"


class Picture:
    """An SVG in notebooks, its words elsewhere. `width` is in pixels, at most what fits a page."""

    def __init__(self, body: str, width: int, height: int, words: str):
        self.words = words
        font = html.escape(style.FONT, quote=True)
        self.svg = (f'<svg viewBox="0 0 {width} {height}" style="width:100%;min-width:{min(width, 520)}px;'
                    f'max-width:{width}px;display:block" '
                    f'font-family="{font}" font-size="12" fill="{style.TEXT}" aria-hidden="true">{body}</svg>')

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return style.panel(f'<div style="overflow-x:auto">{self.svg}</div>', label=html.escape(self.words, quote=True))


def svg_text(x: float, y: float, text: str, *, anchor: str = "start", size: float = 12, fill: str = style.TEXT,
          bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}"{weight}>'
            f"{html.escape(text)}</text>")


def svg_box(x: float, y: float, w: float, h: float, fill: str, *, stroke: str = "none", radius: float = 2,
         dash: str = "") -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}"{dashed}/>')


def svg_arrow(x1: float, y1: float, x2: float, y2: float, colour: str = FRAME) -> str:
    """A straight arrow, to the right or down."""
    head = f"M{x2} {y2}l-7 -4v8z" if abs(x2 - x1) >= abs(y2 - y1) else f"M{x2} {y2}l-4 -7h8z"
    return f'<path d="M{x1} {y1}L{x2} {y2}" stroke="{colour}" stroke-width="1.6"/><path d="{head}" fill="{colour}"/>'


def kv_caching(words: Sequence[str] = ("San", "Francisco", "is", "a", "city")) -> Picture:
    """Draw which keys and values each step computes, without and with a cache: a row a step, a column a token."""
    n, wide, high, left = len(words), 50, 32, 86
    parts, counts = [], []
    for panel, (title, cached) in enumerate((("without a cache", False), ("with a KV cache", True))):
        x0, y0 = left + panel * (n * wide + 60), 46
        parts.append(svg_text(x0, 16, title, bold=True, size=13))
        parts += [svg_text(x0 + (t + 0.5) * wide, 38, w, anchor="middle", size=10, fill=style.MUTED)
                  for t, w in enumerate(words)]
        done = 0
        for step in range(n):
            if panel == 0:
                parts.append(svg_text(left - 10, y0 + step * high + 20, f"step {step + 1}", anchor="end"))
            for token in range(step + 1):
                fresh = not cached or token == step
                done += fresh
                parts.append(svg_box(x0 + token * wide + 2, y0 + step * high + 2, wide - 4, high - 4,
                                  style.VERMILLION if fresh else "none", stroke=style.KV_CACHE if not fresh else "none",
                                  dash="" if fresh else "3 2"))
        counts.append(done)
        parts.append(svg_text(x0, y0 + n * high + 18, f"{done} pairs of K and V computed"))
    y = 46 + n * high + 34
    parts += [svg_box(left, y, 12, 12, style.VERMILLION), svg_text(left + 18, y + 10, "K and V computed in this step"),
              svg_box(left + 220, y, 12, 12, "none", stroke=style.KV_CACHE, dash="3 2"),
              svg_text(left + 238, y + 10, "read from the cache")]
    return Picture("".join(parts), left + 2 * n * wide + 70, y + 20,
                   f"Generating {n} tokens computes {counts[0]} pairs of keys and values without a cache, "
                   f"{counts[1]} with one: each row is a step, and only its newest token is new.")


def lines(series: Mapping[str, Sequence[float]], x: Sequence[float], x_name: str, y_name: str) -> Picture:
    """Draw a few lines on linear axes, each named at its end."""
    width, height, left, bottom, right = 640, 240, 78, 40, 150
    top = max(max(values) for values in series.values()) or 1
    across, up = (width - left - right) / (max(x) - min(x)), (height - bottom - 16) / top
    parts = [f'<path d="M{left} 12V{height - bottom}H{width - right + 6}" stroke="{FRAME}" fill="none"/>',
             svg_text(left, 10, y_name, size=11, fill=style.MUTED),
             svg_text(width - right, height - 8, x_name, anchor="end", size=11, fill=style.MUTED)]
    for share in (0, 0.5, 1):
        parts.append(svg_text(left - 6, height - bottom - share * top * up + 4, f"{share * top:,.0f}", anchor="end",
                           size=11, fill=style.MUTED))
        value = min(x) + share * (max(x) - min(x))
        parts.append(svg_text(left + (value - min(x)) * across, height - bottom + 16, f"{value:,.0f}", anchor="middle",
                           size=11, fill=style.MUTED))
    for (name, values), colour in zip(series.items(), (style.VERMILLION, style.KV_CACHE, style.BLUE), strict=False):
        points = " ".join(f"{left + (a - min(x)) * across:.1f},{height - bottom - b * up:.1f}"
                          for a, b in zip(x, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(svg_text(width - right + 8, height - bottom - values[-1] * up + 4, name, bold=True))
    ends = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in series.items())
    return Picture("".join(parts), width, height, f"{y_name} against {x_name}; at {x[-1]:,.0f}: {ends}.")


def errors(rows: Mapping[str, Mapping[str, float]], limit: float = 60) -> Picture:
    """Draw the error of each calculator on each run: rows are runs, dots are calculators, percent from -limit to it.

    What lies beyond stands at the edge with its number. The first calculator is drawn last and largest.
    """
    names = list(next(iter(rows.values())))
    colours = dict(zip(names, (style.GREEN, style.BLUE, style.PURPLE, style.VERMILLION), strict=False))
    left, width, each = 230, 720, 22
    height, middle = 46 + each * len(rows), left + (width - left - 50) / 2
    per = (width - left - 50) / 2 / limit
    parts = [svg_box(middle - 3 * per, 30, 6 * per, each * len(rows) + 4, EMPTY),
             f'<path d="M{middle} 28V{height - 10}" stroke="{FRAME}"/>']
    parts += [svg_text(middle + p * per, 24, f"{p:+.0f} %" if p else "0", anchor="middle", size=10, fill=style.MUTED)
              for p in (-limit, -limit / 2, 0, limit / 2, limit)]
    x = left
    for name in names:
        parts += [f'<circle cx="{x}" cy="7" r="4.5" fill="{colours[name]}"/>', svg_text(x + 8, 11, name, size=11)]
        x += 26 + 6.6 * len(name)
    for n, (run, found) in enumerate(rows.items()):
        y = 46 + n * each
        parts += [svg_text(left - 10, y + 4, run, anchor="end", size=11),
                  f'<path d="M{left} {y}H{width - 50}" stroke="{FRAME}" stroke-opacity=".25"/>']
        for name in reversed(names):
            error = found[name]
            at = middle + max(-limit, min(limit, error)) * per
            radius = 5.5 if name == names[0] else 4
            parts.append(f'<circle cx="{at:.1f}" cy="{y}" r="{radius}" fill="{colours[name]}"><title>{name}: '
                         f"{error:+.1f} %</title></circle>")
            if abs(error) > limit:
                side, anchor = (-9, "end") if error > 0 else (9, "start")     # inside, where no name stands
                parts.append(svg_text(at + side, y + 4, f"{error:+.0f} %", size=10, anchor=anchor))
    worst = ", ".join(f"{name} {max(abs(row[name]) for row in rows.values()):.1f} percent" for name in names)
    return Picture("".join(parts), width, height, f"Errors of {len(rows)} runs, the worst of each: {worst}.")

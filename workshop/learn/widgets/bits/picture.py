"""The picture of few bits: weights as dots, what they are rounded to as rings, and the steps between as lines."""

from __future__ import annotations

from workshop.learn.chart import FRAME, Axes, Picture, dot, path, text
from workshop.learn.widgets import style
from workshop.learn.widgets.bits.case import Bits

WIDTH, HEIGHT = 720, 260


def picture(b: Bits) -> Picture:
    """Draw one row of the matrix."""
    most = max(abs(b.weights).max(), abs(b.likeness).max(), 1e-6)
    axes = Axes(58, 14, WIDTH - 16, HEIGHT - 46, len(b.weights), 1.08 * most, 0, -1.08 * most)
    pale = 0.55 if len(b.levels) <= 16 else 0.22
    levels = [axes.y(level) for level in b.levels if abs(level) <= 1.08 * most]
    parts = [path(f"M{axes.left} {y:.1f}H{WIDTH - 12}", FRAME, opacity=pale) for y in levels]
    parts.append(axes.y_ticks((-most, 0, most), lambda value: f"{value:+.2f}" if value else "0"))
    for n, (w, q) in enumerate(zip(b.weights, b.likeness, strict=True)):
        x, y0, y1 = axes.x(n + 0.5), axes.y(w), axes.y(q)
        parts += [path(f"M{x:.1f} {y0:.1f}V{y1:.1f}", style.BAD, 2.5), dot(x, y1, 5, "none", stroke=style.BAD)]
        parts.append(dot(x, y0, 3.4, style.WEIGHTS, title=f"{w:+.4f} → {q:+.4f}"))
    y, sums = HEIGHT - 22, f"error of the matrix {b.error:.1%}   ·   {b.bits_per_weight:.2f} bits a weight"
    parts += [dot(axes.left + 5, y, 3.4, style.WEIGHTS), text(axes.left + 14, y + 4, "a weight", size=11)]
    parts.append(dot(axes.left + 85, y, 5, "none", stroke=style.BAD))
    parts.append(text(axes.left + 95, y + 4, "what its code stands for", size=11))
    parts.append(text(WIDTH - 12, y + 4, sums, anchor="end", size=13, bold=True))
    words = f"{len(b.weights)} weights at {b.bits} bits, one scale for {b.group}: the matrix is off by {b.error:.1%}"
    return Picture("".join(parts), WIDTH, HEIGHT, f"{words}, and takes {b.bits_per_weight:.2f} bits a weight.")

"""A slider for bits: 32 weights of the teaching model, and the steps to which they are rounded."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workshop.course.drawing.chart import FRAME, Axes, Picture, dot, path, text
from workshop.course.widgets import style
from workshop.course.widgets.controls import Explorer, choice, steps, whole
from workshop.teaching_model import quantize, reference

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = {"32 inputs": 32, "64 inputs": 64, "a whole row": -1}
SHOWN = 32  # weights of the row that are drawn
WIDTH, HEIGHT, CONTROL = 720, 260, "250px"


@dataclass(frozen=True)
class BitsShown:
    bits: int
    group: str
    weights: np.ndarray  # SHOWN of one row
    likeness: np.ndarray  # the same, rounded
    levels: np.ndarray  # the numbers that codes can stand for where these weights are
    error: float  # ‖ΔW‖ / ‖W‖ of the whole matrix
    bits_per_weight: float  # with the scales


@lru_cache(maxsize=1)
def matrix(name: str = "model.layers.1.mlp.gate_proj") -> np.ndarray:
    """Return a Linear's weight of the teaching model, float32 [outputs, inputs]."""
    return reference.load().weights[f"{name}.weight"]


@lru_cache(maxsize=64)
def rounded(bits: int, group: str) -> tuple[quantize.Quantized, np.ndarray, float]:
    """Return the matrix rounded to nearest, symmetric; its numbers; and their error."""
    w, q = matrix(), quantize.round_to_nearest(matrix(), bits, GROUPS[group])
    return q, q.dequantize(), float(np.linalg.norm(q.dequantize() - w) / np.linalg.norm(w))


def bits_case(bits: int, group: str, row: int) -> BitsShown:
    """Return what is drawn. Raises KeyError for a group that is not one of GROUPS."""
    w, (q, numbers, error) = matrix(), rounded(bits, group)
    levels = np.arange(-(2 ** (bits - 1)), 2 ** (bits - 1)) * q.scales[row, 0]
    return BitsShown(
        bits,
        group,
        w[row, :SHOWN],
        numbers[row, :SHOWN],
        levels,
        error,
        8 * q.stored_bytes / w.size,
    )


class BitsExplorer(Explorer[BitsShown]):
    """Weights of one matrix of the teaching model, rounded to few bits.

    Choose how many bits, and how many weights share a scale.

    Each weight becomes a whole number (its code) times a scale. Fewer bits make the steps wider; a
    scale for fewer weights fits them better, and costs bits of its own. Errors are ‖ΔW‖ / ‖W‖,
    sizes bits a weight, scales included.

    >>> from workshop.course.notebooks import nb09
    >>> four = nb09.BitsExplorer(bits=4, group="64 inputs").result
    >>> four.bits_per_weight                    # 4, and 16 bits of scale for each 64 weights
    4.25

    Args:
        bits: 2, 3, 4, 5, 6 or 8.
        group: which weights share a scale: "32 inputs", "64 inputs" or "a whole row".
        row: which row of the matrix is drawn.
    """

    def __init__(self, bits: int = 4, group: str = "64 inputs", row: int = 0):
        controls = {
            "bits": steps("bits", BITS, bits, CONTROL),
            "group": choice("one scale for", GROUPS, group, CONTROL),
            "row": whole("row", row, 0, len(matrix()) - 1, width=CONTROL),
        }
        super().__init__(controls, max_width="860px")

    def compute(self) -> BitsShown:
        return bits_case(**self.values)

    def picture_of(self, result: BitsShown) -> str:
        return picture(result).drawn


def picture(b: BitsShown) -> Picture:
    """Draw one row of the matrix: weights as dots, rounded weights as rings, steps as lines."""
    most = max(abs(b.weights).max(), abs(b.likeness).max(), 1e-6)
    axes = Axes(58, 14, WIDTH - 16, HEIGHT - 46, len(b.weights), 1.08 * most, 0, -1.08 * most)
    pale = 0.22
    if len(b.levels) <= 16:
        pale = 0.55
    parts = []
    for level in b.levels:
        if abs(level) <= 1.08 * most:
            step = f"M{axes.left} {axes.y(level):.1f}H{WIDTH - 12}"
            parts.append(path(step, FRAME, opacity=pale))
    parts.append(axes.y_ticks((-most, 0, most), _signed))
    for n, (w, q) in enumerate(zip(b.weights, b.likeness, strict=True)):
        x, y0, y1 = axes.x(n + 0.5), axes.y(w), axes.y(q)
        parts += [
            path(f"M{x:.1f} {y0:.1f}V{y1:.1f}", style.BAD, 2.5),
            dot(x, y1, 5, "none", stroke=style.BAD),
        ]
        parts.append(dot(x, y0, 3.4, style.WEIGHTS, title=f"{w:+.4f} → {q:+.4f}"))
    y = HEIGHT - 22
    sums = f"error of the matrix {b.error:.1%}   ·   {b.bits_per_weight:.2f} bits a weight"
    parts += [
        dot(axes.left + 5, y, 3.4, style.WEIGHTS),
        text(axes.left + 14, y + 4, "a weight", size=11),
    ]
    parts.append(dot(axes.left + 85, y, 5, "none", stroke=style.BAD))
    parts.append(text(axes.left + 95, y + 4, "what its code stands for", size=11))
    parts.append(text(WIDTH - 12, y + 4, sums, anchor="end", size=13, bold=True))
    description = (
        f"{len(b.weights)} weights at {b.bits} bits, one scale for {b.group}: the matrix is off "
        f"by {b.error:.1%}, and takes {b.bits_per_weight:.2f} bits a weight."
    )
    return Picture("".join(parts), WIDTH, HEIGHT, description)


def _signed(value: float) -> str:
    """Return a weight as the axis shows it, with its sign."""
    if value:
        return f"{value:+.2f}"
    return "0"

"""A slider for bits: 32 weights of the teaching model, the steps that codes allow, and where each weight lands."""

from __future__ import annotations

import ipywidgets as widgets

from workshop.learn.widgets.bits.case import BITS, GROUPS, Bits, bits_case, matrix
from workshop.learn.widgets.bits.picture import picture
from workshop.learn.widgets.controls import Explorer, choice, steps, whole


class BitsExplorer(Explorer):
    """Weights of one matrix of the teaching model, rounded to few bits: choose how many, and how many share a scale.

    Each weight becomes a whole number (its code) times a scale. Fewer bits make the steps wider; a scale for fewer
    weights fits them better, and costs bits of its own. Errors are ‖ΔW‖ / ‖W‖, sizes bits a weight, scales included.

    >>> from workshop import elsewhere
    >>> four = elsewhere.BitsExplorer(bits=4, group="64 inputs").result
    >>> four.bits_per_weight                    # 4, and 16 bits of scale for each 64 weights
    4.25

    Args:
        bits: 2, 3, 4, 5, 6 or 8.
        group: which weights share a scale: "32 inputs", "64 inputs" or "a whole row".
        row: which row of the matrix is drawn.
    """

    def __init__(self, bits: int = 4, group: str = "64 inputs", row: int = 0):
        width = widgets.Layout(width="250px")
        controls = {
            "bits": steps("bits", BITS, bits),
            "group": choice("one scale for", GROUPS, group),
            "row": whole("row", row, 0, len(matrix()) - 1),
        }
        for control in controls.values():
            control.layout = width
        super().__init__(controls, max_width="760px")

    def compute(self) -> Bits:
        """Round the matrix."""
        return bits_case(**self.said)

    def picture_of(self, result: Bits) -> str:
        """Draw one row."""
        return picture(result).drawn

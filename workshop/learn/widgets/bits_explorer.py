"""A slider for bits: 32 weights of the teaching model, the steps that codes allow, and where each weight lands.

    BitsExplorer()
"""

from __future__ import annotations

import ipywidgets as widgets

from workshop.learn.plots import FRAME, Picture, svg_text
from workshop.learn.widgets import style
from workshop.learn.widgets.bits_case import BITS, GROUPS, Bits, bits_case, matrix

WIDTH, HEIGHT, LEFT, TOP = 720, 260, 58, 14


class BitsExplorer(widgets.VBox):
    """View only: the arithmetic is bits_case.bits_case, the picture picture()."""

    def __init__(self, bits: int = 4, group: str = "64 inputs", row: int = 0):
        self.result: Bits | None = None
        self.picture = widgets.HTML()
        common = {"style": {"description_width": "initial"}, "layout": widgets.Layout(width="250px")}
        self.controls = {
            "bits": widgets.SelectionSlider(options=BITS, value=bits, description="bits", **common),
            "group": widgets.Dropdown(options=list(GROUPS), value=group, description="one scale for", **common),
            "row": widgets.IntSlider(row, min=0, max=len(matrix()) - 1, description="row", continuous_update=True,
                                     **common)}
        for control in self.controls.values():
            control.observe(self._changed, "value")
        row_of = widgets.HBox(list(self.controls.values()),
                              layout=widgets.Layout(flex_flow="row wrap", grid_gap="2px 22px"))
        super().__init__([row_of, self.picture], layout=widgets.Layout(max_width="760px"))
        self.draw()

    def _changed(self, change: object = None) -> None:
        self.draw()

    def draw(self) -> None:
        """Compute and draw."""
        self.result = bits_case(**{name: control.value for name, control in self.controls.items()})
        self.picture.value = picture(self.result)._repr_html_()


def picture(b: Bits) -> Picture:
    """Draw weights as dots, what they are rounded to as rings, and the steps between as lines."""
    top = 1.08 * max(abs(b.weights).max(), abs(b.likeness).max(), 1e-6)
    middle, up = TOP + (HEIGHT - TOP - 46) / 2, (HEIGHT - TOP - 46) / 2 / top
    across = (WIDTH - LEFT - 16) / len(b.weights)
    parts = [f'<path d="M{LEFT} {middle - level * up:.1f}H{WIDTH - 12}" stroke="{FRAME}" '
             f'stroke-opacity="{0.55 if len(b.levels) <= 16 else 0.22}" stroke-width="1"/>'
             for level in b.levels if abs(level) <= top]
    parts += [svg_text(LEFT - 8, middle - value * up + 4, f"{value:+.2f}" if value else "0", anchor="end", size=11,
                       fill=style.MUTED) for value in (-top / 1.08, 0, top / 1.08)]
    for n, (w, q) in enumerate(zip(b.weights, b.likeness, strict=True)):
        x, y0, y1 = LEFT + (n + 0.5) * across, middle - w * up, middle - q * up
        parts.append(f'<path d="M{x:.1f} {y0:.1f}V{y1:.1f}" stroke="{style.BAD}" stroke-width="2.5"/>'
                     f'<circle cx="{x:.1f}" cy="{y1:.1f}" r="5" fill="none" stroke="{style.BAD}" stroke-width="1.8"/>'
                     f'<circle cx="{x:.1f}" cy="{y0:.1f}" r="3.4" fill="{style.WEIGHTS}"><title>{w:+.4f} → {q:+.4f}'
                     f"</title></circle>")
    y = HEIGHT - 22
    parts += [f'<circle cx="{LEFT + 5}" cy="{y}" r="3.4" fill="{style.WEIGHTS}"/>',
              svg_text(LEFT + 14, y + 4, "a weight", size=11),
              f'<circle cx="{LEFT + 85}" cy="{y}" r="5" fill="none" stroke="{style.BAD}" stroke-width="1.8"/>',
              svg_text(LEFT + 95, y + 4, "what its code stands for", size=11),
              svg_text(WIDTH - 12, y + 4, f"error of the matrix {b.error:.1%}   ·   {b.bits_per_weight:.2f} bits a "
                       "weight", anchor="end", size=13, bold=True)]
    return Picture("".join(parts), WIDTH, HEIGHT,
                   f"{len(b.weights)} weights at {b.bits} bits, one scale for {b.group}: the matrix is off by "
                   f"{b.error:.1%}, and takes {b.bits_per_weight:.2f} bits a weight.")

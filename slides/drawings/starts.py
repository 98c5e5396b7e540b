"""Notebook 3's drawings of starts, in the size of a slide: the plan beside the log, and where causes stand."""

from __future__ import annotations

import re

from drawings.canvas import WIDTH, Canvas
from workshop.course.drawing.chart import Picture
from workshop.course.notebooks import nb03


def planned_and_logged() -> Canvas:
    return _on_a_slide(nb03.compared(nb03.START_8B, gpu="h100"))


def causes() -> Canvas:
    return _on_a_slide(nb03.where_causes_stand())


def _on_a_slide(picture: Picture) -> Canvas:
    """Return a drawing of the notebook as wide as a slide."""
    opening = re.match(r'<svg viewBox="0 0 (\S+) (\S+)"[^>]*>', picture.svg)
    scale = WIDTH / float(opening[1])
    body = picture.svg[opening.end() :].removesuffix("</svg>")
    canvas = Canvas(float(opening[2]) * scale, repr(picture))
    return canvas.raw(f'<g transform="scale({scale:g})">{body}</g>')


FIGURES = {"planned_and_logged": planned_and_logged, "causes": causes}

"""Draws the points that `workshop bench` measured: a panel for each figure, over the load."""

from workshop.course.drawing.figure import STYLE, draw, svg
from workshop.measure.points import Point

PICTURE_WIDTH, PICTURE_HEIGHT = 900, 560  # pixels
PANELS = {"ttft": "TTFT p95, ms", "tpot": "TPOT p95, ms"}
GOODPUT = "goodput, requests per second"


def drawing(measured: list[Point]) -> str:
    """Return the points as SVG, measured and simulated, over the load.

    The panels are tokens/s, TTFT, TPOT and, with an SLO, goodput. One without values is left out.
    """
    # takes a second or two to import
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.style import context

    curves = _curves(measured)
    with context(STYLE):
        layout = ConstrainedLayoutEngine(hspace=0.08)
        picture = Figure(figsize=(PICTURE_WIDTH / 72, PICTURE_HEIGHT / 72), layout=layout)
        picture.suptitle(
            "What the server answered at each load", x=0.01, ha="left", size=15, weight="bold"
        )
        for place, (panel, lines) in enumerate(curves.items(), 1):
            axes = picture.add_subplot(2, 2, place)
            axes.set_title(panel, size=13)
            axes.set_xlabel(measured[0].load.counts)
            draw(axes, lines, "line")
    return svg(picture, alone=True)


def _curves(measured: list[Point]) -> dict[str, dict[str, dict[float, float]]]:
    """Return {panel: {"measured" or "simulated": {amount of the load: value}}}."""
    curves: dict[str, dict[str, dict[float, float]]] = {}

    def add(panel: str, line: str, amount: float, value: float | None) -> None:
        if value is not None:
            curves.setdefault(panel, {}).setdefault(line, {})[amount] = value

    for point in measured:
        amount = point.load.amount
        add("tokens/s", "measured", amount, point.tokens_per_s)
        for name, panel in PANELS.items():
            add(panel, "measured", amount, point.figures[name]["p95"])
        add(GOODPUT, "measured", amount, point.goodput_per_s)
        predicted = point.predicted
        if predicted is None:
            continue
        add("tokens/s", "simulated", amount, predicted["tokens_per_s"])
        for name, panel in PANELS.items():
            add(panel, "simulated", amount, predicted[f"{name}_ms"]["p95"])
        add(GOODPUT, "simulated", amount, predicted["goodput_per_s"])
    return curves

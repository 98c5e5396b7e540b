"""Shows the points of `workshop bench`, and the measurements of result files, as tables."""

from typing import Any

from workshop.measure.classes import ClassPoint
from workshop.measure.points import Load, Point
from workshop.measure.results import Measurement, unknown

HEADER = (
    f"{'':<14}{'tokens/s':>10}{'ttft p50':>10}{'p95':>9}{'tpot p50':>10}{'p95':>9}{'goodput/s':>11}"
)


def as_text(model: str, measured: list[Point], predicts: bool) -> str:
    """Return the table of the points, with the simulation's line below each, and their faults."""
    classes = [point for point in measured if isinstance(point, ClassPoint)]
    texts = "sessions of random texts"
    sound = "No lost prefixes, no other client, a client that kept up, and enough requests."
    if classes:
        texts = "the cells of the notebooks"
        sound = "No errors, no other client, and a client that kept up."
    elif isinstance(measured[0].load, Load):
        texts = "random prompts"
        sound = sound.replace("lost prefixes", "prefix-cache hits")
    lines = [f"{model}: milliseconds, {texts}", HEADER]
    for point in measured:
        figures = {f"{name}_ms": values for name, values in point.figures.items()}
        lines.append(_row(point.load.name, point.tokens_per_s, figures, point.goodput_per_s))
        if point.predicted:
            predicted = point.predicted
            goodput = predicted["goodput_per_s"]
            lines.append(_row("  simulated", predicted["tokens_per_s"], predicted, goodput))
    for point in measured:
        if isinstance(point, ClassPoint):
            lines += _waits(point)
        elif not isinstance(point.load, Load):
            lines.append(_hits(point))
    if not (predicts or classes):
        lines.append("· No simulation: give --gpu, the kind of GPU that the server has.")
    for point in measured:
        if point.energy:
            lines.append(f"· {point.load.name}: {point.energy}")
    faults = [
        f"✗ {point.load.name}: {fault.sentence}" for point in measured for fault in point.faults
    ]
    lines += faults or [f"✓ {sound}"]
    lines += [_verdict(point) for point in classes]
    return "\n".join(lines)


def text_of_files(measurements: list[Measurement]) -> str:
    """Return the table of the measurements of result files, with the faults of each below it."""
    lines = [HEADER]
    for measurement in measurements:
        figures = {f"{name}_ms": values for name, values in measurement.figures.items()}
        lines.append(_row(measurement.name[:14], measurement.tokens_per_s or 0.0, figures, None))
        lines.append(f"  {measurement.requests} requests, {measurement.source}")
        for fault in measurement.faults:
            lines.append(f"✗ {fault.sentence}")
        for sentence in unknown(measurement):
            lines.append(f"? {sentence}")
    return "\n".join(lines)


def _waits(point: ClassPoint) -> list[str]:
    """Return the lines about how long learners waited in each step."""
    lines = [f"{'':<28}{'requests':>10}{'ttft p50':>10}{'p95':>9}{'e2el p50':>10}{'p95':>9}"]
    for step in point.steps:
        line = f"  {step.name:<26}{step.requests:>10,}"
        for figures in (step.ttft_ms, step.e2el_ms):
            line += f"{_shown(figures['p50'], ',.1f'):>10}{_shown(figures['p95'], ',.1f'):>9}"
        lines.append(line)
    for name in point.left_out:
        lines.append(f"· {name}: this server does not take it, so nobody ran it")
    return lines


def _verdict(point: ClassPoint) -> str:
    """Return whether the server holds the class, why not, and what to do."""
    waited = []
    for measure, limit_ms in point.limits.items():
        p95_ms = point.figures[measure]["p95"]
        if p95_ms is not None:
            waited.append(f"p95 {measure} {p95_ms / 1e3:.1f} s (limit {limit_ms / 1e3:g} s)")
    figures = ", ".join([f"{sum(point.errors.values()):,} errors", *waited])
    if point.holds:
        return f"✓ It will hold {point.load.name}: {figures}."
    slowest = max(point.steps, key=lambda step: step.e2el_ms["p95"] or 0.0)
    return (
        f"✗ It will not hold {point.load.name}: {figures}.\n"
        f"→ The slowest cell is “{slowest.name}”: let half of the class run it first, or share a second server "
        "(`workshop serve --name second`, or `workshop slurm submit`) with each half."
    )


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _hits(point: Point) -> str:
    """Return the line about the prefix cache of a point of sessions."""
    measured = "unknown"
    if point.prefix_hit_share is not None:
        measured = f"{point.prefix_hit_share:.1%}"
    line = f"· {point.load.name}: {measured} of the prompts' tokens came from the prefix cache"
    if point.predicted:
        line += f"; simulated {point.predicted['prefix_hit_share']:.1%}"
    return line + "."


def _row(name: str, tokens_per_s: float, figures: dict[str, Any], goodput: float | None) -> str:
    cells = f"{name:<14}{tokens_per_s:>10,.0f}"
    for measure, width in (("ttft_ms", 10), ("tpot_ms", 10)):
        for percentile, more in (("p50", 0), ("p95", -1)):
            shown = _shown(figures[measure][percentile], ",.1f")
            cells += f"{shown:>{width + more}}"
    return f"{cells}{_shown(goodput, '.2f'):>11}"

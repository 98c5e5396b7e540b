"""The plan beside a log: predicted, actual, a bar of the error, what to change. Pure: text out."""

from __future__ import annotations

from workshop.engine.reconcile import Reconciliation, Row
from workshop.learn.html import Html, bold, div, join, panel, span, tag
from workshop.learn.widgets import style

AXIS_PERCENT = 5.0  # a bar this long fills its half; longer errors are cut, and say their number
CLOSE_PERCENT, FAIR_PERCENT = 1.0, 3.0
HEAD = (("quantity", ""), ("predicted", "number"), ("actual", "number"), ("too low ← 0 → too high", "mid"), ("", ""))


def picture(result: Reconciliation) -> Html:
    """Return the table with its error bars, the advice, and what was assumed."""
    failed = f"The start failed. {result.failure} " if result.failure else ""
    failure = div(tag("b", "✗ The start failed.", cls="ink-bad"), f" {result.failure}") if failed else ""
    head = [span(name, cls=f"note {side}".rstrip()) for name, side in HEAD]
    grid = div(*head, *map(_row, result.rows), cls="compare")
    label = f"Plan beside log. {failed}{'. '.join(map(_spoken, result.rows))}"
    advice = [one for item in result.advice for one in (tag("code", f"{item.flag} {item.value}"), span(item.effect))]
    below = [tag("p", bold("What to change"), ", the most effective first, more ranks last"), div(*advice, cls="pairs")]
    assumed = [tag("ul", *(tag("li", line) for line in result.assumed), cls="note")]
    # A picture is one thing to a screen reader: the advice, which is text, stands outside of it.
    text = panel(*below * bool(advice), *assumed * bool(result.assumed))
    return join([panel(failure, grid, label=label), text])


def _row(row: Row) -> Html:
    numbers = [
        span(f"{_number(value)} ", "" if value is None else tag("small", row.unit, cls="ink-muted"), cls="number")
        for value in (row.predicted, row.actual)
    ]
    error = "" if row.error_percent is None else f"{row.error_percent:+.2f} %"
    why = span(row.reason, cls="note why")
    return join([Html("<hr>"), bold(row.quantity), *numbers, _bar(row.error_percent), span(error, cls="number"), why])


def _bar(error: float | None) -> Html:
    """A bar from the middle: to the right where the plan says too much, to the left where it says too little."""
    if error is None:
        return span()
    width = max(0.6, min(50.0, abs(error) / AXIS_PERCENT * 50))
    colour = style.GOOD if abs(error) <= CLOSE_PERCENT else style.ORANGE if abs(error) <= FAIR_PERCENT else style.BAD
    place = f"left:{50 if error >= 0 else 50 - width:.2f}%;width:{width:.2f}%;background:{colour}"
    return span(tag("i", style=place), tag("i"), cls="error")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _spoken(row: Row) -> str:
    error = "" if row.error_percent is None else f", error {row.error_percent:+.1f} percent"
    return f"{row.quantity}: predicted {_number(row.predicted)}, actual {_number(row.actual)} {row.unit}{error}"

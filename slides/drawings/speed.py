"""Where the milliseconds of one token go, on 4 H200."""

from __future__ import annotations

from drawings.charts import Chart, chart
from workshop.course.drawing.figure import draw
from workshop.course.drawing.plots import STEP_COLOURS, step_table


def step() -> Chart:
    """One token of 70B: the limit, as vLLM starts, and with kernels made for one token."""
    table, descriptions = step_table(), []
    for label in table[next(iter(table))]:
        parts = {part: ms[label] for part, ms in table.items() if ms[label]}
        total = sum(parts.values())
        descriptions.append(
            f"{label} {total:.1f} ms: "
            + ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items())
        )
        table = {
            part: {
                f"{label}\n{1e3 / total:.0f} tokens/s" if row == label else row: ms
                for row, ms in rows.items()
            }
            for part, rows in table.items()
        }
    with chart(400, f"Llama 3.1 70B on 4 H200, one stream. {'; '.join(descriptions)}.") as c:
        draw(c.axes, table, "stacked", STEP_COLOURS)
        c.axes.set_xlabel("ms of one token")
    return c


FIGURES = {"step": step}

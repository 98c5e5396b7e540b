"""Where the milliseconds of one token go, on 4 H200."""

from __future__ import annotations

from drawings.canvas import SOFT, WIDTH, Canvas
from workshop.learn.plots_speed import PARTS, step_parts

ROWS = (("as it starts", "70b-tp4-unfused"), ("tuned", "70b-tp4-best"))


def step() -> Canvas:
    """One token of 70B: the limit, as vLLM starts, and with kernels made for one token."""
    parts = {label: step_parts(name) for label, name in ROWS}
    weights = PARTS[0][0]
    rows = [("the limit", {weights: parts[ROWS[0][0]][weights]}), *parts.items()]
    per_ms = (WIDTH - 380) / max(sum(each.values()) for _, each in rows)
    c, words = Canvas(400, ""), []
    for number, (label, each) in enumerate(rows):
        x, y, total = 190, 10 + number * 82, sum(each.values())
        c.text(170, y + 39, label, 24, bold=True, anchor="end")
        for part, colour, _ in PARTS:
            if part in each:
                c.box(x, y, max(each[part] * per_ms - 2, 1), 58, colour, radius=3)
                x += each[part] * per_ms
        c.text(x + 12, y + 27, f"{total:.1f} ms", 24, bold=True)
        c.text(x + 12, y + 53, f"{1e3 / total:.0f} tokens/s", 20, fill=SOFT)
        words.append(f"{label} {total:.1f} ms: " + ", ".join(f"{part} {ms:.1f}" for part, ms in each.items()))
    for number, (part, colour, _) in enumerate(PARTS):
        x, y = 20 + number % 3 * 375, 290 + number // 3 * 40
        c.box(x, y, 20, 20, colour, radius=3).text(x + 32, y + 18, part, 20)
    c.words = "Llama 3.1 70B on 4 H200, one stream. " + "; ".join(words) + "."
    return c


FIGURES = {"step": step}

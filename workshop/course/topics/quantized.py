"""The measurements of the quantized teaching model, as data and as a table.

Measured by benchmarks/quantization.
"""

import math

from workshop.course.drawing.tables import Table
from workshop.course.topics import recorded_data

HEAD = ("scheme", "what", "MB", "weights off by", "perplexity: known", "glosses", "prose", "right")
HEAD += ("vLLM: glosses", "right")


def measured() -> dict:
    """Return the machine, the schemes, and the measurements of each scheme.

    Losses are in nats per token, sizes in bytes.
    """
    return recorded_data.read("quantization/measured.json")


def rows() -> list[tuple[str, ...]]:
    """Return the table's rows as text, in the order of measurement.

    An engine that refused a scheme says so below.
    """
    rows = []
    for name, row in measured()["schemes"].items():
        size = f"{row['stored_bytes'] / 1e6:.1f}"
        error = ""
        if row.get("weight_error"):
            error = f"{row['weight_error']:.1%}"
        own, engine = _own_figures(row), _engine_figures(row.get("engine", {}))
        rows.append((name, row["words"], size, error, *own, *engine))
    return rows


def _own_figures(row: dict) -> tuple[str, ...]:
    """Return perplexities and right answers of the model in NumPy, or empty texts."""
    figures = row.get("numpy")
    if not figures:
        return ("",) * 4
    perplexity_known = f"{math.exp(figures['known']):,.2f}"
    glosses = f"{math.exp(figures['glosses']):,.1f}"
    prose = f"{math.exp(figures['prose']):,.1f}"
    return perplexity_known, glosses, prose, str(figures["right"])


def _engine_figures(engine: dict) -> tuple[str, ...]:
    """Return perplexity and right answers of vLLM; ✗ where it refused."""
    if not engine:
        return ("",) * 2
    if "refused" in engine:
        return ("✗",) * 2
    return f"{math.exp(engine['glosses']):,.1f}", str(engine["right"])


def measured_table() -> Table:
    """Return the table for a notebook, without the description of each scheme.

    Ten columns would be wider than a page.
    """
    narrow_rows = []
    for name, _, *figures in rows():
        narrow_rows.append((name, *figures))
    return Table((HEAD[0], *HEAD[2:]), narrow_rows)

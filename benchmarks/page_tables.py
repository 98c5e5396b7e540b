"""Put tables that were measured into a page, each between its two marks."""

from __future__ import annotations


def with_tables(page: str, **tables: str) -> str:
    """Return the page with all that stands between `<!-- name -->` and `<!-- /name -->` replaced.

    A name without marks is left out: two pages may share the tables of one script.
    """
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, mark, rest = page.partition(begin)
        if mark:
            page = f"{before}{begin}{table}\n{end}{rest.partition(end)[2]}"
    return page

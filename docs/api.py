"""Write docs/api.md: the names that `from workshop import …` offers, from their own docstrings.

python docs/api.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import workshop

HEAD = """# What `from workshop import …` offers

Every name is loaded when it is asked for. Written by `python docs/api.py` from the names' own docstrings;
their examples are run by the tests.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *map(section, workshop.__all__)])


def section(name: str) -> str:
    """Return one name: its heading, what it is, its example, its arguments."""
    found = getattr(workshop, name)
    takes = "" if inspect.ismodule(found) else str(inspect.signature(found)).partition(" -> ")[0]
    takes = re.sub(r": [^,=)]+", "", takes).replace("= ", "=")
    parts = [f"## {name}\n"]
    if takes:
        parts.append(f"`{name}{takes}`\n")
    return "\n".join([*parts, *map(block, re.split(r"\n\s*\n", inspect.getdoc(found)))])


def block(text: str) -> str:
    """Return a paragraph, an example as code, or a list of arguments as Markdown."""
    if text.lstrip().startswith(">>>") or text.startswith("    "):
        return f"```python\n{inspect.cleandoc(text)}\n```\n"
    head, _, rest = text.partition("\n")
    if re.fullmatch(r"[A-Z]\w+:", head):
        items = re.sub(r"\n\s{5,}", " ", rest)
        return "\n".join(
            [f"**{head[:-1]}**\n", *(f"- {line.strip()}" for line in items.splitlines()), ""]
        )
    return f"{text}\n"


if __name__ == "__main__":
    (Path(__file__).parent / "api.md").write_text(page(), encoding="utf-8")

"""Print the names that `from workshop import …` offers, from their own docstrings, as a Markdown page.

python docs/make.py api            (the same page is not in git: it is made when somebody reads it)
"""

from __future__ import annotations

import inspect
import re

import workshop

HEAD = """# What `from workshop import …` offers

Every name is loaded when it is first used. This page comes from the names' own docstrings, and the tests run
their examples.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *map(section, workshop.__all__)])


def section(name: str) -> str:
    """Return one name: its heading, what it is, its example, its arguments."""
    value = getattr(workshop, name)
    parts = [f"## {name}\n"]
    if not inspect.ismodule(value):
        parameters = str(inspect.signature(value)).partition(" -> ")[0]
        parameters = re.sub(r": [^,=)]+", "", parameters).replace("= ", "=")
        parts.append(f"`{name}{parameters}`\n")
    docstring = inspect.getdoc(value) or ""
    parts += map(block, re.split(r"\n\s*\n", docstring))
    return "\n".join(parts)


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
    print(page())

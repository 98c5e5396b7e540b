"""Write the glossary: docs/glossary.md, and in each notebook a hover on the first use of each of its terms.

python docs/glossary.py            (again after each change of glossary.toml or of a notebook's words)

The hover is plain HTML in the notebooks' text, `<abbr title="what it means">term</abbr>`: it needs no kernel.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"
TERMS = tomllib.loads((HERE / "glossary.toml").read_text(encoding="utf-8"))
HEAD = """# Glossary

The words of the course, each with the notebook that explains it. In the notebooks a word with dots below it says the same when the mouse rests on it. Written by `python docs/glossary.py` from `docs/glossary.toml`.
"""
HOVER = re.compile(r'<abbr title="[^"]*">(.*?)</abbr>')
# Where no hover goes: code, formulas, headings, links, tags, the line that says what a notebook needs.
FILES = "|".join(re.escape(term) for term in TERMS if "." in term)
# the tick that closes one opens no code
BEHIND = "".join(f"(?<!{re.escape(term)})" for term in TERMS if "." in term)
APART = re.compile(
    rf"(```.*?```|{BEHIND}`(?!(?:{FILES})`)[^`]*`|\$[^$\n]+\$|^#.*?$|!?\[[^]]*\]\([^)]*\)|<[^>]+>|^\d+ minutes · needs: .*?$)",
    re.DOTALL | re.MULTILINE,
)


def pattern(term: str) -> str:
    """Return what finds a term in a text: its forms, a plural, a capital where a sentence begins."""
    forms = sorted([term, *TERMS[term].get("also", ())], key=len, reverse=True)
    either = [f"[{form[0].upper()}{form[0]}]{re.escape(form[1:])}" for form in forms]
    return rf"(?<![\w-])(?:`{re.escape(term)}`|(?:{'|'.join(either)})s?(?![\w-]))"


ANY = re.compile(
    "|".join(
        f"(?P<t{n}>{pattern(term)})"
        for n, term in sorted(enumerate(TERMS), key=lambda x: -len(x[1]))
    )
)


def found(match: re.Match) -> str:
    """Return the term that a match of ANY is a form of."""
    return list(TERMS)[int(match.lastgroup[1:])]


def plain(text: str) -> str:
    """Return a text without hovers."""
    return HOVER.sub(r"\1", text)


def terms(text: str) -> list[str]:
    """Return the terms of a text in the order of their first use; code, formulas, headings and links do not count."""
    prose = " . ".join(APART.split(plain(text))[::2])
    return list(dict.fromkeys(map(found, ANY.finditer(prose))))


def hovers(texts: list[str]) -> list[str]:
    """Return a notebook's texts with a hover on the first use of each term."""
    seen = set()

    def mark(match: re.Match) -> str:
        if (term := found(match)) in seen:
            return match[0]
        seen.add(term)
        return f'<abbr title="{escape(TERMS[term]["says"])}">{match[0]}</abbr>'

    parts = [APART.split(plain(text)) for text in texts]
    return [
        "".join(each if n % 2 else ANY.sub(mark, each) for n, each in enumerate(split))
        for split in parts
    ]


def texts(notebook: dict) -> list[dict]:
    """Return a notebook's cells of text."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def write(path: Path) -> None:
    """Set the hovers of one notebook; nothing else of the file changes."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = texts(notebook)
    for cell, text in zip(cells, hovers(["".join(cell["source"]) for cell in cells]), strict=True):
        cell["source"] = text.splitlines(keepends=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def page() -> str:
    """Return the glossary as a page."""
    places = {
        path.stem[:2]: f"[{int(path.stem[:2])}](../notebooks/{path.name})"
        for path in NOTEBOOKS.glob("[0-9]*.ipynb")
    }
    rows = [
        f"| **{term}** | {each['says']} | {places[each['first']]} |" for term, each in TERMS.items()
    ]
    return "\n".join(
        [
            HEAD,
            "| term | what it means | notebook |",
            "|---|---|---|",
            *sorted(rows, key=str.lower),
            "",
        ]
    )


if __name__ == "__main__":
    (HERE / "glossary.md").write_text(page(), encoding="utf-8")
    for name in sys.argv[1:] or sorted(NOTEBOOKS.glob("*.ipynb")):
        write(Path(name))

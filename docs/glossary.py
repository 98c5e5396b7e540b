"""Write the glossary: docs/glossary.md, and in each notebook a hover on the first use of each of its terms.

python docs/glossary.py            (again after each change of glossary.toml or of a notebook's words)

The hover is plain HTML in the notebooks' text, `<abbr title="what it means">term</abbr>`: it needs no kernel.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
NOTEBOOKS = HERE.parent / "notebooks"
TERMS = tomllib.loads((HERE / "glossary.toml").read_text(encoding="utf-8"))
HEAD = """# Glossary

The words of the course, each with the notebook that explains it. In the notebooks a word with dots below it says the same when the mouse rests on it. Written by `python docs/glossary.py` from `docs/glossary.toml`.
"""
HOVER = re.compile(r'<abbr title="[^"]*">(.*?)</abbr>')
# Where a sentence ends: a mark and a space, an empty line, the next line of a list or a table.
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n\s*\n|\n(?=\s*(?:[-*|]|\d+\.) )")
# the title of a paper or a book: *Fast Inference from Transformers*
TITLE = r"(?<!\*)\*[A-Z][^*\n]*\*(?!\*)"
# Where no hover goes: code, formulas, headings, links, titles, tags, the line that says what a notebook needs.
FILES = "|".join(re.escape(term) for term in TERMS if "." in term)
# the tick that closes one opens no code
BEHIND = "".join(f"(?<!{re.escape(term)})" for term in TERMS if "." in term)
APART = re.compile(
    rf"(```.*?```|{BEHIND}`(?!(?:{FILES})`)[^`]*`|\$[^$\n]+\$|^#.*?$|!?\[[^]]*\]\([^)]*\)|{TITLE}|<[^>]+>|^\d+ minutes · needs: .*?$)",
    re.DOTALL | re.MULTILINE,
)


def pattern(term: str) -> str:
    """Return what finds a term in a text: its forms, a plural, a capital where a sentence begins."""
    word = TERMS[term].get("word", term)
    forms = sorted([word, *TERMS[term].get("also", ())], key=len, reverse=True)
    either = [f"[{form[0].upper()}{form[0]}]{re.escape(form[1:])}" for form in forms]
    return rf"(?<![\w-])(?:`{re.escape(word)}`|(?:{'|'.join(either)})s?(?![\w-]))"


PATTERNS = {term: re.compile(pattern(term)) for term in TERMS}


@dataclass(frozen=True)
class Use:
    """A place of a text that uses a term."""

    start: int
    end: int
    term: str


def sentence(text: str, start: int) -> str:
    """Return the sentence, or the line of a list or table, that has the character at `start`."""
    first = 0
    for border in SENTENCE_END.finditer(text):
        if border.end() > start:
            return text[first : border.start()]
        first = border.end()
    return text[first:]


def has_sense(term: str, text: str, start: int) -> bool:
    """Return whether the sentence at `start` uses the word in the sense of this term.

    `where` of a term lists patterns of which the sentence has one; `unless` those of which it has none.
    """
    around = sentence(text, start)
    where = TERMS[term].get("where", ())
    if where and not any(re.search(expression, around) for expression in where):
        return False
    return not any(re.search(expression, around) for expression in TERMS[term].get("unless", ()))


def prose(text: str) -> list[tuple[int, int]]:
    """Return where a text without hovers has prose: from, to (not in code, formulas, headings, links, titles)."""
    parts: list[tuple[int, int]] = []
    first = 0
    for match in APART.finditer(text):
        parts.append((first, match.start()))
        first = match.end()
    return [*parts, (first, len(text))]


@functools.cache
def uses(text: str) -> tuple[Use, ...]:
    """Return the uses of terms in a text without hovers, in their order. Of terms that overlap the longest counts."""
    matches: list[Use] = []
    for first, last in prose(text):
        for term, compiled in PATTERNS.items():
            for match in compiled.finditer(text, first, last):
                if has_sense(term, text, match.start()):
                    matches.append(Use(match.start(), match.end(), term))
    matches.sort(key=lambda use: (use.start, -use.end, list(TERMS).index(use.term)))
    result: list[Use] = []
    for use in matches:
        if not result or use.start >= result[-1].end:
            result.append(use)
    return tuple(result)


def plain(text: str) -> str:
    """Return a text without hovers."""
    return HOVER.sub(r"\1", text)


def terms(text: str) -> list[str]:
    """Return the terms of a text in the order of their first use; code, formulas, headings and links do not count."""
    return list(dict.fromkeys(use.term for use in uses(plain(text))))


def hovers(texts: list[str]) -> list[str]:
    """Return a notebook's texts with a hover on the first use of each term."""
    seen: set[str] = set()
    result = []
    for text in map(plain, texts):
        parts: list[str] = []
        end = 0
        for use in uses(text):
            if use.term in seen:
                continue
            seen.add(use.term)
            says = escape(TERMS[use.term]["says"])
            parts += [
                text[end : use.start],
                f'<abbr title="{says}">{text[use.start : use.end]}</abbr>',
            ]
            end = use.end
        result.append("".join([*parts, text[end:]]))
    return result


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
        f"| **{term}** | {entry['says']} | {places[entry['first']]} |"
        for term, entry in TERMS.items()
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

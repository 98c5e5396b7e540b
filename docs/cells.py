"""Read the notebooks as a learner meets them: headings, what is folded, and which cells a cell needs."""

from __future__ import annotations

import ast
import builtins
import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
DEEPER = "Deeper"
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)
HOVER = re.compile(r"</?abbr[^>]*>")
KEY = r'\(\s*"{}"'
GIVEN_NAMES = {*dir(builtins), "display", "In", "Out", "get_ipython"}  # IPython's own


@dataclass(frozen=True)
class Cell:
    """One cell: its number from 0, its text without hovers, and where it stands.

    `headings` are those that it stands under, the outermost first; a cell that begins with a
    heading stands under that one.
    """

    number: int
    id: str
    kind: str
    source: str
    headings: tuple[str, ...]
    tags: tuple[str, ...]
    is_hidden: bool
    is_deeper: bool

    @property
    def is_visible(self) -> bool:
        """Return whether it is seen without opening anything."""
        return not self.is_hidden and not self.is_deeper

    def calls(self, function: str, key: str) -> bool:
        """Return whether it calls check or predict with a key."""
        return bool(re.search(function + KEY.format(re.escape(key)), self.source))


@cache
def cells(notebook: str) -> tuple[Cell, ...]:
    """Return the cells of a notebook (`01_memory`). What stands under a folded heading is deeper."""
    path = NOTEBOOKS / f"{notebook}.ipynb"
    read = []
    open_headings: dict[int, str] = {}
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = HOVER.sub("", "".join(cell["source"]))
        if cell["cell_type"] == "markdown":
            for marks, title in HEADING.findall(source):
                level = len(marks)
                open_headings = {n: text for n, text in open_headings.items() if n < level}
                open_headings[level] = title.strip()
        headings = tuple(open_headings[level] for level in sorted(open_headings))
        metadata = cell["metadata"]
        hidden = bool(metadata.get("jupyter", {}).get("source_hidden"))
        tags = tuple(metadata.get("tags", ()))
        is_deeper = DEEPER in headings
        kind, id = cell["cell_type"], cell["id"]
        read.append(Cell(number, id, kind, source, headings, tags, hidden, is_deeper))
    return tuple(read)


def code(notebook: str) -> list[str]:
    """Return the code of a notebook, cell by cell."""
    return [cell.source for cell in cells(notebook) if cell.kind == "code"]


def with_text(notebook: str, text: str) -> str:
    """Return the source of the one cell that has a text in it.

    Raises:
        ValueError: no cell has it, or several have.
    """
    [source] = [cell.source for cell in cells(notebook) if text in cell.source]
    return source


def headings(notebook: str) -> list[str]:
    """Return the headings of a notebook that are seen without opening anything, in their order."""
    visible = []
    for cell in cells(notebook):
        if cell.kind == "markdown" and cell.is_visible:
            visible += [title.strip() for _, title in HEADING.findall(cell.source)]
    return visible


def section(notebook: str, heading: str) -> list[Cell]:
    """Return the cells under a heading, with those of its parts."""
    return [cell for cell in cells(notebook) if heading in cell.headings]


def key_cell(notebook: str, key: str) -> Cell | None:
    """Return the cell in which a learner answers a check or makes a prediction, None without one.

    A solution and the folded result of a prediction are other cells.
    """
    for cell in cells(notebook):
        is_answered_here = cell.calls("check", key) or cell.calls("predict", key)
        if is_answered_here and not {"solution", "prediction"} & set(cell.tags):
            return cell
    return None


def needed(notebook: str, number: int) -> tuple[list[int], set[str]]:
    """Return the cells that must have run before a cell, and the names that none of them defines.

    Of the cells above, those that a learner runs: solutions and results of predictions count for
    nothing.
    """
    above = []
    for cell in cells(notebook)[:number]:
        if cell.kind == "code" and not {"solution", "prediction"} & set(cell.tags):
            above.append(cell)
    numbers: set[int] = set()
    missing: set[str] = set()
    open_cells = [cells(notebook)[number]]
    while open_cells:
        cell = open_cells.pop()
        for name in _names(cell.source, ast.Load) - _defined(cell.source) - GIVEN_NAMES:
            earlier = [other for other in above if other.number < cell.number]
            definers = [other for other in earlier if name in _defined(other.source)]
            if not definers:
                missing.add(name)
            elif definers[-1].number not in numbers:
                numbers.add(definers[-1].number)
                open_cells.append(definers[-1])
    return sorted(numbers), missing


@cache
def _names(source: str, context: type) -> frozenset[str]:
    """Return the names that a cell reads (ast.Load) or writes (ast.Store)."""
    tree = ast.parse(source)
    return frozenset(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    )


@cache
def _defined(source: str) -> frozenset[str]:
    """Return the names that a cell defines: by assignment, import, function, class or parameter."""
    names = set(_names(source, ast.Store))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return frozenset(names)

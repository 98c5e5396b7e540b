"""Sentences about an answer, for an exercise's cell that Python cannot run.

`39,06` is a syntax error about octal numbers to Python, and a decimal comma to everybody else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection

ASSIGNED = re.compile(r"^\s*(\w+)\s*=\s*(.+?)\s*(?:#.*)?$", re.MULTILINE)
CURVED_QUOTES = re.compile("[“”„‘’‚«»]")
# The whole right side of an answer that Python cannot read, and what to do.
UNREADABLE = (
    (r"[-+]?\d{1,3}( \d{3})+(\.\d+)?", "leave out the spaces"),
    (r"[-+]?\d+,\d+", "write the number with a point in place of the comma"),
    (r"[-+]?[\d.,]+\s*%", "leave out the % sign"),
    (r"[-+]?[\d.,]+\s*[^\W\d_][\w/]*", "give the number alone, without its unit"),
)
LITERALS = (ast.Constant, ast.Name, ast.Tuple, ast.List, ast.Dict, ast.expr_context)


def slip(source: str, names: Collection[str]) -> str | None:
    """Return what to change in a cell with an answer, None if Python runs it or knows better.

    Args:
        source: the cell.
        names: those that are defined where it runs.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return _unreadable(source)
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            name = _bare_word(statement.value, names)
            if name:
                return f'{name} is a text: write it in quotes, "{name}"'
    return None


def _unreadable(source: str) -> str | None:
    """Return what to do about an answer that is no Python."""
    for _, answer in ASSIGNED.findall(source):
        if CURVED_QUOTES.search(answer):
            return "write straight quotes: \" or '"
        for pattern, remedy in UNREADABLE:
            if re.fullmatch(pattern, answer):
                return remedy
    return None


def _bare_word(value: ast.expr, names: Collection[str]) -> str | None:
    """Return a name in a literal answer that nothing has defined: a text without its quotes."""
    nodes = list(ast.walk(value))
    if not all(isinstance(node, LITERALS) for node in nodes):
        return None
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in names:
            return node.id
    return None

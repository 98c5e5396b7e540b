"""A name says what a value is, not how it came about (CONTRIBUTING.md, rule 3)."""

import ast
from collections.abc import Iterator

import pytest
import tree

ROOMS = ("planner", "workshop", "tests", "benchmarks", "docs", "slides")
# Words that tell how a value came about, or nothing at all.
EMPTY = {"said", "found", "given", "asked", "kept", "known", "held", "mine", "each", "one", "words"}
# Names that something else fixes: file → its names.
FIXED = {
    "workshop/engine/reconcile/learned.py": {"kept"},  # files in the user's home have that field
    "workshop/servers/checks.py": {"found"},  # so does `workshop doctor --json`
    "workshop/course/exercises/sets/ecapstone.py": {"words"},  # learners' files: "capstone.words"
}


def names(source: str) -> Iterator[str]:
    """Yield the names that a module binds: variables, parameters, functions and classes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_says_only_how_its_value_came_about(room):
    paths = tree.files(room, ".py")
    assert paths
    empty = []
    for path in paths:
        file = path.relative_to(tree.ROOT).as_posix()
        for name in EMPTY.intersection(names(path.read_text(encoding="utf-8"))):
            if name not in FIXED.get(file, set()):
                empty.append(f"{file}: {name}")
    assert not empty, "name what the value is: match, record, message, settings …"


def test_an_empty_name_is_found_wherever_it_is_bound():
    source = "def said(given):\n    for each in given:\n        found: int = each\n    return found"
    assert EMPTY.intersection(names(source)) == {"said", "given", "each", "found"}

"""A name says what a value is, not how it came about (CONTRIBUTING.md, rule 3)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "workshop"
ROOMS = ("engine", "servers", "client", "batch", "cli", "simulate", "course", "teaching_model")
# Words that tell how a value came about, or nothing at all.
EMPTY = {"said", "found", "given", "asked", "kept", "known", "held", "mine", "each", "one", "words"}
FIELDS_OF_FILES = {
    ("engine/learned.py", "kept"),  # its files in the user's home have that field
    ("servers/checks.py", "found"),  # so does `workshop doctor --json`
    # learners' files of progress have "capstone.words"
    ("course/exercise_sets/ecapstone.py", "words"),
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
def test_no_name_of_a_room_says_only_how_its_value_came_about(room):
    empty = set()
    for path in (PACKAGE / room).rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        for name in EMPTY.intersection(names(path.read_text(encoding="utf-8"))):
            empty.add((file, name))
    assert empty <= FIELDS_OF_FILES, "name what the value is: match, record, message, settings …"


def test_an_empty_name_is_found_wherever_it_is_bound():
    source = "def said(given):\n    for each in given:\n        found: int = each\n    return found"
    assert EMPTY.intersection(names(source)) == {"said", "given", "each", "found"}

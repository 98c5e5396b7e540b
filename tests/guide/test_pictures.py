"""A picture of the product shows what there is today: its cell, what that imports, and the list of notebooks."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path

import pictures
import pytest

ROOT = Path(__file__).parents[2]
RECORD = json.loads(pictures.RECORD.read_text(encoding="utf-8"))
# Pictures without code or a list of files in sight, and the module that draws them.
DRAWN_BY = {
    "roofline": "workshop.course.topics.roofline",
    "xray": "workshop.course.widgets.xray.case",
    "xray_predict": "workshop.course.widgets.xray.case",
}


def imported(code: str) -> list[tuple[str, str]]:
    """Return the modules and names that a cell imports."""
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [(alias.name, "") for alias in node.names]
    return names


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_shows_what_is_there_today(name):
    assert RECORD[name] == pictures.record_of(pictures.PICTURES[name]), (
        f"take it again: python docs/pictures.py {name}"
    )
    for module, member in imported(RECORD[name]["code"]):
        loaded = importlib.import_module(module)
        if member and not hasattr(loaded, member):
            importlib.import_module(f"{module}.{member}")  # a module of that package
    assert (pictures.FOLDER / f"{name}.png").stat().st_size > 10_000


def test_every_picture_of_the_pages_is_made_by_a_program():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    shown = set()
    for page in pages:
        for target in re.findall(r"\]\(((?:docs/)?pictures/[^)]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            shown.add(Path(target).name)
    files = {path.name for path in pictures.FOLDER.glob("*.png")}
    assert files <= shown, "a picture that no page shows"
    assert {Path(name).stem for name in files} == set(pictures.PICTURES) | set(DRAWN_BY)
    for module in DRAWN_BY.values():
        assert importlib.import_module(module)

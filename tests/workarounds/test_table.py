"""Each workaround names the upstream bug, the versions that have it and its end, and the room's table lists them all."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

from workshop import workarounds

FOLDER = Path(workarounds.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
TESTS = Path(__file__).parent
ROW = re.compile(r"^\| `(\w+)` +\| (.+?) +\| (.+?) +\| (.+?) +\|$", re.MULTILINE)
LOCK = "\n".join(path.read_text() for path in (TESTS.parents[1] / "locks").glob("*.txt"))
VERSIONS = tomllib.loads((TESTS / "versions.toml").read_text(encoding="utf-8"))
TABLE = {row[0]: row[1:] for row in ROW.findall(workarounds.__doc__ or "")}


def test_the_table_lists_every_module_in_order():
    assert list(TABLE) == MODULES


def test_a_module_says_what_the_table_says():
    for name in MODULES:
        text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
        sentences = " ".join(text.split())
        upstream, versions, _ = TABLE[name]
        assert f"Upstream: {upstream}" in sentences, name
        assert f"Versions: {versions}. Ends when: " in sentences, name
        if upstream == "no issue found":
            assert "To reproduce: " in sentences or "on purpose" in sentences, name


def test_a_module_has_one_way_to_be_applied():
    for name in MODULES:
        module = importlib.import_module(f"workshop.workarounds.{name}")
        elsewhere = "\nApplied in `" in module.__doc__
        assert elsewhere != (hasattr(module, "apply") or hasattr(module, "flags")), name


def test_a_module_has_a_test_that_fails_once_upstream_has_fixed_it():
    tests = "".join(path.read_text() for path in TESTS.glob("test_*.py"))
    assert [name for name in MODULES if f"def test_{name}(" not in tests] == []


def test_the_bugs_were_looked_for_in_the_locked_version():
    for package, version in VERSIONS.items():
        locked = re.findall(rf"^{package}==([\d.]+)", LOCK, re.MULTILINE)
        assert set(locked) == {version}, (
            f"{package}: run what versions.toml says, and write the versions there"
        )

"""Types are checked: strictly in the planner, by the basic rules in the workshop."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import lacking

ROOT = Path(__file__).parents[2]
CHECKER = ROOT / "tests" / "type_checker"


@pytest.fixture(scope="session")
def pyright() -> list[str]:
    """The command of the pyright that tests/type_checker/package-lock.json pins, installed if it is not there."""
    program = CHECKER / "node_modules" / "pyright" / "index.js"
    if not program.is_file():
        npm = shutil.which("npm") or lacking(
            "pyright needs Node with npm: apt-get install nodejs npm"
        )
        options = ["--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run([npm, "ci", *options], cwd=CHECKER, capture_output=True, text=True)
        if done.returncode:
            lacking(f"npm cannot install pyright: {done.stderr.strip()[-300:]}")
    node = shutil.which("node") or lacking("pyright needs Node: apt-get install nodejs")
    return [node, str(program)]


def errors(pyright: list[str], *arguments: str) -> list[str]:
    """Return what pyright finds, a line each."""
    command = [*pyright, "--outputjson", "--pythonpath", sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    diagnostics = json.loads(done.stdout)["generalDiagnostics"]
    return [
        f"{diagnostic['file']}:{diagnostic['range']['start']['line'] + 1} {diagnostic['message']}"
        for diagnostic in diagnostics
    ]


def test_planner_and_workshop_have_no_error(pyright):
    assert errors(pyright) == []


def test_a_lie_would_be_found(pyright, tmp_path):
    module = tmp_path / "module.py"
    module.write_text(
        "from inference_planner import plan\nfits: str = plan('llama-3.1-8b', 'h100').fits\n"
    )
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps(
            {
                "include": ["module.py"],
                "extraPaths": [str(ROOT / "planner")],
                "typeCheckingMode": "strict",
            }
        )
    )
    assert [
        line
        for line in errors(pyright, "--project", str(tmp_path))
        if "bool" in line and "str" in line
    ]

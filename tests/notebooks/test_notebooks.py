"""Every notebook of the course runs from top to bottom, solutions and their checks included, as nbval runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.live
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook, server, live_home, tmp_path):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env",
               "--nbval-cell-timeout", "300", "-c", os.devnull, "--rootdir", str(notebook.parent), str(notebook)]
    environment = {**os.environ, "WORKSHOP_HOME": str(live_home), "WORKSHOP_STRICT": "1",
                   "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=notebook.parent)
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_as_the_house_writes_them(notebook):
    cells = json.loads(notebook.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code), "outputs are stripped"
    first = "".join(cells[0]["source"])
    assert first.startswith("# ") and "You will be able to" in first and "minutes" in first and "needs" in first
    long = [len(cell["source"]) for cell in code if len("".join(cell["source"]).splitlines()) > 22]
    assert not long, "a learner has to read every cell"
    for cell in code:
        if "solution" in cell["metadata"].get("tags", []):
            assert cell["metadata"].get("jupyter", {}).get("source_hidden"), "solutions are collapsed"
            assert "".join(cell["source"]).startswith("# Solution"), "the collapsed cell shows its first line"

"""`workshop kernel install`: another environment's JupyterLab finds the kernel and shows the widgets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop import own_packages
from workshop.errors import WorkshopError
from workshop.lab import kernel


@pytest.fixture
def person(tmp_path, monkeypatch):
    """A home folder of a test's own, with Jupyter's data beside it."""
    (tmp_path / "person").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WORKSHOP_SHARED", "/shared/records")
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(tmp_path / "person" / "workshop-notebooks"))
    return tmp_path


def test_kernel_and_widgets_are_installed_for_the_user_alone(person, monkeypatch):
    monkeypatch.delenv("WORKSHOP_HOME", raising=False)
    kernel.install()
    spec = json.loads(next(person.rglob("vllm-workshop/kernel.json")).read_text())
    assert spec["argv"][:2] == [sys.executable, "-P"]
    protection = {
        "PYTHONHOME": "",
        "PYTHONPATH": "",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # Jupyter puts the session's own PATH in place of ${PATH}.
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}${{PATH}}"}
    assert spec["env"] == {"WORKSHOP_SHARED": "/shared/records", **protection, **path}
    manager = person / "data/labextensions/@jupyter-widgets/jupyterlab-manager/package.json"
    assert json.loads(manager.read_text())["name"] == "@jupyter-widgets/jupyterlab-manager"


def test_the_notebooks_are_copied_and_their_folder_is_named(person):
    lines = kernel.install()
    folder = person / "person" / "workshop-notebooks"
    assert any(f"Your notebooks are in {folder}." in line for line in lines)
    assert (folder / "00_start.ipynb").exists() and (folder / "more" / "10_chat.ipynb").exists()


def test_a_kernel_takes_no_other_pythons_packages(tmp_path):
    """The JupyterLab that starts the kernel may run with a PYTHONPATH and a PYTHONHOME of its own."""
    (tmp_path / "numpy.py").write_text("raise RuntimeError('a module of PYTHONPATH')")
    foreign = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHOME": "/nonexistent"}
    code = "import numpy, site; print(site.ENABLE_USER_SITE)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env={**foreign, **own_packages.for_kernel()}, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr
    assert subprocess.run(command, env=foreign, capture_output=True).returncode, (
        "without them it does not even start"
    )


def test_no_space_is_one_sentence(person):
    (person / "data").write_text("a file where the folder should be")
    with pytest.raises(WorkshopError, match="Cannot write") as refused:
        kernel.install()
    assert refused.value.remedy and not any((person / "person").rglob("package.json"))

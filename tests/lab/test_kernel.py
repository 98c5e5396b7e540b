"""`workshop kernel install`: another environment's JupyterLab finds the kernel and shows the widgets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from workshop import own_packages


def test_kernel_and_widgets_are_installed_for_the_user_alone(tmp_path):
    environment = {
        **os.environ,
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        "WORKSHOP_SHARED": "/shared/records",
    }
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "kernel", "install"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    spec = json.loads(next(tmp_path.rglob("vllm-workshop/kernel.json")).read_text())
    assert spec["argv"][0] == sys.executable
    protection = {
        "PYTHONHOME": "",
        "PYTHONPATH": "",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    # Jupyter puts the session's own PATH in place of ${PATH}.
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}${{PATH}}"}
    assert spec["env"] == {"WORKSHOP_SHARED": "/shared/records", **protection, **path}
    manager = tmp_path / "data/labextensions/@jupyter-widgets/jupyterlab-manager/package.json"
    assert json.loads(manager.read_text())["name"] == "@jupyter-widgets/jupyterlab-manager"


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


def test_no_space_is_one_sentence(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    environment = {
        **os.environ,
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "HOME": str(tmp_path / "none"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "kernel", "install"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "→" in done.stderr
    assert not Path(tmp_path / "none").exists() or not any(
        (tmp_path / "none").rglob("package.json")
    )

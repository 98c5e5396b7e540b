"""`workshop kernel install`: another environment's JupyterLab finds the kernel and shows the widgets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_kernel_and_widgets_are_installed_for_the_user_alone(tmp_path):
    environment = {
        **os.environ,
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        "WORKSHOP_SHARED": "/shared/records",
    }
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "kernel", "install"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    spec = json.loads(next(tmp_path.rglob("vllm-workshop/kernel.json")).read_text())
    assert spec["argv"][0] == sys.executable and spec["env"] == {"WORKSHOP_SHARED": "/shared/records"}
    manager = tmp_path / "data/labextensions/@jupyter-widgets/jupyterlab-manager/package.json"
    assert json.loads(manager.read_text())["name"] == "@jupyter-widgets/jupyterlab-manager"


def test_no_space_is_one_sentence(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    environment = {**os.environ, "JUPYTER_DATA_DIR": str(tmp_path / "data"), "HOME": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "workshop", "kernel", "install"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and "→" in done.stderr
    assert not Path(tmp_path / "none").exists() or not any((tmp_path / "none").rglob("package.json"))

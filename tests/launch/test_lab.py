"""lab: what it ends is what was started through it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workshop.launch import records
from workshop.launch.local import lab, stopping

START = """import os, sys
from pathlib import Path
from workshop.launch import machine, records
from workshop.launch.local import supervise
from workshop.launch.local import Launch
name, engine = sys.argv[1:]
port, held = machine.take_port("127.0.0.1", 8900)
env = {**os.environ, "WORKSHOP_RECORD": str(records.path_of(name))}
supervise.start(Launch(name, "m", "m", "127.0.0.1", port, [sys.executable, engine, str(port), "m"], env,
                       records.home() / "logs" / name, held))"""


@pytest.mark.parametrize(("token", "ends"), [("this", True), ("another", False), (None, False)])
def test_a_server_of_another_terminal_outlives_the_lab(workshop_home, token, ends):
    """A kernel has its JupyterLab's token in its environment, and so has the watcher that it starts."""
    env = {key: value for key, value in os.environ.items() if key != "JUPYTER_TOKEN"}
    began = records.now()
    subprocess.run(
        [sys.executable, "-c", START, "a", str(Path(__file__).with_name("engine.py"))],
        check=True,
        env=env if token is None else {**env, "JUPYTER_TOKEN": token},
    )
    jupyter = subprocess.Popen(["sleep", "600"], start_new_session=True)
    said = []
    lab._end(lab.Lab(jupyter, "http://127.0.0.1:1/lab?token=this"), began, said.append)
    assert jupyter.returncode is not None and said == ["a is stopped."] * ends
    assert records.path_of("a").exists() != ends
    if not ends:
        stopping.stop("a")

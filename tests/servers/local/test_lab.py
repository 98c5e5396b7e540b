"""lab: what it ends is what was started through it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workshop import timestamps
from workshop.servers import records
from workshop.servers.local import lab, stopping

# A terminal that starts a server; what tests need is found as this process finds it.
START = "import sys; sys.path[:] = sys.argv[1:]; import small_server as s; from workshop.servers.local import supervise; supervise.start(s.launch())"


@pytest.mark.parametrize(("token", "ends"), [("this", True), ("another", False), (None, False)])
def test_a_server_of_another_terminal_outlives_the_lab(workshop_home, token, ends):
    """A kernel has its JupyterLab's token in its environment, and so has the watcher that it starts."""
    env = {key: value for key, value in os.environ.items() if key != "JUPYTER_TOKEN"}
    began = timestamps.now("milliseconds")
    subprocess.run(
        [sys.executable, "-c", START, *sys.path],
        check=True,
        env=env if token is None else {**env, "JUPYTER_TOKEN": token},
    )
    jupyter = subprocess.Popen(["sleep", "600"], start_new_session=True)
    messages = []
    lab._end(lab.Lab(jupyter, "http://127.0.0.1:1/lab?token=this"), began, messages.append)
    assert jupyter.returncode is not None and messages == ["a is stopped."] * ends
    assert records.path_of("a").exists() != ends
    if not ends:
        stopping.stop("a")

"""lab: what it ends is what was started through it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from workshop.lab import session
from workshop.servers import records
from workshop.servers.local import stopping

# A terminal that starts a server; what tests need is found as this process finds it.
START = "import sys; sys.path[:] = sys.argv[1:]; import small_server as s; from workshop.servers.local import supervise; supervise.start(s.launch())"


@pytest.mark.parametrize(("lab_here", "ends"), [("this", True), ("another", False), (None, False)])
def test_a_server_of_another_terminal_outlives_the_lab(workshop_home, monkeypatch, lab_here, ends):
    """Kernels and terminals of a lab have its mark in their environment, and write it into records."""
    env = {key: value for key, value in os.environ.items() if key != records.LAB_VARIABLE}
    subprocess.run(
        [sys.executable, "-c", START, *sys.path],
        check=True,
        env=env if lab_here is None else {**env, records.LAB_VARIABLE: lab_here},
    )
    monkeypatch.setenv(records.LAB_VARIABLE, "this")
    jupyter = subprocess.Popen(["sleep", "600"], start_new_session=True)
    messages = []
    session._end(session.Lab(jupyter, "http://127.0.0.1:1/lab?token=x"), messages.append)
    assert jupyter.returncode is not None and messages == ["a is stopped."] * ends
    assert records.path_of("a").exists() != ends
    if not ends:
        stopping.stop("a")

"""lab: what it ends is what was started through it."""

from __future__ import annotations

import subprocess
import sys

from workshop.lab import session
from workshop.servers import records
from workshop.servers.local import stopping

# A process that starts servers, each with the mark of a lab; what tests need is found as this process finds it.
START = """
import os, sys
marks, sys.path[:] = dict(pair.split("=") for pair in sys.argv[1].split()), sys.argv[2:]
import small_server
from workshop.servers import records
from workshop.servers.local import supervise
for name, mark in marks.items():
    os.environ[records.LAB_VARIABLE] = mark
    supervise.start(small_server.launch(name))
"""


def test_a_server_of_another_terminal_outlives_the_lab(workshop_home, monkeypatch):
    """Kernels and terminals of a lab have its mark in their environment, and write it into records."""
    marks = "a=this b=another c="
    subprocess.run([sys.executable, "-c", START, marks, *sys.path], check=True)
    monkeypatch.setenv(records.LAB_VARIABLE, "this")
    jupyter = subprocess.Popen(["sleep", "600"], start_new_session=True)
    messages = []
    try:
        session._end(session.Lab(jupyter, "http://127.0.0.1:1/lab?token=x"), messages.append)
        assert jupyter.returncode is not None and messages == ["a is stopped."]
        assert [records.path_of(name).exists() for name in "abc"] == [False, True, True]
    finally:
        for name in "bc":
            stopping.stop(name)

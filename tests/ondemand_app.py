"""The Batch Connect app as OnDemand runs it: its templates rendered, its session started, its page."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

APP = Path(__file__).parents[1] / "slurm/ondemand"
PASSWORD = "open-sesame"


@dataclass(frozen=True)
class Session:
    """A running session.

    Attributes:
        port: JupyterLab's, on 127.0.0.1.
        folder: the session's own; `home` is the learner's home folder.
        page: the HTML of OnDemand's button.
    """

    port: int
    folder: Path
    home: Path
    log: Path
    page: str
    process: subprocess.Popen


def render(name: str, **values: str) -> str:
    """Stand for Ruby's ERB: each tag names one value (a method's name, before any call on it)."""

    def value(match: re.Match) -> str:
        words = match[1].strip().removeprefix("context.")
        return values[re.match(r"\w+", words)[0]]

    return re.sub(r"<%=(.*?)%>", value, (APP / name).read_text())


@contextlib.contextmanager
def session(folder: Path, first: Callable[[], None] | None = None) -> Iterator[Session]:
    """Run before.sh and script.sh as Batch Connect does, with a home of the learner's own.

    Args:
        first: called in the new process before bash starts, such as to leave it one CPU.
    """
    course, here, home = folder / "course", folder / "session", folder / "home"
    for each in (course, here, home):
        each.mkdir(exist_ok=True)
    for name in ("workshop", "notebooks", "slurm"):
        (course / name).symlink_to(APP.parents[1] / name)
    (course / ".venv").symlink_to(sys.prefix)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = (
        f"find_port() {{ echo {port}; }}; create_passwd() {{ echo {PASSWORD}; }}; host=127.0.0.1\n"
        + render("template/before.sh.erb", course=str(course))
        + "export host\n(\n"
        + render("template/script.sh.erb", course=str(course), class_folder=str(folder)).replace(
            "--no-browser", "--no-browser --allow-root"
        )
        + "\n)"
    )  # tests of root run as root
    (folder / "job.sh").write_text(script)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            ["bash", str(folder / "job.sh")],
            cwd=here,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=first,
            env={"PATH": "/usr/bin:/bin", "HOME": str(home), "LANG": "C.UTF-8"},
        )
    try:
        yield Session(
            port,
            here,
            home,
            folder / "log",
            render("view.html.erb", host="127.0.0.1", port=str(port), password=PASSWORD),
            process,
        )
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(20)

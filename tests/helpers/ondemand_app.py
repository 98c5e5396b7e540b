"""The Batch Connect app as OnDemand runs it: its templates rendered, its session started, its page."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from needs import lacking

APP = Path(__file__).parents[2] / "slurm/ondemand"
PASSWORD = "open-sesame"
# As the dashboard does: a value of the form is a method in submit.yml.erb and view.html.erb, and one of `context` in
# the files of template/.
ERB = """
require "erb"
require "json"
require "ostruct"
values = JSON.parse($stdin.read)
place = OpenStruct.new(values)
place.context = OpenStruct.new(values)
print ERB.new(File.read(ARGV[0]), trim_mode: "-").result(place.instance_eval { binding })
"""


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


def render(name: str, **values: str | None) -> str:
    """Return a template as Open OnDemand renders it: by Ruby's ERB with trim mode "-".

    Args:
        values: what the form, or the page that connects, knows; ENV is the dashboard's WORKSHOP_SHARED.
    """
    ruby = shutil.which("ruby") or lacking(
        "ruby is not installed: Open OnDemand's templates are Ruby's"
    )
    environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    shared = values.pop("ENV", None)
    if shared is not None:
        environment["WORKSHOP_SHARED"] = shared
    done = subprocess.run(
        [ruby, "--disable-gems", "-e", ERB, str(APP / name)],
        input=json.dumps(values).encode(),
        capture_output=True,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextlib.contextmanager
def session(folder: Path, first: Callable[[], None] | None = None) -> Iterator[Session]:
    """Run before.sh and script.sh as Batch Connect does, with a home of the learner's own.

    Args:
        first: called in the new process before bash starts, such as to leave it one CPU.
    """
    course, here, home = folder / "course", folder / "session", folder / "home"
    for directory in (course, here, home):
        directory.mkdir(exist_ok=True)
    for name in ("workshop", "notebooks", "slurm"):
        (course / name).symlink_to(APP.parents[1] / name)
    (course / ".venv").symlink_to(sys.prefix)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # tests of root run as root
    script = (
        f"find_port() {{ echo {port}; }}; create_passwd() {{ echo {PASSWORD}; }}; host=127.0.0.1\n"
        + render("template/before.sh.erb", course=str(course))
        + "export host\n(\n"
        + render("template/script.sh.erb", course=str(course), class_folder=str(folder)).replace(
            "--no-browser", "--no-browser --allow-root"
        )
        + "\n)"
    )
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

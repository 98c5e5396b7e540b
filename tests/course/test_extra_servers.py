"""Servers that a notebook starts beside the learner's own: what becomes of them when its kernel ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workshop.course.notebooks import extra_servers
from workshop.servers import records

# A kernel that starts a small engine under the name, and ends without stopping it.
KERNEL = """
import sys; sys.path[:] = sys.argv[2:]
import small_server
from workshop.servers import local
from workshop.course.notebooks import extra_servers
local.prepare = lambda **how: small_server.launch(how["name"])
print(extra_servers.start(sys.argv[1]).pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def kernel(workshop_home):
    """Starts such kernels; they go on until they are told to end."""
    started = []

    def start(name: str = "lab") -> subprocess.Popen:
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", KERNEL, name, *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        started[-1].server = int(started[-1].stdout.readline())
        return started[-1]

    yield start
    for process in started:
        end(process)


def end(kernel: subprocess.Popen) -> None:
    """A kernel ends in order, as at a restart."""
    kernel.stdin.close()
    kernel.wait(60)


def test_it_ends_with_its_kernel(kernel):
    process = kernel()
    assert records.read("lab").pid == process.server
    end(process)
    assert not records.path_of("lab").exists()


def test_it_is_not_ended_by_a_kernel_whose_server_it_has_followed(kernel):
    first, second = kernel(), kernel()
    end(first)
    assert records.read("lab").pid == second.server


def test_stopping_what_does_not_run_is_said(workshop_home):
    assert extra_servers.stop("lab") == "lab does not run."

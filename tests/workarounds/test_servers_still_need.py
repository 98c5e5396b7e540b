"""Faults of vLLM that only a running server shows: unpatched, it still has them. A failure here is good news."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from needs import lacking

from workshop import python_process
from workshop.teaching_model import FOLDER as TEACHING_FOLDER
from workshop.vllm_package import installed

pytestmark = pytest.mark.upstream
READY_WITHIN_S = 600.0
SURVIVES_S = 10.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # or two workers do not start on a machine with one NUMA node
}
MAIN = """
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main
    main()
"""


@contextlib.contextmanager
def unpatched_server(folder: Path, *flags: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """Run vLLM's own command line on the teaching model; give the process and its address once it is ready."""
    if installed()[0] != "vllm-cpu":
        lacking("vllm-cpu is not installed: make test installs it on Linux")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = folder / "unpatched.py"
    program.write_text(MAIN)
    command = [sys.executable, str(program), "serve", str(TEACHING_FOLDER)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", *flags]
    command += ["--kv-cache-memory-bytes", str(2**26), "--max-model-len", "512"]
    environment = python_process.environment(ENVIRONMENT)
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + READY_WITHIN_S
        while not answers(f"{address}/health"):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
            time.sleep(0.5)
        yield server, address
    finally:
        for process in session(server.pid):
            with contextlib.suppress(psutil.Error):
                process.kill()
        server.wait()


def answers(url: str, body: bytes | None = None) -> bool:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status == 200
    except OSError:
        return False


def session(leader: int) -> list[psutil.Process]:
    """Return the running processes of a session."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            running = process.status() != psutil.STATUS_ZOMBIE
            if running and os.getsid(process.pid) == leader:
                members.append(process)
    return members


def test_orphaned_engine(tmp_path):
    """Fails once the engine core ends with its API server (vllm-project/vllm#55846)."""
    with unpatched_server(tmp_path) as (server, _):
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
        time.sleep(SURVIVES_S)  # nothing to wait for: we look at what did not end
        assert session(server.pid)


def test_eager_cpu_pipeline(tmp_path):
    """Fails once an eager pipeline of two stages answers on a CPU."""
    with unpatched_server(tmp_path, "--pipeline-parallel-size", "2") as (_, address):
        body = b'{"prompt": "Once upon a time", "max_tokens": 2}'
        assert not answers(f"{address}/v1/completions", body)

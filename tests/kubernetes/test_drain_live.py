"""SIGTERM ends vLLM at once, or after its answers with the argument of the component drain: measured on the CPU.

Sentences about vLLM alone: they run when its version changes. That the component has the argument: test_many_users.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from workshop.servers.host.machine import free_port
from workshop.servers.local import TEACHING_FOLDER

pytestmark = pytest.mark.upstream
READY_S = 600
TOKENS = 500
ON_THE_CPU = ["--enforce-eager", "--kv-cache-memory-bytes=67108864"]


@dataclass
class Ending:
    """What clients saw of a server that got SIGTERM in the middle of an answer."""

    tokens: int = 0
    finish_reason: str = ""
    late: list[int] = field(default_factory=list)  # HTTP status of later requests; 0: no connection
    health: list[int] = field(default_factory=list)
    exit_code: int | None = None


def end_in_the_middle(folder: Path, port: int, *arguments: str) -> Ending:
    """Start a server, send SIGTERM while it answers, and return what was seen."""
    variables = {
        **os.environ,
        "PYTHONSAFEPATH": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    command = [sys.executable, "-m", "workshop.servers.vllm_main", "serve", str(TEACHING_FOLDER)]
    command += ["--host=127.0.0.1", f"--port={port}", *ON_THE_CPU, *arguments]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, env=variables, cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        return _watch(server, f"http://127.0.0.1:{port}")
    finally:
        if server.poll() is None:
            family = [
                *psutil.Process(server.pid).children(recursive=True),
                psutil.Process(server.pid),
            ]
            for process in family:
                process.kill()
            server.wait()


def _watch(server: subprocess.Popen, address: str) -> Ending:
    until = time.monotonic() + READY_S
    while status(f"{address}/health") != 200:
        assert server.poll() is None and time.monotonic() < until
        time.sleep(1)
    ending = Ending()
    answer = threading.Thread(target=_stream, args=(address, ending))
    answer.start()
    while ending.tokens < 20:
        assert answer.is_alive()
        time.sleep(0.05)
    os.kill(server.pid, signal.SIGTERM)
    time.sleep(0.5)
    while answer.is_alive():
        ending.late.append(status(f"{address}/v1/completions", post=True))
        ending.health.append(status(f"{address}/health"))
        time.sleep(0.2)
    ending.exit_code = server.wait(120)
    return ending


def _stream(address: str, ending: Ending) -> None:
    body = {
        "model": str(TEACHING_FOLDER),
        "prompt": "Once",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    try:
        with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=20) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        ending.finish_reason = "error"
                        return
                    choice = event["choices"][0]
                    ending.tokens += 1
                    ending.finish_reason = choice["finish_reason"] or ending.finish_reason
    except httpx.HTTPError:
        ending.finish_reason = "cut"


def status(url: str, post: bool = False) -> int:
    try:
        if post:
            body = {"model": str(TEACHING_FOLDER), "prompt": "Hi", "max_tokens": 2}
            return httpx.post(url, json=body, timeout=5).status_code
        return httpx.get(url, timeout=10).status_code
    except httpx.HTTPError:
        return 0


def test_without_drain_sigterm_aborts_the_answer(tmp_path):
    ending = end_in_the_middle(tmp_path, free_port("127.0.0.1"))
    assert ending.tokens < TOKENS
    assert ending.finish_reason in ("abort", "cut", "error")
    assert ending.exit_code == 0


def test_with_the_components_argument_the_answer_is_completed_and_new_requests_fail(tmp_path):
    ending = end_in_the_middle(tmp_path, free_port("127.0.0.1"), "--shutdown-timeout=600")
    # all TOKENS of it; a line of the stream may hold several
    assert ending.finish_reason == "length"
    # A probe of /health would notice nothing; that is why preStop waits first.
    assert set(ending.late) <= {500, 0} and 500 in ending.late
    assert 200 in ending.health
    assert ending.exit_code == 0

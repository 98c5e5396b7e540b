"""A real engine that is stopped by SIGSTOP: what commands say of it, and how a batch ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import psutil
import pytest
from click.testing import CliRunner
from needs import lacking

from workshop import cli
from workshop.engine import metrics
from workshop.servers import hang, records
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
CLI = [sys.executable, "-P", "-m", "workshop"]
PATIENCE_S = 6
WORK_S = 4.0
ROWS = 24


@pytest.fixture
def server(workshop_home, vllm_is_imported):
    """The record of a server of the test's own."""
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    subprocess.run([*CLI, "serve", "--background", "--name", "h"], check=True, timeout=240)
    record = records.require("h")
    yield record
    for process in processes(record):
        process.send_signal(signal.SIGCONT)
    subprocess.run([*CLI, "stop", "h"], check=False, capture_output=True)


def processes(record) -> list[psutil.Process]:
    """The API process, and the engine's below it."""
    api = psutil.Process(record.pid)
    return [api, *api.children(recursive=True)]


def engine_core(record) -> psutil.Process:
    (engine,) = [
        child for child in processes(record)[1:] if "EngineCore" in " ".join(child.cmdline())
    ]
    return engine


def workshop(*arguments: str) -> str:
    """Run a command in this process, for which an engine shows work within WORK_S; return what it prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hang, "WORK_S", WORK_S)
        return CliRunner().invoke(cli.group, arguments).output


def state() -> str:
    (entry,) = json.loads(workshop("servers", "--json"))
    return entry["state"]


def test_a_stopped_engine_hangs_and_goes_on_when_it_may(server, tmp_path):
    rows, output = tmp_path / "in.txt", tmp_path / "out.jsonl"
    rows.write_text("".join(f"row {number}\n" for number in range(ROWS)))
    batch = [*CLI, "batch", str(rows), str(output), "--name", "h", "--patience", str(PATIENCE_S)]
    batch += ["--max-tokens", "120", "--sampling", '{"ignore_eos": true}']
    assert state() == "ready"

    # while requests run
    running = subprocess.Popen(batch, stderr=subprocess.PIPE, text=True)
    while (metrics.fetch(server.url, server.api_key).requests_running or 0) < 4:
        assert running.poll() is None
        time.sleep(0.05)
    engine_core(server).send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    message = running.communicate(timeout=60)[1]
    assert running.returncode == 1 and "hangs since" in message
    assert "nothing was computed" in message and "requests run" in message
    assert PATIENCE_S - 2 < time.monotonic() - stopped_at < PATIENCE_S + 20
    listed = workshop("servers")
    assert "✗ h" in listed and "hangs: " in listed and "nothing was computed" in listed
    assert "hangs: " in workshop("doctor")

    engine_core(server).send_signal(signal.SIGCONT)
    assert state() == "ready"
    assert subprocess.run(batch, timeout=240).returncode == 0
    assert len(output.read_text().splitlines()) == ROWS

    # while nothing runs, so that its own word is that nothing does
    engine_core(server).send_signal(signal.SIGSTOP)
    assert state() == "hangs"
    assert metrics.fetch(server.url, server.api_key).requests_running == 0
    engine_core(server).send_signal(signal.SIGCONT)
    assert state() == "ready"

    # all of it: nothing answers, which is another sentence
    for process in reversed(processes(server)):
        process.send_signal(signal.SIGSTOP)
    assert hang.of_record(records.require("h")).state == "unreachable"


def test_a_look_at_a_server_that_works_takes_one_token(server):
    before = metrics.fetch(server.url, server.api_key)
    began = time.monotonic()
    assert hang.of_record(server).state == "ready"
    assert time.monotonic() - began < 5
    after = metrics.fetch(server.url, server.api_key)
    assert after.generation_tokens_total - before.generation_tokens_total == 1

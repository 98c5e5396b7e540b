"""Signal 9 to `workshop batch --offline`: its engine goes with it, and gives back the memory that it held."""

from __future__ import annotations

import sys

import pytest
from needs import lacking

from workshop.servers.host import processes
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts


def test_signal_9_takes_the_engine_along(tmp_path, workshop_home):
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    (tmp_path / "in.txt").write_text("".join(f"Number {n} is\n" for n in range(5000)))
    log, output = tmp_path / "log", tmp_path / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "workshop",
        "batch",
        str(tmp_path / "in.txt"),
        str(output),
        "--offline",
    ]
    with processes.spawn(command, log.open("wb")) as batch:
        answered = processes.until(
            lambda: (output.exists() and output.stat().st_size) or batch.poll() is not None, 300
        )
        assert answered and batch.poll() is None, log.read_text()[-2000:]
        engine = processes.session(batch.pid, None, str(log))
        batch.kill()
    assert len(engine) >= 2
    assert processes.until(lambda: not processes.session(batch.pid, None, str(log)), 60), (
        "and no worker outlives its engine"
    )

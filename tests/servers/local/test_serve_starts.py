"""Real servers, started as a user starts them, and every way in which they end."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from needs import lacking
from planted_files import Planted

import workshop
from workshop import preloaded
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.vllm_package import installed

pytestmark = pytest.mark.starts
CLI = [sys.executable, "-P", "-m", "workshop"]
READY_S = 240


STARTS = ("usual start", "forked")  # the ways in which vLLM starts on a CPU


@pytest.fixture(autouse=True)
def own_home(request, workshop_home, vllm_is_imported, monkeypatch):
    """A home of the test's own; forked, where a test does not take both ways."""
    if not installed()[0]:
        lacking("vLLM is not installed: make test installs it on Linux")
    if getattr(request, "param", "forked") == "usual start":
        monkeypatch.delenv(preloaded.PATH_VARIABLE)
    yield
    for record in records.own():
        subprocess.run([*CLI, "stop", record.name], check=False, capture_output=True)


def session_of(pid: int) -> list[psutil.Process]:
    """The living processes of the session that `pid` led."""
    living = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == pid and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
        except (ProcessLookupError, psutil.Error):
            continue
    return living


def wait_until(true, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def engine_core(pid: int) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(pid).children()
        if "EngineCore" in " ".join(child.cmdline())
    )


def test_background_answers_and_a_killed_engine_is_explained(tmp_path):
    """Started among planted files, of which none runs, in whichever of vLLM's processes."""
    planted = Planted(tmp_path)
    done = subprocess.run(
        [*CLI, "serve", "--background", "--name", "mine"],
        capture_output=True,
        text=True,
        timeout=READY_S,
        cwd=planted.folder,
    )
    assert done.returncode == 0, done.stderr
    assert "answers at" in done.stdout and "100% ready" in done.stderr
    record = records.read("mine")
    assert record.state == "ready" and record.vllm_version == installed()[1]
    assert stat.S_IMODE(records.path_of("mine").stat().st_mode) == 0o600
    client = workshop.connect()
    assert client.complete("San Francisco is a", max_tokens=4, top_k=1).usage.completion_tokens == 4
    assert not planted.ran
    listed = json.loads(
        subprocess.run([*CLI, "servers", "--json"], capture_output=True, text=True).stdout
    )
    assert [server["name"] for server in listed] == ["mine"] and "api_key" not in listed[0]
    again = subprocess.run(
        [*CLI, "serve", "--name", "mine"], capture_output=True, text=True, timeout=120
    )
    assert again.returncode == 1 and "is ready at" in again.stderr

    engine_core(record.pid).kill()
    wait_until(
        lambda: records.read("mine").state == "failed",
        30,
        "the record must say that the engine is gone",
    )
    began = time.monotonic()
    with pytest.raises(WorkshopError, match="has failed"):
        client.complete("San Francisco is a", max_tokens=4)
    with pytest.raises(WorkshopError, match="has failed"):
        workshop.connect()
    assert time.monotonic() - began < 60, "nobody is left hanging"
    wait_until(lambda: not session_of(record.pid), 90, "nothing is left running")


def test_two_ranks_answer_as_one_does_and_end_with_each_other(client):
    serve = [*CLI, "serve", "--background", "--name", "pair", "--tensor-parallel-size", "2"]
    done = subprocess.run(serve, capture_output=True, text=True, timeout=READY_S)
    assert done.returncode == 0, done.stderr
    prompt = {"prompt": "San Francisco is a", "max_tokens": 16, "temperature": 0.0}
    pair = workshop.connect("pair")
    assert pair.complete(**prompt).choices[0].text == client.complete(**prompt).choices[0].text
    pid = records.read("pair").pid
    second_rank = next(
        process for process in session_of(pid) if "Worker_TP1" in " ".join(process.cmdline())
    )
    second_rank.kill()
    wait_until(lambda: records.read("pair").state == "failed", 60, "the record says the fault")
    wait_until(lambda: not session_of(pid), 90, "nothing is left running")


@pytest.mark.parametrize("own_home", ["usual start"], indirect=True)
def test_the_foreground_answers_and_ctrl_c_leaves_nothing(tmp_path):
    planted = Planted(tmp_path)
    process = subprocess.Popen(
        [*CLI, "serve", "--name", "front"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=planted.folder,
    )
    wait_until(
        lambda: (
            process.poll() is not None or getattr(records.read("front"), "state", "") == "ready"
        ),
        READY_S,
        "the server must become ready",
    )
    assert workshop.connect("front").complete("San", max_tokens=4).usage.completion_tokens == 4
    assert not planted.ran
    pid = records.read("front").pid
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "front is stopped" in output
    assert not records.path_of("front").exists() and not session_of(pid)


@pytest.mark.parametrize("own_home", STARTS, indirect=True)
def test_a_killed_watcher_takes_the_engine_with_it():
    process = subprocess.Popen(
        [*CLI, "serve", "--name", "orphan"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: getattr(records.read("orphan"), "pid", None), 120, "the engine must start")
    pid = records.read("orphan").pid
    wait_until(lambda: len(session_of(pid)) > 1, READY_S, "the engine has processes of its own")
    process.kill()
    process.wait()
    wait_until(lambda: not session_of(pid), 60, "the engine ends with its watcher")
    assert records.read("orphan").state == "failed"


REFUSED = {  # folder → (its config.json, what the sentence names)
    "torn": ("{", r"config\.json"),
    "unknown": (
        '{"architectures": ["NoSuchModel"], "model_type": "llama"}',
        "NoSuchModel|not supported",
    ),
}


def test_a_model_that_vllm_refuses_is_one_sentence_and_a_remedy(tmp_path):
    """All at once: vLLM takes its time to say no."""
    starts = {}
    for name, (config, _) in REFUSED.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
        command = [*CLI, "serve", str(tmp_path / name), "--background"]
        starts[name] = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    for name, start in starts.items():
        _, stderr = start.communicate(timeout=READY_S)
        assert start.returncode == 1
        assert re.search(REFUSED[name][1], stderr) and "→" in stderr and "Traceback" not in stderr
        record = records.read(name)
        assert record.state == "failed" and record.reason and not session_of(record.pid)

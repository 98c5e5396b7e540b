"""stop: what is ours ends, whole; a stranger that has its number does not; success is said only of a success."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import small_server
from small_server import launch

from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.host import processes
from workshop.servers.local import claims, scratch, stopping, supervise
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue

# A session whose leader is ended by a line on its standard input, and a process of it that stays; prints its number.
SESSION = """import os, signal, sys
child = os.fork()
if not child: signal.pause()
print(child, flush=True)
sys.stdin.readline()"""


@pytest.fixture(autouse=True)
def short_times(workshop_home, monkeypatch):
    monkeypatch.setattr(stopping, "START_TAKES_S", 0.5)
    monkeypatch.setattr(stopping, "WATCHER_TAKES_S", 1.0)


@pytest.fixture
def stranger():
    """A living leader of a session, and a process of that session."""
    leader = subprocess.Popen(
        [sys.executable, "-c", SESSION],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    leader.child = int(leader.stdout.readline())
    yield leader
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader.child, signal.SIGKILL)
    leader.kill()
    leader.wait()
    leader.stdin.close()
    leader.stdout.close()


def end_leader(leader: subprocess.Popen) -> None:
    leader.stdin.close()
    leader.wait()


def living(pid: int) -> bool:
    return processes.alive(pid, processes.started(pid) or -1)


def record(pid: int | None, **changes) -> ServerRecord:
    return small_server.record(pid=pid, **{"process_started": processes.started(pid), **changes})


def test_a_stranger_with_the_number_of_an_old_record_lives_on(stranger, subtests):
    for changes in [
        {"process_started": 1},
        {"process_started": 1, "state": "failed"},
        {"process_started": 1, "state": "starting"},
        {"process_started": None},
        {"process_started": None, "state": "failed"},
        {"boot_id": "another"},
        {"boot_id": "another", "state": "failed"},
    ]:
        with subtests.test(str(changes)):
            records.write(record(stranger.pid, **changes))
            assert "had failed" in stopping.stop("a")
            assert living(stranger.pid) and living(stranger.child)
            assert not records.path_of("a").exists()


def test_a_session_whose_leader_is_gone_may_be_a_strangers(stranger):
    """The number of a session is free for another once all of it have ended: the start of the leader tells nothing."""
    old = record(stranger.pid)
    records.write(old)
    end_leader(stranger)
    assert "had failed" in stopping.stop("a")
    assert living(stranger.child)


def test_what_a_dead_engine_left_is_ended_as_it_writes_to_its_log(tmp_path):
    log = tmp_path / "a.log"
    with log.open("wb") as log_file:
        leader = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            stdin=subprocess.PIPE,
            stdout=log_file,
            start_new_session=True,
        )
    while not log.read_text():
        time.sleep(0.01)
    records.write(record(leader.pid, log=str(log)))
    end_leader(leader)
    assert "had failed" in stopping.stop("a")
    assert not living(int(log.read_text()))


def test_a_server_of_another_machine_is_never_signalled_from_here(stranger, subtests):
    for state in ["ready", "starting", "failed"]:
        with subtests.test(state):
            records.write(record(stranger.pid, host="elsewhere", state=state))
            if state == "failed":
                assert "had failed" in stopping.stop("a")
            else:
                with pytest.raises(WorkshopError, match="runs on elsewhere, not on this machine"):
                    stopping.stop("a")
                assert records.path_of("a").exists()
            assert living(stranger.pid) and living(stranger.child)


def test_a_shared_record_is_no_reason_to_signal_or_write(stranger, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    own_record = record(stranger.pid, host="elsewhere")
    records.write(own_record)
    theirs = record(
        stranger.pid, process_started=1, started=own_record.started, log=str(records.path_of("a"))
    )
    monkeypatch.setattr(records, "path_of", lambda name, of=records.path_of: tmp_path / "a.json")
    records.write(theirs)
    monkeypatch.undo()
    monkeypatch.setenv("WORKSHOP_SHARED", str(tmp_path))
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "home"))
    assert [server.state for server in records.shared()] == ["failed"]
    assert records.read("a") == own_record and living(stranger.pid)


def test_a_stranger_in_the_middle_of_an_end_is_not_signalled(stranger):
    """The number passes to a stranger between the record and the signal: both are looked at through one handle."""
    born = processes.started(stranger.pid)
    assert not processes.send(stranger.pid, born + 1, signal.SIGKILL) and living(stranger.pid)
    assert not processes.send(2**22 + 1, 1, signal.SIGKILL)
    assert processes.send(stranger.pid, born, 0)


def test_a_start_time_is_exact_and_the_processs_own():
    own_start = processes.started(os.getpid())
    children = [
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    ]
    assert own_start == processes.started(os.getpid()) and all(
        processes.started(child.pid) > own_start for child in children
    )
    for child in children:
        child.communicate(b"\n")
        assert processes.started(child.pid) is None


@pytest.mark.parametrize("env", [{}, {"HELPER": "1"}, {"STUBBORN": "1", "HELPER": "1"}])
def test_stop_ends_all_of_a_server_and_says_so(env, monkeypatch):
    monkeypatch.setattr(stopping, "STOP_GRACE_S", 0.5)
    server = supervise.start(launch(**env))
    assert records.read("a") == server and processes.session(server.pid, server.process_started)
    assert stopping.stop("a") == "a is stopped."
    assert not processes.session(server.pid, server.process_started, server.log)
    left = {path.name for path in (records.home() / "servers").iterdir()}
    assert not left and scratch.of("a") is None


def test_stop_works_when_the_watcher_was_killed():
    # deaf to the signal that the kernel sends it then
    server = supervise.start(launch(STUBBORN="1"))
    watcher = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(watcher, signal.SIGKILL)
    stopping.STOP_GRACE_S, before = 0.5, stopping.STOP_GRACE_S
    try:
        assert stopping.stop("a") == "a is stopped."
    finally:
        stopping.STOP_GRACE_S = before
    assert not living(server.pid) and not records.path_of("a").exists() and scratch.of("a") is None


def test_an_end_that_nobody_asked_for_is_kept_as_a_failure():
    server = supervise.start(launch())
    processes.send(server.pid, server.process_started, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while records.stored("a").state != "failed":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "ended" in records.stored("a").reason


def test_a_server_that_does_not_end_is_not_said_to_be_stopped(stranger, monkeypatch):
    records.write(record(stranger.pid))
    monkeypatch.setattr(processes, "send", lambda *signal: True)
    for place, name in ((stopping, "STOP_GRACE_S"), (processes, "KILL_TAKES_S")):
        monkeypatch.setattr(place, name, 0.2)
    with pytest.raises(WorkshopError, match="does not end"):
        stopping.stop("a")
    assert records.read("a").state == "ready"


def test_another_users_server_is_one_sentence(stranger, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    records.write(record(stranger.pid))
    monkeypatch.setattr(processes, "send", refuse)
    with pytest.raises(WorkshopError, match="another user's"):
        stopping.stop("a")


def test_a_job_that_goes_on_is_not_said_to_be_cancelled(monkeypatch):
    monkeypatch.setattr(stopping, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr(slurm_queue, "cancel", lambda job: None)
    job = slurm_queue.Job("7", "big", "RUNNING")
    monkeypatch.setattr(slurm_queue, "find", lambda number: job)
    monkeypatch.setattr(slurm_queue, "available", lambda: False)
    records.write(record(None, where="slurm", job_id="7"))
    with pytest.raises(WorkshopError, match="is RUNNING still"):
        stopping.stop("a")
    assert records.path_of("a").exists()
    job = replace(job, state="CANCELLED")
    assert "cancelled" in stopping.stop("a") and not records.path_of("a").exists()


def test_stop_waits_for_a_server_that_is_about_to_have_a_process(stranger):
    claim = claims.claim(record(None, state="starting"))
    with pytest.raises(WorkshopError, match="Another process is starting"):
        stopping.stop("a")
    threading.Timer(
        0.2, lambda: claim.write(pid=stranger.pid, process_started=processes.started(stranger.pid))
    ).start()
    ended = threading.Timer(0.5, stranger.wait)  # its parent is this test
    ended.start()
    assert stopping.stop("a") == "a is stopped."
    ended.join()
    assert not living(stranger.pid)
    claim.give_back()


def test_a_newer_server_of_the_name_keeps_its_record(stranger, monkeypatch):
    """Between the end of the old one and the removal of its record, another may have the name."""
    old = record(stranger.pid, process_started=1, state="failed")
    new = replace(
        old,
        api_key="new",
        started="2026-11-21T10:00:00.000+00:00",
        state="ready",
        pid=os.getpid(),
        process_started=processes.started(os.getpid()),
    )
    records.write(new)
    stopping._clear(old)
    assert records.read("a") == new


def test_all_that_have_failed_are_forgotten_in_one_go(stranger):
    """A server that runs stays, and so does a stranger who has the number of one that failed."""
    records.write(record(os.getpid(), name="runs"))
    for index, name in enumerate(("one", "two", "three")):
        started = f"2026-11-2{index}T00:00:00.000+00:00"
        old = record(stranger.pid, name=name, state="failed", started=started, process_started=1)
        records.write(old)
    records.write(record(2**22, name="died", started="2026-11-28T00:00:00.000+00:00"))
    assert stopping.stop_failed() == ["one", "two", "three", "died"]
    assert [server.name for server in records.own()] == ["runs"]
    assert living(stranger.pid) and stopping.stop_failed() == []


def test_a_failed_record_whose_job_goes_on_is_not_forgotten(monkeypatch):
    """Only it has the key."""
    records.write(record(None, name="job", where="slurm", job_id="7", state="failed"))
    monkeypatch.setattr(stopping, "_job_goes_on", lambda server: True)
    assert stopping.stop_failed() == [] and records.stored("job") is not None

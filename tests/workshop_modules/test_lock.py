"""The lock holds one at a time, also where flock(2) does nothing, and ends however its holder ends."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from workshop.errors import WorkshopError
from workshop.guard import keys
from workshop.lock import Busy, is_held, locked

FORK = multiprocessing.get_context("fork")
BUSY = Busy("It is busy.", "Wait.")
WAIT_S = 60.0


def let_everybody_in(*_):
    return None


def no_lock_at_all(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def not_implemented(*_):
    raise OSError(errno.ENOSYS, "Function not implemented")


FLOCK = {
    "works": fcntl.flock,
    "does nothing": let_everybody_in,
    "is refused": no_lock_at_all,
    "is not implemented": not_implemented,
}


@pytest.fixture(params=FLOCK)
def flock(request, monkeypatch) -> str:
    """What flock(2) does in this test and in the processes that it forks."""
    monkeypatch.setattr(fcntl, "flock", FLOCK[request.param])
    return request.param


def in_processes(function, count: int, *arguments) -> None:
    running = [FORK.Process(target=function, args=(number, *arguments)) for number in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
        assert process.exitcode == 0


def add_to_a_number(_, lock: Path, number: Path, times: int) -> None:
    for _ in range(times):
        with locked(lock, wait_s=WAIT_S):
            number.write_text(str(int(number.read_text()) + 1))


def test_nothing_that_is_read_and_written_back_is_lost(flock, tmp_path, recwarn):
    (tmp_path / "number").write_text("0")
    in_processes(add_to_a_number, 5, tmp_path / "lock", tmp_path / "number", 20)
    assert (tmp_path / "number").read_text() == "100"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "number"]
    assert not recwarn.list and not (tmp_path / "lock").stat().st_size


def add_and_revoke(number: int, turns: int) -> None:
    for turn in range(turns):
        keys.add(f"learner-{number}-{turn}")
    for turn in range(0, turns, 2):
        keys.revoke(f"learner-{number}-{turn}")


def test_80_keys_and_40_revocations_are_all_kept(flock, workshop_home):
    in_processes(add_and_revoke, 8, 10)
    entries = keys.listed()
    assert len(entries) == 80 and sum(bool(entry["revoked"]) for entry in entries) == 40


def test_threads_of_one_process_exclude_each_other(flock, tmp_path):
    inside = []

    def work():
        for _ in range(10):
            with locked(tmp_path / "lock", wait_s=WAIT_S):
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not inside and not is_held(tmp_path / "lock")


HOLD = """
import fcntl, sys
from pathlib import Path
if sys.argv[2] != "works":
    fcntl.flock = lambda *_: None
from workshop.lock import locked
with locked(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.read()"""


@pytest.mark.parametrize("flock", ["works", "does nothing"], indirect=True)
def test_a_lock_is_kept_by_a_living_holder_and_freed_by_kill_9(flock, tmp_path):
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), flock],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "mine\n"
    holder.send_signal(signal.SIGSTOP)
    assert is_held(path), "a process that is stopped lives"
    with pytest.raises(Busy, match=r"It is busy\.") as refused, locked(path, BUSY, wait_s=0.0):
        pass
    if flock != "works":
        assert f"lock.holder' could not be acquired. If process {holder.pid} has ended, remove" in (
            refused.value.remedy
        )
    holder.kill()
    holder.communicate()
    assert not is_held(path)
    with locked(path, wait_s=0.0):
        assert is_held(path)


def marker(pid: int, host: str) -> str:
    """Return what filelock's SoftFileLock writes: process and machine, each on a line."""
    return f"{pid}\n{host}\n"


def test_a_holder_on_another_machine_keeps_its_lock_and_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", let_everybody_in)
    holder = tmp_path / "lock.holder"
    holder.write_text(marker(2**22 + 1, "node-7"))
    with pytest.raises(Busy) as refused, locked(tmp_path / "lock", BUSY, wait_s=0.1):
        pass
    assert "pid 4194305 on node-7" in refused.value.remedy and str(holder) in refused.value.remedy
    assert holder.read_text() == marker(2**22 + 1, "node-7")


def test_a_file_of_a_lock_without_a_holder_is_kept_and_named(monkeypatch, tmp_path):
    """One is left where a process dies between the making of the file and its first line."""
    monkeypatch.setattr(fcntl, "flock", let_everybody_in)
    (tmp_path / "lock.holder").touch()
    with pytest.raises(Busy) as refused, locked(tmp_path / "lock", BUSY, wait_s=0.1):
        pass
    assert refused.value.remedy.endswith("If its process has ended, remove the file.")
    assert (tmp_path / "lock.holder").exists()


def test_a_number_that_was_given_to_another_process_is_not_the_holder(monkeypatch, tmp_path):
    monkeypatch.setattr(fcntl, "flock", let_everybody_in)
    with locked(tmp_path / "lock"):
        text = (tmp_path / "lock.holder").read_text()
    assert text.startswith(marker(os.getpid(), socket.gethostname()).strip())
    *same, start = text.splitlines()
    (tmp_path / "lock.holder").write_text("\n".join([*same, str(int(start) - 1), ""]))
    assert not is_held(tmp_path / "lock")


def test_a_fork_has_no_lock_of_its_parent(flock, tmp_path):
    with locked(tmp_path / "lock"):
        in_processes(lambda _: is_held(tmp_path / "lock") or os._exit(1), 1)
        assert is_held(tmp_path / "lock")
    assert not is_held(tmp_path / "lock")


@pytest.mark.parametrize("code", [errno.EROFS, errno.ENOSPC, errno.EACCES])
def test_a_disk_that_cannot_be_written_is_one_sentence(monkeypatch, tmp_path, code):
    def refuse(path, *_):
        raise OSError(code, os.strerror(code), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        assert not is_held(tmp_path / "lock")
        with (
            pytest.raises(WorkshopError, match=os.strerror(code)) as refused,
            locked(tmp_path / "x"),
        ):
            pass
    assert not isinstance(refused.value, Busy) and "WORKSHOP_HOME" in refused.value.remedy


def test_in_a_page_which_is_one_process_there_is_no_filelock(monkeypatch, tmp_path):
    """Pyodide's fcntl has no flock, and its packages no filelock."""
    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.setitem(sys.modules, "filelock", None)
    with locked(tmp_path / "lock"):
        assert not list(tmp_path.iterdir())

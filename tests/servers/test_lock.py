"""The lock holds one at a time, also where flock(2) does nothing, and ends however its holder ends."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from workshop.servers import lock, marker
from workshop.servers.guard import keys
from workshop.servers.lock import Lock
from workshop.servers.marker import Holder, Marker

FORK = multiprocessing.get_context("fork")


def no_lock_at_all(*_):
    raise OSError(errno.ENOLCK, "No locks available")


@pytest.fixture(params=["works", "does nothing", "is refused"])
def flock(request, monkeypatch) -> str:
    """What flock(2) does in this test and in the processes that it forks."""
    if request.param == "does nothing":
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    if request.param == "is refused":
        monkeypatch.setattr(fcntl, "flock", no_lock_at_all)
    return request.param


@pytest.fixture
def no_flock(monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)


@pytest.fixture
def no_links(monkeypatch):
    """A file system that has no symbolic links either."""

    def refuse(*_, **__):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", refuse)


def in_processes(function, count: int, *arguments) -> None:
    running = [FORK.Process(target=function, args=(number, *arguments)) for number in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
        assert process.exitcode == 0


def add_to_a_number(_, lock: Path, number: Path, times: int) -> None:
    for _ in range(times):
        with Lock(lock).taken(tries=10_000) as free:
            assert free
            number.write_text(str(int(number.read_text()) + 1))


def test_nothing_that_is_read_and_written_back_is_lost(flock, tmp_path):
    (tmp_path / "number").write_text("0")
    in_processes(add_to_a_number, 5, tmp_path / "lock", tmp_path / "number", 20)
    assert (tmp_path / "number").read_text() == "100"
    assert [path.name for path in tmp_path.iterdir()] == ["number"], (
        "the locks leave nothing behind"
    )


def test_nothing_is_lost_where_the_marker_is_a_file(no_flock, no_links, tmp_path):
    (tmp_path / "number").write_text("0")
    in_processes(add_to_a_number, 4, tmp_path / "lock", tmp_path / "number", 10)
    assert (tmp_path / "number").read_text() == "40"


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
            with Lock(tmp_path / "lock").taken(tries=10_000) as free:
                assert free
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not Lock(tmp_path / "lock").is_held()


HOLD = """
import fcntl, sys
from pathlib import Path
if sys.argv[2] != "works":
    fcntl.flock = lambda *_: None
from workshop.servers.lock import Lock
assert Lock(Path(sys.argv[1])).take()
print("mine", flush=True)
sys.stdin.read()"""


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
    assert not Lock(path).take(tries=2) and Lock(path).is_held(), "a process that is stopped lives"
    if flock != "works":
        assert f"Process {holder.pid} on" in Lock(path).who()
    holder.kill()
    holder.communicate()
    assert not Lock(path).is_held()
    lock = Lock(path)
    assert lock.take(tries=2)
    lock.give_back()
    assert not list(tmp_path.iterdir())


def left_over(path: Path, **changes) -> Holder:
    """Make the marker of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = replace(
        Holder.this_process(),
        pid=process.pid,
        start=marker.processes.started(process.pid),
        **changes,
    )
    process.communicate()
    assert Marker(path)._make(ended)
    return ended


def take_once(_, path: Path, go, taken) -> None:
    go.wait()
    if Marker(path).take():
        taken.put(os.getpid())
    go.wait()  # a holder that ends gives up its marker


def test_of_many_who_see_a_left_over_marker_one_takes_it(tmp_path):
    for turn in range(5):
        path = tmp_path / str(turn)
        left_over(path)
        taken = FORK.Queue()
        in_processes(take_once, 6, path, FORK.Barrier(6), taken)
        taken.get(timeout=10)
        assert taken.empty()


def test_one_who_died_while_removing_a_marker_is_removed_as_well(tmp_path):
    path = tmp_path / "lock.holder"
    ended = left_over(path)
    again = left_over(tmp_path / f"lock.holder.{ended.token}")
    left_over(tmp_path / f"lock.holder.{ended.token}.{again.token}")
    assert Marker(path).take()
    assert [file.name for file in tmp_path.iterdir()] == ["lock.holder"]


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({}, True),
        ({"host": "node-7", "boot": "another"}, False),
        ({"boot": "another"}, True),  # this machine was restarted
        ({"boot": "another", "machine": "another"}, False),  # two machines of one name
        ({"boot": "another", "machine": ""}, False),
        ({"processes": "pid:[1]"}, False),  # a container on this machine
    ],
)
def test_only_a_holder_that_has_certainly_ended_loses_its_lock(
    no_flock, tmp_path, monkeypatch, changes, ended
):
    own = Holder.this_process()
    monkeypatch.setattr(
        Holder,
        "this_process",
        lambda: replace(own, machine="m1", pid=os.getpid(), token=os.urandom(4).hex()),
    )
    left_over(tmp_path / "lock.holder", **changes)
    lock = Lock(tmp_path / "lock")
    assert lock.is_held() is not ended
    assert lock.take(tries=2) is ended
    if not ended:
        assert "remove" in lock.who() and "lock.holder" in lock.who()


def test_a_number_that_was_given_to_another_process_is_not_the_holder(no_flock, tmp_path):
    own = Holder.this_process()
    Marker(tmp_path / "lock.holder")._make(replace(own, start=own.start - 1))
    assert Lock(tmp_path / "lock").take(tries=1)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pid": 1}', "x" * 200])
def test_a_marker_that_nobody_understands_is_kept_and_named(tmp_path, text):
    (tmp_path / "lock.holder").write_text(text)
    lock = Lock(tmp_path / "lock")
    assert not lock.take(tries=2) and "lock.holder" in lock.who()
    assert (tmp_path / "lock.holder").read_text() == text


def test_a_child_takes_the_lock_over(no_flock, tmp_path):
    path = tmp_path / "lock"
    lock = Lock(path)
    assert lock.take()

    def child(_):
        inherited = Lock(path, os.dup(lock.descriptor))
        assert Marker(tmp_path / "lock.holder").holder().pid == os.getpid()
        inherited.give_back()

    in_processes(child, 1)
    lock.hand_over()
    assert not Lock(path).is_held() and not list(tmp_path.iterdir())


def test_a_marker_says_who_holds_it(no_flock, tmp_path):
    with Lock(tmp_path / "lock").taken() as free:
        assert free
        holder = json.loads(os.readlink(tmp_path / "lock.holder"))
        assert holder["pid"] == os.getpid() and holder["start"]
        assert Lock(tmp_path / "lock").is_held()


def test_an_fcntl_without_flock_is_a_system_without_locks(monkeypatch, tmp_path):
    """Pyodide's fcntl has none."""
    monkeypatch.delattr(fcntl, "flock")
    with (tmp_path / "file").open("w") as file:
        assert lock.flock(file.fileno())

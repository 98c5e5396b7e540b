"""Two starts at one moment: one server, one record, and one sentence for the other; a dead claim blocks nobody."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_server import launch, record

from workshop.errors import WorkshopError
from workshop.lock import Busy, is_held
from workshop.servers import records
from workshop.servers.host import machine, processes
from workshop.servers.local import claims, stopping, supervise
from workshop.servers.records import ServerRecord

# A process that takes the name `a` and then does nothing, until its standard input ends.
HOLDER = """import sys
from workshop.servers import records
from workshop.servers.local import claims
from workshop.servers.local import supervise
from workshop.servers.local import Launch
from pathlib import Path
launch = Launch("a", "m", "m", "127.0.0.1", 1, [], {}, Path("log"))
claim = claims.claim(supervise.new_record(launch))
print("mine", flush=True)
sys.stdin.read()"""


@pytest.fixture
def stops(workshop_home):
    """Stop what was started."""
    yield
    for server in records.own():
        stopping.stop(server.name)


def at_once(*calls) -> list:
    """Return what each call returned or raised; all begin at one moment."""
    gate = threading.Barrier(len(calls))

    def call_at_the_gate(call):
        gate.wait()
        try:
            return call()
        except WorkshopError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call_at_the_gate, calls))


@pytest.mark.parametrize("flock", ["works", "does nothing"])
def test_one_of_many_claims_on_a_name_wins(workshop_home, monkeypatch, flock):
    if flock != "works":
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    for _ in range(3):
        got = at_once(*[lambda: claims.claim(record(state="starting"))] * 8)
        winners = [result for result in got if isinstance(result, claims.Claim)]
        assert len(winners) == 1
        assert all("'a'" in str(result) for result in got if result not in winners)
        assert records.stored("a") == winners[0].record
        winners[0].forget()
        winners[0].give_back()
        assert not list((workshop_home / "servers").iterdir())


def test_two_starts_in_the_background_give_one_server_and_one_sentence(stops):
    both = at_once(lambda: supervise.start(launch()), lambda: supervise.start(launch()))
    server = next(result for result in both if isinstance(result, ServerRecord))
    refused = next(result for result in both if isinstance(result, WorkshopError))
    assert re.search(
        "A server called 'a' is (starting|ready) at|starting or stopping", refused.message
    )
    assert records.read("a") == server and supervise.answers(server)


def test_a_start_in_the_foreground_loses_to_one_in_the_background(stops):
    server = supervise.start(launch())
    with pytest.raises(WorkshopError, match="is ready at"):
        supervise.run(launch())
    assert records.read("a") == server and supervise.answers(server)


def test_a_claim_lasts_as_long_as_its_holder_and_no_longer(workshop_home):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "mine\n"
    assert records.read("a").state == "starting"
    with pytest.raises(WorkshopError, match="is starting at"):
        claims.claim(record(state="starting"))
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert "before its engine was started" in records.read("a").reason
    claims.claim(record(state="starting")).give_back()


def test_a_server_keeps_its_name_where_flock_does_nothing(stops, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    watcher = multiprocessing.get_context("fork").Process(target=supervise.run, args=(launch(),))
    watcher.start()
    assert processes.until(lambda: [server.name for server in records.ready()] == ["a"], 60.0)
    holder = records.path_of("a", ".lock.holder")
    assert holder.read_text().startswith(f"{watcher.pid}\n")
    with pytest.raises(WorkshopError, match="is ready at"):
        supervise.start(launch())
    stopping.stop("a")
    watcher.join(10)
    assert watcher.exitcode == 0 and not list(holder.parent.iterdir())


def test_a_watcher_that_is_killed_gives_the_name_back(workshop_home):
    server = supervise.start(launch())
    watcher = int(Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert is_held(records.path_of("a", ".lock"))
    os.kill(watcher, signal.SIGKILL)
    while processes.alive(server.pid, server.process_started):  # the kernel tells the engine
        signal.sigtimedwait([], 0.05)
    assert records.read("a").state == "failed"
    again = supervise.start(launch())
    assert again.pid != server.pid
    stopping.stop("a")


def test_a_failed_start_gives_name_and_port_back(workshop_home):
    bad = launch()
    bad.argv[1] = "/no/such/engine.py"
    with pytest.raises(WorkshopError):
        supervise.start(bad)
    assert records.stored("a").state == "failed" and not is_held(records.path_of("a", ".lock"))
    port_claim = machine.hold_port("127.0.0.1", bad.port)
    assert port_claim
    port_claim.close()


def test_no_port_is_given_to_two(workshop_home):
    taken = at_once(*[lambda: machine.take_port("127.0.0.1", 8950, tries=30)] * 12)
    assert len({port for port, _ in taken}) == 12
    assert machine.hold_port("127.0.0.1", taken[0][0]) is None
    for _, port_claim in taken:
        port_claim.close()
    again = machine.hold_port("127.0.0.1", taken[0][0])
    assert again
    again.close()


def test_a_claim_can_be_taken_once_it_is_given_back(workshop_home):
    first, second = claims.claim(record(state="starting")), claims.Claim(record())
    with pytest.raises(Busy, match="starting or stopping a server called 'a'"):
        second.take(wait_s=0.0)
    second.give_back()
    assert is_held(records.path_of("a", ".lock")), "only its holder gives it back"
    first.give_back()
    second.take(wait_s=0.0)
    second.give_back()


def test_where_files_cannot_be_locked_a_server_starts_all_the_same(workshop_home, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    claim = claims.claim(record(state="starting"))
    claim.forget()
    claim.give_back()


@pytest.mark.parametrize("place", ["servers", "logs"])
def test_a_home_that_cannot_be_written_is_one_sentence(workshop_home, place):
    workshop_home.mkdir()
    (workshop_home / place).write_text("")
    for start in (supervise.start, supervise.run):
        with pytest.raises(WorkshopError, match="Cannot write") as refused:
            start(launch())
        assert "WORKSHOP_HOME" in refused.value.remedy


@pytest.mark.parametrize("name", ["a.log", "a.watcher.log"])
def test_a_log_that_cannot_be_written_is_one_sentence_and_leaves_nothing(workshop_home, name):
    (workshop_home / "logs" / name).mkdir(parents=True)
    with pytest.raises(WorkshopError, match="Cannot write"):
        supervise.start(launch())
    record = records.read("a")
    assert record is None or record.state == "failed"
    claims.claim(supervise.new_record(launch())).give_back()


def test_a_disk_that_fills_up_during_the_start_is_one_sentence(workshop_home, monkeypatch):
    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    states = []
    write = records.write

    def fills_up(record):
        states.append(record.state)
        if len(states) > 1:
            monkeypatch.setattr(os, "replace", full)
        write(record)

    monkeypatch.setattr(records, "write", fills_up)
    with pytest.raises(WorkshopError, match="No space is left"):
        supervise.run(launch())
    monkeypatch.undo()

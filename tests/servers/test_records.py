"""Server records: private, whole, and never trusted beyond what is true now."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
import small_server

from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.host import processes
from workshop.servers.records import ServerRecord

# The names that others rely on, as the design lists them.
NAMES = {
    "name",
    "url",
    "model",
    "api_key",
    "where",
    "host",
    "pid",
    "boot_id",
    "job_id",
    "log",
    "vllm_version",
    "state",
    "reason",
    "started",
    "process_started",
}


def record(**changes) -> ServerRecord:
    return small_server.record(
        **{"pid": os.getpid(), "process_started": processes.started(os.getpid()), **changes}
    )


def test_a_record_is_one_private_file_with_the_agreed_names(workshop_home):
    records.write(record())
    path = workshop_home / "servers" / "a.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # a group that may write into the outer one could swap the inner one
    for folder in path.parent, workshop_home:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert set(json.loads(path.read_text())) == NAMES


def test_a_record_never_exists_half_written(workshop_home, monkeypatch):
    records.write(record(model="old"))
    monkeypatch.setattr(
        os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(WorkshopError, match="No space is left"):
        records.write(record(model="new"))
    assert records.load(records.path_of("a")).model == "old"
    assert [path.name for path in (workshop_home / "servers").iterdir()] == ["a.json"]


def test_a_dead_process_makes_its_record_failed(workshop_home):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    records.write(record(pid=child.pid))
    server_record = records.read("a")
    assert server_record.state == "failed" and "ended" in server_record.reason
    assert records.load(records.path_of("a")).state == "failed", "the next reader is told as well"


def test_a_record_of_before_a_reboot_is_failed(workshop_home):
    records.write(record(boot_id="another boot"))
    server_record = records.read("a")
    assert server_record.state == "failed" and "restarted" in server_record.reason


def test_a_pid_that_another_process_got_is_not_the_server(workshop_home):
    records.write(record(process_started=processes.started(os.getpid()) - 1))
    assert records.read("a").state == "failed"


def test_a_record_of_another_machine_is_left_as_it_stands(workshop_home):
    records.write(record(host="elsewhere", pid=2**22))
    assert records.read("a").state == "ready"


def test_a_stopped_server_is_not_brought_back_by_a_reader(workshop_home):
    stale = record(pid=2**22)
    records.write(stale)
    records.remove("a")
    assert records.checked(stale).state == "failed"
    assert not records.path_of("a").exists()


def test_what_is_printed_holds_no_key():
    assert "secret" not in json.dumps(record().public())


def test_a_name_that_is_no_file_name_is_refused(workshop_home, subtests):
    for name in ["../a", "", "a/b", ".hidden", "x" * 65, "a b"]:
        with subtests.test(name), pytest.raises(BadInput, match="cannot be the name"):
            records.path_of(name)


def test_a_broken_record_says_what_to_do_and_keeps_nobody_from_the_others(
    workshop_home, capfd, subtests
):
    for text in ["", "{", "[]", '{"name": "a"}']:
        with subtests.test(text):
            records.write(record())
            records.write(record(name="b"))
            records.path_of("a").write_text(text)
            with pytest.raises(WorkshopError, match="Remove that file"):
                records.read("a")
            assert [server.name for server in (*records.own(), *records.own())] == ["b", "b"]
            assert len(capfd.readouterr().err.splitlines()) == 1, "said once, in one line"


def test_a_record_under_another_name_is_none(workshop_home):
    records.write(record())
    records.path_of("b").write_bytes(records.path_of("a").read_bytes())
    assert [server.name for server in records.own()] == ["a"]
    with pytest.raises(WorkshopError, match="that of another server"):
        records.read("b")


def test_a_reason_of_any_length_can_be_read_back(workshop_home):
    records.write(record(state="failed", reason="x" * 10**6))
    assert records.read("a").reason.startswith("xxx")


def test_a_record_prints_without_its_key():
    assert "secret" not in repr(record()) + str([record()]) + f"{record()}"


def test_keys_of_a_later_version_are_ignored(workshop_home):
    records.write(record())
    path = records.path_of("a")
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert records.read("a").name == "a"


def test_a_file_where_the_home_should_be_names_the_way_out(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "file"))
    with pytest.raises(WorkshopError, match="Set WORKSHOP_HOME"):
        records.write(record())


def test_a_home_of_nobody_is_one_sentence(monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", "~no-such-user/x")
    with pytest.raises(BadInput, match="WORKSHOP_HOME"):
        records.own()


def test_folders_of_records_that_cannot_be_read_are_said_and_passed_over(
    workshop_home, monkeypatch, capfd
):
    workshop_home.mkdir()
    (workshop_home / "servers").write_text("")
    for place in (
        "~no-such-user/x",
        str(workshop_home / "servers"),
        "/" + "x" * 300,
        "/proc/1/none",
    ):
        monkeypatch.setenv("WORKSHOP_SHARED", place)
        assert records.own() == records.shared() == []
    assert len(capfd.readouterr().err.splitlines()) == 1, "the name that is too long"


def test_servers_that_failed_stand_in_one_line_the_newest_first():
    for failed, names in [
        ([], ""),
        (["a"], "a"),
        (["a", "b", "c"], "c, b, a"),
        (["a", "b", "c", "d", "e"], "e, d, c and 2 more"),
    ]:
        servers = [small_server.record(name=name, state="failed") for name in failed]
        servers.append(small_server.record(name="runs"))
        line = records.failed_line(servers)
        assert records.failed_names(servers) == names, failed
        assert line == "" if not names else line.startswith(f"✗ failed: {names}; "), failed
        assert ("workshop stop --failed" in line) == bool(names), failed

"""share: who may read the copy, what is refused, and that it goes when the server goes."""

from __future__ import annotations

import grp
import json
import os
from dataclasses import asdict, replace

import pytest
import small_server
from click.testing import CliRunner

from workshop.cli.teach.keys import command as keys
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord, share

GROUP = grp.getgrgid(os.getegid()).gr_name


@pytest.fixture
def server(workshop_home) -> ServerRecord:
    record = small_server.record(
        "big", url="http://10.1.2.3:8000/v1", where="slurm", host="elsewhere", boot_id=""
    )
    records.write(record)
    return record


@pytest.fixture
def class_folder(tmp_path):
    folder = tmp_path / "class"
    folder.mkdir(mode=0o755)
    for part in (folder, *folder.parents):  # pytest's own folders are closed to others
        if not part.stat().st_mode & 0o001 and part.stat().st_uid == os.geteuid():
            part.chmod(part.stat().st_mode | 0o001)
    return folder


def test_copy_is_the_groups_and_holds_what_connect_needs(server, class_folder, monkeypatch):
    path, notes = share.share("big", GROUP, class_folder)
    assert path.stat().st_mode & 0o777 == 0o640 and path.stat().st_gid == os.getegid()
    assert json.loads(path.read_text()) == json.loads(records.as_text(server))
    assert any("without limits" in note for note in notes)
    monkeypatch.setenv("WORKSHOP_SHARED", str(class_folder))
    assert [record.name for record in records.shared()] == ["big"]


def test_a_new_key_is_in_the_record_and_its_copies(server, class_folder, monkeypatch):
    path, _ = share.share("big", GROUP, class_folder)
    done = CliRunner().invoke(keys, ["rotate", "big"])
    assert done.exit_code == 0 and "new key" in done.output
    new = records.require("big")
    assert new == replace(server, api_key=new.api_key) and new.api_key != server.api_key
    assert new.api_key not in done.output
    assert json.loads(path.read_text())["api_key"] == new.api_key
    assert path.stat().st_mode & 0o777 == 0o640
    records.write(replace(new, state="failed", reason="it died"))
    with pytest.raises(WorkshopError, match="failed"):
        share.rotate("big")


def test_limits_are_those_that_the_server_itself_names(server, class_folder):
    class Answers(small_server.Handler):
        def do_GET(self):
            self.send_response(200 if self.path == "/health" else 404)
            self.send_header(
                share.HEADER, "4 requests at a time" if self.path == "/health" else "wrong path"
            )
            self.end_headers()

    with small_server.serving(Answers) as url:
        records.write(replace(server, url=f"{url}/v1"))
        _, notes = share.share("big", GROUP, class_folder)
    assert "Limits for each learner: 4 requests at a time." in notes


def test_copy_is_never_readable_by_others_while_it_is_written(server, class_folder, monkeypatch):
    seen = []
    replace = os.replace
    monkeypatch.setattr(
        share.os, "replace", lambda a, b: (seen.append(os.stat(a).st_mode & 0o777), replace(a, b))
    )
    monkeypatch.setattr(
        share.os, "fchown", lambda *args: seen.append(os.fstat(args[0]).st_mode & 0o777)
    )
    share.share("big", GROUP, class_folder)
    assert seen[:2] == [0o600, 0o640], "closed until it belongs to the group"


def test_copies_go_when_the_server_goes(server, class_folder):
    path, _ = share.share("big", GROUP, class_folder)
    records.remove("big")
    assert not path.exists() and not list(records.path_of("big").parent.iterdir())


def test_withdraw_twice_does_no_harm(server, class_folder):
    share.share("big", GROUP, class_folder)
    assert len(records.withdraw("big")) == 1
    assert records.withdraw("big") == []


def test_what_cannot_be_is_refused_with_the_choices(server, class_folder, subtests):
    for name, group, error, message in [
        ("small", GROUP, WorkshopError, "no server called 'small'"),
        ("big", "no-such-group", BadInput, "no group"),
    ]:
        with subtests.test(f"{name} {group}"):
            with pytest.raises(error, match=message) as caught:
                share.share(name, group, class_folder)
            assert caught.value.remedy


def test_server_that_is_not_ready_is_not_shared(server, class_folder):
    records.write(ServerRecord(**{**asdict(server), "state": "starting"}))
    with pytest.raises(WorkshopError, match="is starting"):
        share.share("big", GROUP, class_folder)


def test_folder_that_the_group_may_not_enter_is_named(server, class_folder):
    closed = class_folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(WorkshopError, match=f"may not enter {closed}"):
        share.share("big", GROUP, closed)


def test_without_a_folder_it_says_where_to_set_one(server, monkeypatch):
    monkeypatch.delenv("WORKSHOP_SHARED", raising=False)
    with pytest.raises(BadInput, match="No folder"):
        share.share("big", GROUP)


@pytest.mark.parametrize(
    ("mode", "is_open"),
    [(0o755, False), (0o777, True), (0o775, True), (0o1777, False), (0o757, True)],
)
def test_a_folder_that_others_may_write_is_said_to_teacher_and_learner(
    server, class_folder, monkeypatch, capfd, mode, is_open
):
    class_folder.chmod(mode)
    _, notes = share.share("big", GROUP, class_folder)
    warning = f"Others may write to {class_folder}, and so could put a server of their own"
    assert any(warning in note for note in notes) is is_open
    monkeypatch.setenv("WORKSHOP_SHARED", str(class_folder))
    for _ in range(2):
        assert [shared.name for shared in records.shared()] == ["big"]
    stderr = capfd.readouterr().err
    assert stderr.count(warning) == stderr.count("\n") == is_open and "secret" not in stderr


def test_only_copies_of_this_record_are_taken_back(server, class_folder, tmp_path):
    path, _ = share.share("big", GROUP, class_folder)
    other = json.dumps({**asdict(server), "api_key": "of another server"})
    path.write_text(other)
    bystander = tmp_path / "letter.txt"
    bystander.write_text("")
    remembered = records.path_of("big").with_suffix(".shared")
    remembered.write_text(json.dumps([str(path), str(bystander)]))
    assert records.withdraw("big") == [] and path.read_text() == other and bystander.exists()
    for text in ("", "[", "null", "[1]", '{"a": 1}', "[" * 100_000):
        remembered.write_text(text)
        with pytest.raises(WorkshopError, match="shared"):  # never taken for an empty note
            records.withdraw("big")
        assert path.read_text() == other and bystander.exists() and remembered.read_text() == text


@pytest.mark.parametrize("content", [b'["/a/70b.json', b"7"])
def test_a_note_of_copies_that_cannot_be_read_is_kept(server, class_folder, content):
    share.share("big", GROUP, class_folder)
    note = records.path_of("big", ".shared")
    note.write_bytes(content)
    for act in (lambda: share.share("big", GROUP, class_folder), lambda: records.withdraw("big")):
        with pytest.raises(WorkshopError, match=r"\.shared"):
            act()
    assert note.read_bytes() == content and list(class_folder.glob("*.json"))
    # a server that is gone goes from the list, and the note stays for its owner
    records.remove("big")
    assert not records.path_of("big").exists() and note.exists()

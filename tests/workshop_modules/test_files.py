"""Files that a user names: nothing is waited for, and nothing is overwritten by accident."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from workshop import files
from workshop.errors import BadInput, WorkshopError

MOST = 1000


def fifo(folder: Path) -> Path:
    path = folder / "pipe"
    os.mkfifo(path)
    return path


def listening(folder: Path, monkeypatch) -> Path:
    monkeypatch.chdir(folder)  # a socket's name may have a hundred letters
    made = socket.socket(socket.AF_UNIX)
    made.bind("socket")
    made.close()
    return folder / "socket"


def test_only_regular_files_are_read_or_replaced(tmp_path, monkeypatch):
    paths = {
        "a pipe": fifo(tmp_path),
        "a socket": listening(tmp_path, monkeypatch),
        "a folder": tmp_path,
        "a device": Path("/dev/zero"),
    }
    link = tmp_path / "link"
    for kind, path in paths.items():
        link.symlink_to(path)
        for name in (path, link):
            with pytest.raises(BadInput, match=f"is {kind}, not a file"):
                files.read_bytes(name, MOST)
            with pytest.raises(BadInput, match=f"cannot be written: it is {kind}"):
                files.check_output(name, force=True)
        link.unlink()


def test_names_of_no_file_are_refused_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    for name in ("no/such/folder", "a\0b", "x" * 5000, "", "gone"):
        with pytest.raises(BadInput, match="cannot be read"):
            files.read_bytes(name, MOST)
    for name in ("no/such/folder", "a\0b", "x" * 5000, "", "folder/.."):
        with pytest.raises(BadInput):
            files.check_output(name, force=True)


ODD_JSON = (
    (b"", "not whole JSON"),
    (b"{", "not whole JSON"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"\0" * 10, "not whole JSON"),
    (b"\xef\xbb\xbf{}", "not whole JSON"),
    (b"[" * 400, "whole JSON"),
    (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    (b"9" * 5000, "not whole JSON"),
    (b" " * 300_000, "too large"),
)


def test_odd_json_is_one_sentence(tmp_path):
    path = tmp_path / "odd.json"
    for data, says in ODD_JSON:
        path.write_bytes(data)
        with pytest.raises(BadInput, match=says):
            files.read_json(path, 200_000)


def write(path, data: bytes = b"new", **how) -> None:
    with files.output(path, **how) as file:
        file.write(data)


def test_an_existing_file_is_kept_unless_forced(tmp_path):
    path = tmp_path / "page.html"
    write(path, b"old")
    path.chmod(0o640)
    with pytest.raises(BadInput, match="exists already"):
        write(path)
    assert path.read_bytes() == b"old"
    write(path, force=True)
    assert path.read_bytes() == b"new" and path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_new_file_has_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "page.html")
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed_and_a_hard_link_keeps_its_content(tmp_path):
    old, link, twin = tmp_path / "old", tmp_path / "link", tmp_path / "twin"
    old.write_bytes(b"old")
    twin.hardlink_to(old)
    link.symlink_to(old)
    write(link, force=True)
    assert link.is_symlink() and old.read_bytes() == b"new" and twin.read_bytes() == b"old"


def test_a_failure_changes_nothing_and_leaves_nothing(tmp_path):
    path = tmp_path / "page.html"
    for force in (False, True):
        with pytest.raises(ZeroDivisionError), files.output(path, force=force) as file:
            file.write(b"half")
            raise ZeroDivisionError
        path.write_bytes(b"old") if not force else None
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["page.html"]


def test_a_name_that_is_taken_meanwhile_is_kept(tmp_path):
    path = tmp_path / "page.html"
    with pytest.raises(BadInput, match="exists already"), files.output(path) as file:
        file.write(b"mine")
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs" and os.listdir(tmp_path) == ["page.html"]


def test_a_full_disk_is_one_sentence(tmp_path):
    with pytest.raises(WorkshopError, match="No space left"), files.output(tmp_path / "x") as file:
        os.dup2(os.open("/dev/full", os.O_WRONLY), file.fileno())
        file.write(b"much")
    assert os.listdir(tmp_path) == []


def test_a_private_file_is_new_and_closed_to_others(tmp_path):
    path, link = tmp_path / "trace", tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(FileExistsError):
        files.create(link, 0o600)
    files.create(path, 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        files.create(path, 0o600)


class TestReplacement:
    def test_a_block_that_fails_changes_nothing_and_leaves_nothing(self, tmp_path):
        target = tmp_path / "kept"
        target.write_text("old")
        with pytest.raises(KeyboardInterrupt), files.replacement(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt
        assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]

    def test_a_link_stays_a_link_and_what_a_killed_process_left_is_replaced(self, tmp_path):
        target, link = tmp_path / "file", tmp_path / "link"
        target.write_text("old")
        link.symlink_to(target)
        files.part_of(target).write_text("of a killed process, and longer than what comes now")
        with files.replacement(link) as file:
            file.write(b"new")
        assert link.is_symlink() and target.read_text() == "new"
        assert sorted(tmp_path.iterdir()) == [target, link]

    def test_it_is_on_disk_before_it_takes_its_place(self, tmp_path, monkeypatch):
        calls = []
        for name in ("fsync", "replace"):
            real = getattr(os, name)
            monkeypatch.setattr(
                os, name, lambda *a, real=real, name=name: (calls.append(name), real(*a))[1]
            )
        with files.replacement(tmp_path / "new") as file:
            file.write(b"new")
        assert calls == ["fsync", "replace", "fsync"]  # the file, its place, the folder's names

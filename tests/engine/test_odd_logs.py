"""`reconcile LOG --record FILE` with files that are none: one sentence each, and nobody waits."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

import workshop
from workshop.engine import log
from workshop.engine.reconcile import recording
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import BadInput

LOGS = Path(workshop.__file__).parent / "data" / "logs"


@pytest.mark.parametrize(
    "kind", ["pipe", "socket", "device", "folder", "missing", "name", "long name"]
)
def test_what_is_no_log_file_is_refused(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "log"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("log")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "name":
        path = Path("a\0b")
    elif kind == "long name":
        path = Path("x" * 5000)
    with pytest.raises(BadInput):
        log.read(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"\xff\xfe" * 9, b"\x89PNG\r\n", b"[" * 100_000, b"9" * 3_000_000, b"\r" * 99],
)
def test_what_is_no_log_is_refused(data, tmp_path):
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(BadInput, match=r"not a vLLM log|not a text file"):
        log.read(tmp_path / "log")


def measured() -> Path:
    return next(path for path in sorted(LOGS.glob("*.log")) if "h200" in path.name)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[" * 100_000, b"\xff", b"[]", b"years of work", b'{"runs": NaN}']
)
def test_a_file_that_is_no_record_is_kept(data, tmp_path):
    file = tmp_path / "record.json"
    file.write_bytes(data)
    with pytest.raises(BadInput):
        recording.check(file)
    assert file.read_bytes() == data


def test_a_pipe_is_no_record_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="it is a pipe"):
        recording.check(tmp_path / "pipe")


def test_the_log_itself_is_never_the_record(tmp_path):
    source = tmp_path / "vllm.log"
    shutil.copy(measured(), source)
    before = source.read_bytes()
    for record in (source, tmp_path / "." / "vllm.log"):
        with pytest.raises(BadInput):
            reconcile(source, "llama-3.1-8b", "h200", record)
    assert source.read_bytes() == before

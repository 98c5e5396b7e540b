"""`--trace FILE`: what it makes of the command, and which files it refuses."""

from __future__ import annotations

import json
import os
import stat

import pytest

from workshop.engine import trace_writer
from workshop.errors import BadInput
from workshop.servers.local import tracing


def test_a_trace_is_a_scheduler_and_a_file_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags, variables = tracing("trace.jsonl", {})
    assert flags == ["--scheduler-cls", "workshop.engine.trace_writer.traced"]
    assert variables == {trace_writer.FILE_VARIABLE: str(tmp_path / "trace.jsonl")}
    assert stat.S_IMODE((tmp_path / "trace.jsonl").stat().st_mode) == 0o600


def test_an_older_trace_gives_way_and_nothing_else_does(tmp_path):
    file = tmp_path / "trace"
    file.write_text(json.dumps({"step": 0}, separators=(",", ":")) + "\n")
    before = file.read_text()
    twin = tmp_path / "twin"
    twin.hardlink_to(file)
    with pytest.raises(BadInput, match="is there already") as caught:
        tracing(file, {})
    assert file.read_text() == before and "--force" in caught.value.remedy
    tracing(file, {}, force=True)
    assert file.read_text() == "" and twin.read_text() == before
    tracing(file, {})  # an empty one says nothing
    file.write_text("my notes\n")
    for force in (False, True):
        with pytest.raises(BadInput, match="is there already, and is no trace"):
            tracing(file, {}, force)
    assert file.read_text() == "my notes\n"


def test_the_traces_of_all_engines_are_new(tmp_path):
    older = tmp_path / "trace.1"
    older.write_text('{"step":0}\n')
    with pytest.raises(BadInput, match=r"trace\.1 is there already"):
        tracing(tmp_path / "trace", {"data-parallel-size": "2"})
    assert older.exists() and not (tmp_path / "trace").exists()
    tracing(tmp_path / "trace", {"data-parallel-size": "2"}, force=True)
    assert not older.exists() and (tmp_path / "trace").exists()


def test_a_pipe_is_no_trace_and_nobody_waits_for_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="No trace can be written"):
        tracing(tmp_path / "pipe", {}, force=True)


def test_what_is_no_file_is_refused_and_left_as_it_is(tmp_path, monkeypatch, subtests):
    for name in ["/dev/null", ".", "none/trace", "link", "a\0b", "~nobody-here/trace", "x" * 300]:
        with subtests.test(name):
            monkeypatch.chdir(tmp_path)
            if not (tmp_path / "link").is_symlink():
                (tmp_path / "link").symlink_to("elsewhere")
            before = (tmp_path / name).stat().st_mode if name in ("/dev/null", ".") else None
            with pytest.raises(BadInput, match="No trace can be written"):
                tracing(name, {})
            assert before is None or (tmp_path / name).stat().st_mode == before
            assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_two_schedulers_are_one_too_many(tmp_path):
    with pytest.raises(BadInput, match="each bring a scheduler"):
        tracing(tmp_path / "trace", {"scheduler-cls": "mine.Scheduler"})

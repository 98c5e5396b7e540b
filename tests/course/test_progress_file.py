"""What a learner has done is never written over, however damaged its file is, and two notebooks lose nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import multiprocessing
import os
import shutil

import pytest

from workshop import files
from workshop.course.exercises import checking
from workshop.course.progress import progress_file

FORK = multiprocessing.get_context("fork")
DONE = {"tries": 1, "done": True}


def test_a_damaged_file_is_kept_under_another_name(workshop_home, subtests):
    for text in [
        "",
        "{",
        "[1]",
        "null",
        '{"demo.two": 3}',
        '{"demo.one": {"tries": 1}, "x": 2}',
        "\0",
    ]:
        with subtests.test(text):
            shutil.rmtree(workshop_home, ignore_errors=True)
            workshop_home.mkdir()
            (workshop_home / "progress.json").write_text(text)
            assert checking.keep("demo.two", DONE) == ""
            assert checking.progress()["demo.two"] == DONE
            (damaged_copy,) = workshop_home.glob("progress.json.damaged-*")
            assert damaged_copy.read_text() == text


def test_entries_that_are_whole_go_on(workshop_home):
    workshop_home.mkdir()
    (workshop_home / "progress.json").write_text(json.dumps({"demo.one": DONE, "x": 2}))
    checking.keep("demo.two", DONE)
    assert checking.progress() == {"demo.one": DONE, "demo.two": DONE}


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_is_unreadable_for_a_moment_is_left_alone_and_the_learner_is_told(
    workshop_home, monkeypatch, code
):
    checking.keep("demo.one", DONE)

    def fails(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "stat", fails)
        assert os.strerror(code) in checking.keep("demo.two", DONE)
    assert checking.progress() == {"demo.one": DONE}


def keep_some(number: int) -> None:
    for turn in range(10):
        progress_file.add(f"demo.{number}.{turn}", DONE)


@pytest.mark.parametrize("flock", ["works", "does nothing"])
def test_notebooks_that_write_at_the_same_time_lose_nothing(workshop_home, monkeypatch, flock):
    if flock != "works":
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    notebooks = [FORK.Process(target=keep_some, args=(number,)) for number in range(4)]
    for notebook in notebooks:
        notebook.start()
    for notebook in notebooks:
        notebook.join(120)
        assert notebook.exitcode == 0
    assert len(checking.progress()) == 40

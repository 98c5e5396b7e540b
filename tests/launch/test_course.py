"""The learner's copies: renewed while untouched, never overwritten once worked in."""

from __future__ import annotations

import json

import pytest

from workshop.errors import BadInput
from workshop.launch import course


def notebook(text: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": [text], "outputs": []}], "nbformat": 4})


@pytest.fixture
def folders(tmp_path, monkeypatch):
    source, mine = tmp_path / "course", tmp_path / "mine"
    source.mkdir()
    (source / "00_start.ipynb").write_text(notebook("version 1"))
    monkeypatch.setattr(course, "course_folder", lambda part="notebooks": source)
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(mine))
    return source, mine


def test_an_untouched_copy_follows_the_course(folders):
    source, mine = folders
    assert course.copy_notebooks() == (mine, [])
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    course.copy_notebooks()
    assert "version 2" in (mine / "00_start.ipynb").read_text()


def test_a_copy_that_was_only_run_counts_as_untouched(folders):
    source, mine = folders
    course.copy_notebooks()
    ran = json.loads((mine / "00_start.ipynb").read_text())
    ran["cells"][0]["outputs"] = [{"text": "42"}]
    (mine / "00_start.ipynb").write_text(json.dumps(ran))
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert course.copy_notebooks()[1] == []


def test_answers_survive_an_update_and_the_learner_is_told(folders):
    source, mine = folders
    course.copy_notebooks()
    (mine / "00_start.ipynb").write_text(notebook("my answer"))
    assert course.copy_notebooks()[1] == [], "nothing newer is held back"
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert course.copy_notebooks()[1] == ["00_start"]
    assert "my answer" in (mine / "00_start.ipynb").read_text()


def test_fresh_gives_a_new_copy_and_keeps_the_old(folders):
    _, mine = folders
    course.copy_notebooks()
    (mine / "00_start.ipynb").write_text(notebook("my answer"))
    copy, kept = course.fresh("00_start.ipynb")
    assert "version 1" in copy.read_text() and "my answer" in kept.read_text()
    assert course.fresh("00_start") == (copy, None)


def test_fresh_of_an_unknown_notebook_names_those_there_are(folders):
    with pytest.raises(BadInput, match="00_start"):
        course.fresh("99_nothing")

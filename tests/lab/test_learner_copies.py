"""The learner's copies: renewed while untouched, never overwritten once worked in."""

from __future__ import annotations

import errno
import json
import os
import shutil
from datetime import datetime

import pytest

from workshop.course.progress.course_map import link_to
from workshop.errors import BadInput, WorkshopError
from workshop.lab import learner_copies


def notebook(text: str) -> str:
    return json.dumps(
        {"cells": [{"cell_type": "code", "source": [text], "outputs": []}], "nbformat": 4}
    )


@pytest.fixture
def folders(tmp_path, monkeypatch):
    source, own_folder = tmp_path / "course", tmp_path / "mine"
    source.mkdir()
    (source / "00_start.ipynb").write_text(notebook("version 1"))
    monkeypatch.setattr(learner_copies, "course_folder", lambda part="notebooks": source)
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(own_folder))
    return source, own_folder


def test_an_untouched_copy_follows_the_course(folders):
    source, own_folder = folders
    assert learner_copies.copy_notebooks() == (own_folder, [])
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    learner_copies.copy_notebooks()
    assert "version 2" in (own_folder / "00_start.ipynb").read_text()


def test_a_copy_that_was_only_run_counts_as_untouched(folders):
    source, own_folder = folders
    learner_copies.copy_notebooks()
    ran = json.loads((own_folder / "00_start.ipynb").read_text())
    ran["cells"][0]["outputs"] = [{"text": "42"}]
    (own_folder / "00_start.ipynb").write_text(json.dumps(ran))
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert learner_copies.copy_notebooks()[1] == []


def test_answers_survive_an_update_and_the_learner_is_told(folders):
    source, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").write_text(notebook("my answer"))
    assert learner_copies.copy_notebooks()[1] == [], "nothing newer is held back"
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert learner_copies.copy_notebooks()[1] == ["00_start"]
    assert "my answer" in (own_folder / "00_start.ipynb").read_text()


LINKS = "[start](00_start.ipynb) [own](10_chat.ipynb) [next](14_agents.ipynb) [words](../docs/glossary.md)"
IN_MORE = "[start](../00_start.ipynb) [own](10_chat.ipynb) [next](14_agents.ipynb) [words](../docs/glossary.md)"


def test_the_core_lies_first_and_links_lead_to_either_place(folders, monkeypatch):
    source, own_folder = folders
    (source / "00_start.ipynb").write_text(notebook(LINKS))
    (source / "10_chat.ipynb").write_text(notebook(LINKS))
    learner_copies.copy_notebooks()
    assert sorted(path.name for path in own_folder.glob("*.ipynb")) == ["00_start.ipynb"]
    assert IN_MORE in (own_folder / "more" / "10_chat.ipynb").read_text()
    text = (own_folder / "00_start.ipynb").read_text()
    for link in ("(00_start.ipynb)", "(more/10_chat.ipynb)", "(docs/glossary.md)"):
        assert link in text
    on_the_map = {"": ("00_start.ipynb", "more/10_chat.ipynb")}
    on_the_map["more"] = ("../00_start.ipynb", "10_chat.ipynb")
    for folder, expected in on_the_map.items():
        monkeypatch.chdir(own_folder / folder)
        assert (link_to("00_start"), link_to("10_chat")) == expected


def test_fresh_gives_a_new_copy_and_keeps_the_old(folders):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").write_text(notebook("my answer"))
    copy, old_copy = learner_copies.fresh("00_start.ipynb")
    assert "version 1" in copy.read_text() and "my answer" in old_copy.read_text()
    assert learner_copies.fresh("00_start") == (copy, None)


def test_fresh_of_an_unknown_notebook_names_those_there_are(folders):
    with pytest.raises(BadInput, match="00_start"):
        learner_copies.fresh("99_nothing")


class Autumn(datetime):
    """A clock that stands: twice in a second, or the hour that autumn has twice."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 10, 25, 2, 30, 0, tzinfo=tz)


def ran(path, text: str) -> None:
    """Run a notebook and save it: what JupyterLab writes."""
    book = json.loads(path.read_text())
    book["cells"][0] |= {
        "outputs": [{"output_type": "stream", "name": "stdout", "text": [text]}],
        "execution_count": 1,
    }
    path.write_text(json.dumps(book, indent=1))


def contents_beside(folder) -> list[str]:
    """The contents of all files beside the fresh copy."""
    return sorted(path.read_text() for path in folder.glob("00_start.*.ipynb"))


def test_a_notebook_is_named_by_its_number_or_a_part_of_its_name():
    for text in ("1", "memory"):
        assert learner_copies.named(text) == "01_memory"
    for text in ("more/10_chat.ipynb", "10"):
        assert learner_copies.named(text) == "10_chat"
    for text in ("99", "", "e", "nothing"):
        with pytest.raises(BadInput, match="no notebook"):
            learner_copies.named(text)


def test_fresh_twice_at_one_moment_keeps_both(folders, monkeypatch):
    _, own_folder = folders
    monkeypatch.setattr(learner_copies, "datetime", Autumn)
    learner_copies.copy_notebooks()
    texts = [notebook(f"answer {number}") for number in range(12)]
    for text in texts:
        (own_folder / "00_start.ipynb").write_text(text)
        assert learner_copies.fresh("00_start")[1].read_text() == text
    assert contents_beside(own_folder) == sorted(texts)


def test_fresh_keeps_outputs_too(folders):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    ran(own_folder / "00_start.ipynb", "an hour's result")
    _, beside = learner_copies.fresh("00_start")
    assert "an hour's result" in beside.read_text()
    assert learner_copies.fresh("00_start")[1] is None, "nothing of the learner's is in it"


def test_a_renewed_copy_leaves_its_outputs_beside(folders):
    source, own_folder = folders
    learner_copies.copy_notebooks()
    ran(own_folder / "00_start.ipynb", "an hour's result")
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert learner_copies.copy_notebooks()[1] == []
    assert "version 2" in (own_folder / "00_start.ipynb").read_text()
    assert len(contents_beside(own_folder)) == 1
    assert "an hour's result" in contents_beside(own_folder)[0]


def test_outputs_stay_when_it_is_forgotten_where_copies_are_from(folders):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    ran(own_folder / "00_start.ipynb", "an hour's result")
    before = (own_folder / "00_start.ipynb").read_text()
    for text in ("", "[]", "null", '{"00_start": 1}', "[" * 100_000):
        (own_folder / learner_copies.ORIGINALS).write_text(text)
        assert learner_copies.copy_notebooks() == (own_folder, []), text[:20]
        assert (own_folder / "00_start.ipynb").read_text() == before, text[:20]
        assert contents_beside(own_folder) == []


def test_what_is_no_notebook_any_more_is_kept(folders):
    source, own_folder = folders
    learner_copies.copy_notebooks()
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    for text in ("", "[]", '{"cells": 1}', '{"cells": [{}]}', '{"cells": [[]]}', "[" * 100_000):
        (own_folder / "00_start.ipynb").write_text(text)
        (own_folder / learner_copies.ORIGINALS).unlink()
        assert learner_copies.copy_notebooks()[1] == ["00_start"], text[:20]
        assert learner_copies.fresh("00_start")[1].read_text() == text


def test_a_link_of_the_learners_leads_to_what_it_led_to(folders, tmp_path):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    elsewhere = tmp_path / "backup.ipynb"
    elsewhere.write_text(notebook("my answer"))
    (own_folder / "00_start.ipynb").unlink()
    (own_folder / "00_start.ipynb").symlink_to(elsewhere)
    _, beside = learner_copies.fresh("00_start")
    assert "my answer" in beside.read_text() and "my answer" in elsewhere.read_text()
    assert "version 1" in (own_folder / "00_start.ipynb").read_text()


def test_what_is_no_file_is_left_alone(folders):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    copy = own_folder / "00_start.ipynb"
    copy.unlink()
    for make in (os.mkfifo, lambda path: path.symlink_to("/a/disk/that/is/away.ipynb")):
        make(copy)
        assert learner_copies.copy_notebooks()[1] == ["00_start"]
        with pytest.raises(WorkshopError, match="is no file"):
            learner_copies.fresh("00_start")
        assert contents_beside(own_folder) == []
        copy.unlink()


@pytest.mark.parametrize(("module", "fails"), [(os, "replace"), (shutil, "copy")])
def test_a_full_disk_loses_nothing(folders, monkeypatch, module, fails):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").write_text(notebook("my answer"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, fails, full)
    with pytest.raises(WorkshopError, match="No space left"):
        learner_copies.fresh("00_start")
    assert "my answer" in (own_folder / "00_start.ipynb").read_text()
    assert all("my answer" in text for text in contents_beside(own_folder)), "no half file"
    assert not [path for path in own_folder.iterdir() if path.name.startswith(".00")]


def test_a_pipe_among_the_notebooks_never_hangs(tmp_path, monkeypatch):
    for name in (learner_copies.ORIGINALS, "00_start.ipynb"):
        folder = tmp_path / name
        folder.mkdir()
        os.mkfifo(folder / name)
        monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(folder))
        assert learner_copies.copy_notebooks()[1] == ["00_start"] * (name == "00_start.ipynb")
        assert len(list(folder.rglob("*.ipynb"))) == len(learner_copies.names())


def test_a_folder_that_cannot_be_is_one_sentence(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    places = {f"{tmp_path}/pipe/mine": "Cannot write", "~no-such-user/x": "no home folder"}
    for place, sentence in places.items():
        monkeypatch.setenv("WORKSHOP_NOTEBOOKS", place)
        with pytest.raises(WorkshopError, match=sentence):
            learner_copies.copy_notebooks()

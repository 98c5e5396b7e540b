"""The learner's copies: renewed while untouched, never overwritten once worked in."""

from __future__ import annotations

import errno
import json
import os
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


class TestPlaces:
    """The core lies first; the others in more/, also what was copied before there was that folder."""

    LINKS = "[start](00_start.ipynb) [own](10_chat.ipynb) [next](14_agents.ipynb) [words](../docs/glossary.md)"
    MOVED = "[start](../00_start.ipynb) [own](10_chat.ipynb) [next](14_agents.ipynb) [words](../docs/glossary.md)"

    @pytest.fixture
    def before(self, folders):
        """Copies as they were: all in one folder."""
        source, own_folder = folders
        (source / "10_chat.ipynb").write_text(notebook(self.LINKS))
        learner_copies.copy_notebooks()
        (own_folder / "more" / "10_chat.ipynb").rename(own_folder / "10_chat.ipynb")
        (own_folder / "more").rmdir()
        return source, own_folder

    def test_the_core_lies_first_and_links_lead_to_either_place(self, folders):
        source, own_folder = folders
        (source / "00_start.ipynb").write_text(notebook(self.LINKS))
        (source / "10_chat.ipynb").write_text(notebook(self.LINKS))
        learner_copies.copy_notebooks()
        assert sorted(path.name for path in own_folder.glob("*.ipynb")) == ["00_start.ipynb"]
        assert self.MOVED in (own_folder / "more" / "10_chat.ipynb").read_text()
        text = (own_folder / "00_start.ipynb").read_text()
        for link in ("(00_start.ipynb)", "(more/10_chat.ipynb)", "(docs/glossary.md)"):
            assert link in text

    def test_an_untouched_copy_moves(self, before):
        _, own_folder = before
        assert learner_copies.copy_notebooks() == (own_folder, [])
        assert not (own_folder / "10_chat.ipynb").exists()
        assert self.MOVED in (own_folder / "more" / "10_chat.ipynb").read_text()

    def test_answers_move_with_their_copy_and_its_links_follow(self, before):
        _, own_folder = before
        answers = notebook(f"my answer [words](docs/glossary.md) {self.LINKS}")
        (own_folder / "10_chat.ipynb").write_text(answers)
        assert learner_copies.copy_notebooks() == (own_folder, [])
        assert not (own_folder / "10_chat.ipynb").exists()
        text = (own_folder / "more" / "10_chat.ipynb").read_text()
        assert f"my answer [words](../docs/glossary.md) {self.MOVED}" in text

    def test_fresh_moves_and_keeps_it(self, before):
        _, own_folder = before
        (own_folder / "10_chat.ipynb").write_text(notebook("my answer"))
        copy, old_copy = learner_copies.fresh("10_chat")
        assert copy == own_folder / "more" / "10_chat.ipynb"
        assert "my answer" in old_copy.read_text()
        assert not (own_folder / "10_chat.ipynb").exists()

    def test_nothing_is_written_over(self, before):
        _, own_folder = before
        (own_folder / "10_chat.ipynb").write_text(notebook("the old place"))
        (own_folder / "more").mkdir()
        (own_folder / "more" / "10_chat.ipynb").write_text(notebook("the new place"))
        learner_copies.copy_notebooks()
        assert "the old place" in (own_folder / "10_chat.ipynb").read_text()
        assert "the new place" in (own_folder / "more" / "10_chat.ipynb").read_text()

    def test_the_map_leads_to_either_place(self, before, monkeypatch):
        _, own_folder = before
        learner_copies.copy_notebooks()
        links = {"": ("00_start.ipynb", "more/10_chat.ipynb")}
        links["more"] = ("../00_start.ipynb", "10_chat.ipynb")
        for folder, expected in links.items():
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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1", "01_memory"),
        ("memory", "01_memory"),
        ("more/10_chat.ipynb", "10_chat"),
        ("10", "10_chat"),
    ],
)
def test_a_notebook_is_named_by_its_number_or_a_part_of_its_name(text, name):
    assert learner_copies.named(text) == name


@pytest.mark.parametrize("text", ["99", "", "e", "nothing"])
def test_what_names_no_notebook_or_several_is_refused_with_a_choice(text):
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


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"00_start": 1}', "[" * 100_000])
def test_outputs_stay_when_it_is_forgotten_where_copies_are_from(folders, text):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    ran(own_folder / "00_start.ipynb", "an hour's result")
    before = (own_folder / "00_start.ipynb").read_text()
    (own_folder / learner_copies.ORIGINALS).write_text(text)
    assert learner_copies.copy_notebooks() == (own_folder, [])
    assert (own_folder / "00_start.ipynb").read_text() == before
    assert contents_beside(own_folder) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"cells": 1}', '{"cells": [{}]}', '{"cells": [[]]}', "[" * 100_000],
)
def test_what_is_no_notebook_any_more_is_kept(folders, text):
    source, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").write_text(text)
    (source / "00_start.ipynb").write_text(notebook("version 2"))
    assert learner_copies.copy_notebooks()[1] == ["00_start"]
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


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/a/disk/that/is/away.ipynb"),
        lambda path: path.mkdir(),
        os.mkfifo,
    ],
)
def test_what_is_no_file_is_left_alone(folders, make):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").unlink()
    make(own_folder / "00_start.ipynb")
    assert learner_copies.copy_notebooks()[1] == ["00_start"]
    with pytest.raises(WorkshopError, match="is no file"):
        learner_copies.fresh("00_start")
    assert contents_beside(own_folder) == []


@pytest.mark.parametrize("fails", ["replace", "fsync"])
def test_a_full_disk_loses_nothing(folders, monkeypatch, fails):
    _, own_folder = folders
    learner_copies.copy_notebooks()
    (own_folder / "00_start.ipynb").write_text(notebook("my answer"))

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(WorkshopError, match="No space left"):
        learner_copies.fresh("00_start")
    assert "my answer" in (own_folder / "00_start.ipynb").read_text()
    assert all("my answer" in text for text in contents_beside(own_folder)), "no half file"
    assert not [path for path in own_folder.iterdir() if path.name.startswith(".00")]


@pytest.mark.parametrize("name", [learner_copies.ORIGINALS, "00_start.ipynb"])
def test_a_pipe_among_the_notebooks_never_hangs(tmp_path, monkeypatch, name):
    folder = tmp_path / "mine"
    folder.mkdir()
    os.mkfifo(folder / name)
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", str(folder))
    assert learner_copies.copy_notebooks()[1] == ["00_start"] * (name == "00_start.ipynb")
    assert len(list(folder.rglob("*.ipynb"))) == len(learner_copies.names())


@pytest.mark.parametrize(
    ("place", "says"), [("{}/pipe/mine", "Cannot write"), ("~no-such-user/x", "no home folder")]
)
def test_a_folder_that_cannot_be_is_one_sentence(tmp_path, monkeypatch, place, says):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setenv("WORKSHOP_NOTEBOOKS", place.format(tmp_path))
    with pytest.raises(WorkshopError, match=says):
        learner_copies.copy_notebooks()

"""The course map: it says what the notebooks say, keeps the learner's progress, and needs no server."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from workshop.course import course_map as the_map
from workshop.course import exercises
from workshop.course.course_map import CourseMap, ProgressLine, chapters, course_map
from workshop.course.widgets import style
from workshop.errors import BadInput

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]


class Page(HTMLParser):
    """Collects the links and what screen readers hear."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.labels = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.links += [attrs["href"]] if tag == "a" else []
        self.labels += [attrs["aria-label"]] if "aria-label" in attrs else []


def test_every_notebook_is_on_the_map_with_its_minutes_and_its_checks(workshop_home):
    found = chapters()
    assert [one.name for one in found] == [path.stem for path in NOTEBOOKS]
    assert [key for one in found for key in one.checks] == list(exercises.all_exercises()), (
        "each check, once"
    )
    for one, path in zip(found, NOTEBOOKS, strict=True):
        assert f"{one.minutes} minutes" in cells(path)[0] and one.needs and "[" not in one.needs
        asked = set(re.findall(r'check\("([\w.]+)"', "\n".join(cells(path))))
        assert asked == set(one.checks), "the checks of the map are those of the notebook"


def test_progress_moves_on(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    assert course_map().next.name == "00_start" and "0 of" in course_map().summary()
    exercises.check("memory.weights_405b", 810)
    first = course_map()
    assert (
        first.count(first.chapters[1]) == "1 of 10 checks"
        and first.state(first.chapters[1]) == "begun"
    )
    stored = {key: {"tries": 1, "done": True} for key in exercises.all_exercises()}
    (workshop_home / "progress.json").write_text(json.dumps(stored))
    last = course_map()
    assert all(last.state(one) == "done" for one in last.chapters if one.checks)
    assert last.next is None and "start here" not in last._repr_html_()
    assert last.count(last.chapters[1]) in repr(course_map("01_memory"))


def test_predictions_stand_beside_their_results(workshop_home):
    keys = [key for one in chapters() for key in one.predictions]
    assert len(keys) == len(set(keys)) >= 20 and "prediction" not in course_map().summary()
    exercises.predict("memory.over_16_gb", ("less than 16 GB", "more than 16 GB")).choose(
        "less than 16 GB"
    )
    exercises.predict("memory.over_16_gb", result="more than 16 GB")
    exercises.predict("memory.weights_or_kv", ("its weights", "about equal")).choose("about equal")
    exercises.predict("memory.weights_or_kv", result="about equal")
    exercises.predict("memory.fits_80_gb", ("in both", "in neither")).choose("in both")
    found = course_map()
    assert f"3 of {len(keys)} predictions made, 1 came true" in found.summary()
    shown = found._repr_html_()
    of_memory = len(found.chapters[1].predictions)
    assert f"3 of {of_memory} predictions made, 1 came true" in shown
    assert "<td>over 16 gb</td><td>less than 16 GB</td><td>more than 16 GB</td>" in shown
    assert "<td>fits 80 gb</td><td>in both</td><td>…</td>" in shown


def test_links_are_reachable_by_keyboard_and_progress_is_said(workshop_home):
    page = Page(course_map()._repr_html_())
    assert page.links == [path.name for path in NOTEBOOKS], "real links, in the order of the course"
    assert "Course map" in page.labels
    assert [label for label in page.labels if label.endswith("checks")] == [
        f"0 of {len(one.checks)} checks" for one in chapters() if one.checks
    ]


def test_colours_are_the_themes(workshop_home):
    text = course_map()._repr_html_() + course_map("00_start")._repr_html_()
    assert set(re.findall(r"(?<![-\w])color:(#\w+)", text)) == {"#fff"}, (
        "white on a badge; all else as the theme says"
    )
    assert set(re.findall(r"background:(#\w+)", text)) <= {style.GOOD, style.BLUE}


def test_a_learner_without_any_home_sees_the_map_all_the_same(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "file"))
    assert "0 of" in repr(course_map())


def test_words_of_the_map(tmp_path):
    first = {
        "cells": [
            {
                "source": [
                    "# 9. Rest: a goal\n",
                    "\n",
                    "**You will be able to** x.\n\n",
                    "90 minutes · needs: a CPU and a server (notebook [0](a.ipynb) starts one), x. More.",
                ]
            }
        ]
    }
    (tmp_path / "09_rest.ipynb").write_text(json.dumps(first))
    chapter = chapters(tmp_path)[0]
    assert (chapter.title, chapter.goal, chapter.minutes, chapter.needs, chapter.checks) == (
        "9. Rest",
        "a goal",
        90,
        "a CPU and a server, x",
        (),
    )
    path = CourseMap((chapter,), frozenset())
    assert path.next is None and path.summary() == "0 of 0 checks answered · about 1 h 30 min to go"
    assert "nothing to check" in repr(path) and "nothing to check" in repr(
        ProgressLine(path, chapter)
    )
    (tmp_path / "09_rest.ipynb").write_text(json.dumps({"cells": [{"source": ["# 9. Rest"]}]}))
    with pytest.raises(BadInput, match=r"09_rest\.ipynb does not say how long"):
        chapters(tmp_path)


def test_an_unknown_notebook_names_those_there_are(workshop_home):
    with pytest.raises(BadInput, match="00_start"):
        course_map("99_none")


def test_the_map_stands_near_the_top_and_the_line_at_the_end():
    assert "course_map()" in "\n".join(cells(NOTEBOOKS[0])[:3])
    for path in NOTEBOOKS:
        assert f'course_map("{path.stem}")' in cells(path)[-1]
    assert the_map.__doc__

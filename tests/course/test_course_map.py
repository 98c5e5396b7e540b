"""The course map: it says what the notebooks say, keeps the learner's progress, and needs no server."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import cells
import pytest

from workshop.course.exercises import checking
from workshop.course.progress import course_map as the_map
from workshop.course.progress import paths
from workshop.course.progress.course_map import (
    CourseMap,
    ProgressLine,
    chapters,
    course_map,
    in_hours,
)
from workshop.course.widgets import style
from workshop.errors import BadInput

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def write_progress(home: Path, entries: dict[str, dict]) -> None:
    """Write the progress file of a learner."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "progress.json").write_text(json.dumps(entries))


def sources(path: Path) -> list[str]:
    return [cell.source for cell in cells.cells(path.stem)]


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
    all_chapters = chapters()
    assert [chapter.name for chapter in all_chapters] == [path.stem for path in NOTEBOOKS]
    on_map = []
    for chapter in all_chapters:
        on_map += [*chapter.checks, *chapter.deeper]
    assert sorted(on_map) == sorted(checking.all_exercises()), "each check, once"
    for chapter, path in zip(all_chapters, NOTEBOOKS, strict=True):
        assert (
            f"{chapter.minutes} minutes" in sources(path)[0]
            and chapter.needs
            and "[" not in chapter.needs
        )
        checks = set(re.findall(r'check\("([\w.]+)"', "\n".join(sources(path))))
        on_map = {*chapter.checks, *chapter.deeper}
        assert checks == on_map, "the checks of the map are those of the notebook"


def test_checks_below_deeper_are_those_that_the_path_does_not_count(subtests):
    for path in NOTEBOOKS:
        with subtests.test(path.stem):
            in_deeper, below_deeper = False, set()
            for source in sources(path):
                if source.startswith("## "):
                    in_deeper = source.startswith("## Deeper")
                if in_deeper:
                    below_deeper |= set(re.findall(r'check\("([\w.]+)"', source))
            (chapter,) = [chapter for chapter in chapters() if chapter.name == path.stem]
            assert set(chapter.deeper) == below_deeper, "deeper = true in the exercise's table"


def test_a_learner_who_answers_the_core_alone_reaches_its_end(workshop_home):
    """Deeper is no part of the path: the map must not send such a learner back to notebook 1."""
    stored = {}
    core = course_map().on_path
    for chapter in core:
        for key in chapter.checks:
            stored[key] = {"tries": 1, "done": True}
    write_progress(workshop_home, stored)
    last = course_map()
    assert last.next is None and last.minutes_left(last.on_path) == 0
    assert last.summary().startswith(f"{len(stored)} of {len(stored)} checks of the core answered")
    assert repr(course_map("01_memory")).endswith("the core: all done")


def test_progress_moves_on(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    assert course_map().next.name == "00_start" and "0 of" in course_map().summary()
    checking.check("memory.weights_405b", 810)
    deeper = course_map()
    assert deeper.count(deeper.chapters[1]) == "0 of 5 checks"
    checking.check("memory.kv_bytes_per_token", 131_072)
    first = course_map()
    assert (
        first.count(first.chapters[1]) == "1 of 5 checks"
        and first.state(first.chapters[1]) == "begun"
    )
    stored = {key: {"tries": 1, "done": True} for key in checking.all_exercises()}
    (workshop_home / "progress.json").write_text(json.dumps(stored))
    last = course_map()
    assert all(last.state(chapter) == "done" for chapter in last.chapters if chapter.checks)
    assert last.next is None and "start here" not in last._repr_html_()
    assert last.count(last.chapters[1]) in repr(course_map("01_memory"))


def test_the_first_screen_shows_the_core_and_what_is_left_of_it(workshop_home):
    """15 equal rows and "15 h 15 min to go" was the first output that a learner saw."""
    first = course_map()
    assert [chapter.name[:2] for chapter in first.on_path] == ["00", "01", "03", "04", "05", "07"]
    core = sum(chapter.minutes for chapter in first.on_path)
    assert first.minutes_left(first.on_path) == core
    assert first.summary().endswith(f"about {in_hours(core)} to go")
    shown = first._repr_html_()
    folded = shown.index("<details")
    assert shown.index("07_offline_batching.ipynb") < folded < shown.index("02_parallelism.ipynb")
    assert repr(course_map("01_memory")).endswith(f"the core: about {in_hours(core)} to go")


def test_every_notebook_is_on_one_part_of_the_course():
    parts = [paths.CORE, *paths.ROLES]
    for chapter in chapters():
        assert sum(part.has(chapter.name) for part in parts) == 1, chapter.name
    roles = {part.title: part.notebooks for part in paths.ROLES}
    assert roles == {
        "Serve it": ("02", "06", "08"),
        "Understand it": ("09", "11", "12"),
        "Scale it": ("13", "14"),
        "Build with it": ("10",),
        "Capstone": ("capstone",),
    }


def test_a_chosen_path_is_kept_and_counted(workshop_home, subtests):
    for path, numbers in [
        ("core", "00 01 03 04 05 07"),
        ("serve", "00 01 03 04 05 07 02 06 08"),
        ("Understand it", "00 01 03 04 05 07 09 11 12"),
        ("build with it", "00 01 03 04 05 07 10"),
        ("all", "00 01 03 04 05 07 02 06 08 09 11 12 13 14 10 capstone"),
    ]:
        with subtests.test(path):
            chosen = course_map(path=path)
            later = course_map()
            assert [chapter.name.split("_")[0] for chapter in later.on_path] == numbers.split()
            assert later.summary() == chosen.summary()
            assert later.minutes_left(later.on_path) == sum(
                chapter.minutes for chapter in later.on_path
            )


def test_an_unknown_path_names_those_there_are(workshop_home):
    with pytest.raises(BadInput, match="no path 'expert'") as error:
        course_map(path="expert")
    assert "core, serve, understand, scale, build, capstone, all" in error.value.remedy
    assert course_map().path == "core"


def test_half_of_a_notebook_takes_half_of_its_time(workshop_home):
    memory = next(chapter for chapter in chapters() if chapter.name == "01_memory")
    done = memory.checks[: len(memory.checks) // 2]
    stored = {key: {"tries": 1, "done": True} for key in done}
    write_progress(workshop_home, stored)
    current_map = course_map()
    assert current_map.minutes_left([memory]) == round(
        memory.minutes * (1 - len(done) / len(memory.checks))
    )


def test_what_the_course_no_longer_has_counts_for_nothing(workshop_home):
    stored = {"no.longer_there": {"tries": 1, "done": True}, "course.path": {"name": "no longer"}}
    write_progress(workshop_home, stored)
    assert course_map().path == "core" and course_map().summary().startswith("0 of")


def test_a_recall_question_is_about_a_notebook_that_its_path_has():
    """The core, or an earlier notebook of the same role."""
    for key, exercise in checking.all_exercises().items():
        recalled = re.match(r"From notebook (\d+):", exercise.title)
        if recalled:
            number = f"{int(recalled[1]):02}"
            parts = [part for part in (paths.CORE, *paths.ROLES) if part.has(exercise.notebook)]
            assert any(number in part.notebooks for part in (paths.CORE, *parts)), key
            assert number < exercise.notebook[:2], key


def test_predictions_stand_beside_their_results(workshop_home):
    every = [key for chapter in chapters() for key in chapter.predictions]
    assert len(every) == len(set(every)) >= 20
    keys = [key for chapter in course_map().on_path for key in chapter.predictions]
    assert "prediction" not in course_map().summary()
    checking.predict("memory.how_many", ("less than 16 GB", "more than 16 GB")).choose(
        "less than 16 GB"
    )
    checking.predict("memory.how_many", result="more than 16 GB")
    checking.predict("memory.weights_or_kv", ("its weights", "about equal")).choose("about equal")
    checking.predict("memory.weights_or_kv", result="about equal")
    checking.predict("memory.fits_80_gb", ("in both", "in neither")).choose("in both")
    current_map = course_map()
    with_one_of_deeper = len(keys) + 1  # memory.weights_or_kv counts once it is made
    assert f"3 of {with_one_of_deeper} predictions made, 1 came true" in current_map.summary()
    shown = current_map._repr_html_()
    of_memory = len(current_map.chapters[1].predictions) + 1
    assert f"3 of {of_memory} predictions made, 1 came true" in shown
    assert "<td>how many</td><td>less than 16 GB</td><td>more than 16 GB</td>" in shown
    assert "<td>fits 80 gb</td><td>in both</td><td>…</td>" in shown


def test_links_are_reachable_by_keyboard_and_progress_is_said(workshop_home):
    page = Page(course_map()._repr_html_())
    in_order = [chapter.name for chapter in course_map().on_path]
    for role in paths.ROLES:
        in_order += [path.stem for path in NOTEBOOKS if role.has(path.stem)]
    assert page.links == [f"{name}.ipynb" for name in in_order], "real links, the core first"
    assert {*page.links} == {path.name for path in NOTEBOOKS}
    assert "Course map" in page.labels
    by_name = {chapter.name: chapter for chapter in chapters()}
    assert [label for label in page.labels if label.endswith("checks")] == [
        f"0 of {len(by_name[name].checks)} checks" for name in in_order
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
    assert path.next is None and path.summary() == (
        "0 of 0 checks of the core answered · about 1 h 30 min to go"
    )
    assert "nothing to check" in repr(path) and "nothing to check" in repr(
        ProgressLine(path, chapter)
    )
    (tmp_path / "09_rest.ipynb").write_text(json.dumps({"cells": [{"source": ["# 9. Rest"]}]}))
    with pytest.raises(BadInput, match=r"09_rest\.ipynb does not say how long"):
        chapters(tmp_path)


def test_a_notebook_ends_with_a_button_to_the_next_of_the_path(workshop_home):
    following = [
        progress.after(chapter) for progress in [course_map()] for chapter in progress.on_path
    ]
    assert [chapter.name[:2] for chapter in following] == ["01", "03", "04", "05", "07", "ca"]
    assert course_map().after(chapters()[2]) is None, "notebook 2 is not on this path"
    assert "Next: Capstone" in course_map("07_offline_batching")._repr_html_()
    assert "workshop certificate" in course_map("07_offline_batching")._repr_html_()
    assert repr(course_map("07_offline_batching")).endswith("your page: workshop certificate")
    assert "certificate" not in course_map("05_logprobs")._repr_html_()
    assert "Next:" not in course_map("capstone", path="capstone")._repr_html_()


def test_an_unknown_notebook_names_those_there_are(workshop_home):
    with pytest.raises(BadInput, match="00_start"):
        course_map("99_none")


def test_the_map_stands_near_the_top_and_the_line_at_the_end():
    assert "course_map()" in sources(NOTEBOOKS[0])[4], "after the box and the story"
    for path in NOTEBOOKS:
        assert f'course_map("{path.stem}")' in sources(path)[-1]
    assert the_map.__doc__

"""A class that jumps: each exercise of the core works once the cells above it have run, and no others."""

from __future__ import annotations

import deck
import pytest
from notebook_shell import run_core

from workshop.course.exercises.checking import all_exercises
from workshop.course.progress import course_map, paths

CORE = [chapter for chapter in course_map.chapters() if paths.CORE.has(chapter.name)]
WRITTEN = {  # by a learner, not chosen among options
    chapter.name: [key for key in chapter.checks if not all_exercises()[key].options]
    for chapter in CORE
}


def test_the_core_is_six_notebooks_with_exercises():
    assert [chapter.name[:2] for chapter in CORE] == ["00", "01", "03", "04", "05", "07"]
    assert all(WRITTEN.values())


@pytest.mark.parametrize("notebook", WRITTEN)
def test_no_cell_above_an_exercise_stops_run_all_above(notebook, core_of):
    errors = {done.cell.number: done.ran.error for done in core_of(notebook) if done.ran.error}
    assert errors == {}, "Run All Above Selected Cell ends at the first error"


@pytest.mark.parametrize("notebook", WRITTEN)
def test_an_open_exercise_asks_for_an_answer_and_takes_a_right_one(notebook, core_of, subtests):
    exercises = {done.key: done for done in core_of(notebook) if done.key}
    assert list(exercises) == WRITTEN[notebook]
    for key, done in exercises.items():
        with subtests.test(key):
            assert done.ran.error is None and done.ran.result.state == "unanswered"
            assert "with your answer, then run the cell again" in done.ran.text
            assert done.answered.error is None, done.answered.text
            assert done.answered.result.state == "right", done.answered.text


@pytest.mark.parametrize("notebook", WRITTEN)
def test_a_question_of_the_core_is_shown_with_its_options(notebook, core_of):
    shown = [done.ran.text for done in core_of(notebook)]
    for chapter in CORE:
        if chapter.name == notebook:
            questions = [key for key in chapter.checks if all_exercises()[key].options]
    for key in questions:
        title = all_exercises()[key].title
        assert any(title in text for text in shown), key


def test_where_a_slide_says_begin_at_this_heading_the_cells_below_it_are_enough(workshop_home):
    [(heading, _)] = deck.OTHER_JUMPS.items()
    exercises = [done for done in run_core("03_server", heading) if done.key]
    assert [done.key for done in exercises] == ["server.cause"]
    for done in exercises:
        assert done.ran.result.state == "unanswered"
        assert done.answered.result.state == "right"

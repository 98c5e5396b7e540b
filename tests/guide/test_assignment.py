"""What instructors take along: an assignment for otter-grader, and the page's part on checks, from their one source."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import assignment
import checks
import nbformat
import pytest

from workshop.course.exercises.checking import all_exercises
from workshop.course.progress.course_map import chapters

ROOT = Path(__file__).parents[2]
CHAPTERS = chapters()


def made(name: str):
    return assignment.assignment(json.loads((ROOT / "notebooks" / f"{name}.ipynb").read_text()))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_an_assignment_is_a_notebook_without_solutions_and_grades_every_check(chapter):
    notebook, tests = made(chapter.name)
    nbformat.validate(notebook)
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(text.startswith("# Solution") for text in code)
    keys = [*chapter.checks, *chapter.deeper]
    assert sorted(tests) == sorted(key.replace(".", "_") for key in keys)
    assert all(f'grader.check("{name}")' in code for name in tests)
    for text in code:
        compile(text.replace("await ", ""), chapter.name, "exec")


def grade(text: str, names: dict) -> bool:
    """As otter does: the cases of the test file, run as doctests on the learner's names."""
    file: dict = {}
    exec(text, file)
    assert file["OK_FORMAT"]
    cases = [case["code"] for suite in file["test"]["suites"] for case in suite["cases"]]
    runner = doctest.DocTestRunner(verbose=False)
    for case in cases:
        runner.run(
            doctest.DocTestParser().get_doctest(case, dict(names), "case", None, 0),
            out=lambda _: None,
        )
    return not runner.failures


def test_right_answers_earn_the_point_and_wrong_or_open_ones_do_not(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    _, tests = made("04_sampling")
    for name, right, wrong in (
        ("sampling_softmax", {"probability": 0.8438}, {"probability": 0.75}),
        ("sampling_recall", {"sampling_recall": "b"}, {"sampling_recall": "a"}),
        (
            "sampling_top_k",
            {"two_left": {"city": 5 / 7, "port": 2 / 7}},
            {"two_left": {"city": 0.5, "port": 0.2}},
        ),
    ):
        assert grade(tests[name], right) and not grade(tests[name], wrong)
        assert not grade(tests[name], dict.fromkeys(right, ...)), "an open answer earns nothing"


def test_the_page_says_of_checks_what_their_words_say():
    page = (ROOT / "docs" / "checks.md").read_text()
    assert page == checks.page(), "run: python docs/checks.py"
    for key, exercise in all_exercises().items():
        assert f"(`{key}`)" in page and all(why in page for why in exercise.wrong.values())


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_notebook_has_questions_and_key_points(chapter):
    questions, points = checks.words_of(chapter.name)
    assert questions.count("?") >= 2 and len(points) >= 3

"""Checks: quiet, kind, and they remember."""

from __future__ import annotations

import numpy as np
import pytest

from workshop.errors import BadInput
from workshop.learn import exercises
from workshop.learn.exercises import Exercise, check, close_to


@pytest.fixture(autouse=True)
def one_exercise(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    mine = {
        "demo.two": Exercise("Add", lambda answer: None if answer == 2 else "not two", ("think", "it is 1 + 1")),
        "demo.breaks": Exercise("Break", lambda answer: 1 / 0),
    }
    monkeypatch.setattr(exercises, "all_exercises", lambda: mine)


def test_unanswered_is_quiet_and_keeps_no_try():
    assert check("demo.two", ...).state == check("demo.two", ([1, 2], ...)).state == "unanswered"
    assert exercises.progress() == {}


def test_wrong_is_kind_and_offers_hints():
    result = check("demo.two", 3)
    assert not result and "not two" in repr(result)
    assert "<details" in result._repr_html_() and "it is 1 + 1" in result._repr_html_()


def test_right_is_remembered_also_after_a_later_slip():
    assert check("demo.two", 2)
    check("demo.two", 3)
    assert exercises.progress()["demo.two"] == {"tries": 2, "done": True}
    assert "1 of 2" in exercises.progress_bar("demo.two")


def test_an_answer_that_breaks_the_check_is_no_traceback():
    assert "ZeroDivisionError" in check("demo.breaks", object()).message


def test_strictness_raises_for_the_tests(monkeypatch):
    monkeypatch.setenv("WORKSHOP_STRICT", "1")
    with pytest.raises(AssertionError, match="not two"):
        check("demo.two", 3)
    assert check("demo.two", ...).state == "unanswered"


def test_no_space_for_progress_does_not_stop_a_learner(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKSHOP_HOME", str(tmp_path / "file"))
    result = check("demo.two", 2)
    assert result and "could not be kept" in result.note


def test_an_unknown_key_names_those_there_are():
    with pytest.raises(BadInput, match=r"demo\.two"):
        check("demo.three", 1)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (810, None),
        (810.5, None),
        (405, "half"),
        (1, "too small"),
        ("810", "not a number"),
        (True, "not a number"),
        (float("nan"), "number"),
    ],
)
def test_numbers_are_compared_with_what_went_wrong(answer, says):
    message = close_to(810, unit="GB", near_misses={405: "that is half: 2 bytes each"})(answer)
    assert message is None if says is None else says in message


def test_all_sets_of_the_course_load_and_their_keys_are_unique():
    import importlib
    import pkgutil

    from workshop.learn import exercise_sets

    seen: list[str] = []
    for module in pkgutil.iter_modules(exercise_sets.__path__):
        seen += importlib.import_module(f"{exercise_sets.__name__}.{module.name}").EXERCISES
    assert seen and len(seen) == len(set(seen))


@pytest.mark.parametrize(
    ("cell", "done"), [("# Solution: click the dots to open it\ncheck('demo.two', 2)", 0), ("check('demo.two', 2)", 1)]
)
def test_a_solution_that_ran_with_the_others_is_not_the_learners_answer(cell, done, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.user_ns["check"] = check
        result = shell.run_cell(cell, store_history=True).result
    finally:
        InteractiveShell.clear_instance()
    assert result and ("Only yours counts" in result._repr_html_()) == (not done)
    assert sum(entry["done"] for entry in exercises.progress().values()) == done


@pytest.mark.parametrize("answer", [2, 2.0, np.int64(2), np.float32(2.0)])
def test_a_number_is_a_number_whoever_made_it(answer):
    assert close_to(2)(answer) is None
    assert "too large" in close_to(1)(answer)

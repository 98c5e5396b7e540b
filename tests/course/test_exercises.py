"""Checks: quiet, kind, and they remember."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
import tomllib
from typing import get_type_hints

import pandas as pd
import pytest

from workshop.course.exercises import checking, sets
from workshop.course.exercises.checking import check, predict
from workshop.course.exercises.judging import Exercise, close_to, plain
from workshop.errors import BadInput, WorkshopError

ASKED = {
    "question": "Why?",
    "right": "b",
    "options": [["One.", "It is not one."], ["Two.", "It is two."], ["Three.", "It is not three."]],
}


@pytest.fixture(autouse=True)
def one_exercise(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    demo_exercises = {
        "demo.two": Exercise(
            "Add", lambda answer: None if answer == 2 else "not two", ("think", "`count` them")
        ),
        "demo.breaks": Exercise("Break", lambda answer: 1 / 0),
        "demo.why": Exercise.of(ASKED, None),
    }
    monkeypatch.setattr(checking, "all_exercises", lambda: demo_exercises)


def test_unanswered_is_quiet_and_keeps_no_try():
    assert check("demo.two", ...).state == check("demo.two", ([1, 2], ...)).state == "unanswered"
    assert checking.progress() == {}


def test_an_answer_with_open_parts_is_not_wrong(subtests):
    for answer in [(1, ...), [..., 1], {"A": 1, "B": ...}, {"A": (1, ...)}]:
        with subtests.test(str(answer)):
            result = check("demo.two", answer)
            assert result.state == "unanswered" and "each ... that is left" in result.message
            assert checking.progress() == {}


EXERCISES = checking.all_exercises()


def test_every_exercise_answers_what_it_cannot_use_with_a_sentence(subtests):
    for key, exercise in EXERCISES.items():
        with subtests.test(key):
            try:
                message = exercise.test(object())
            except WorkshopError:
                continue  # a judge that needs a server, and there is none
            assert message and "\n" not in message and len(message) < 1000


def test_wrong_is_kind_and_opens_hints_one_by_one():
    assert "Hint" not in check("demo.two", ...)._repr_html_()
    first, second = check("demo.two", 3), check("demo.two", 4)
    assert not first and "not two" in repr(first)
    assert (
        first.hints == ("think",) and "Another wrong answer opens the next" in first._repr_html_()
    )
    assert second.hints == ("think", "`count` them") and "Another" not in second._repr_html_()
    assert "<code>count</code> them" in second._repr_html_()
    assert "Hint" not in check("demo.two", 2)._repr_html_()


def test_right_is_remembered_also_after_a_later_slip():
    assert check("demo.two", 2)
    check("demo.two", 3)
    assert checking.progress()["demo.two"] == {"tries": 2, "done": True}
    check("demo.breaks", 3)
    assert "1 of 3" in checking.progress_bar("demo.two"), "what was tried is not done"


def test_an_answer_that_breaks_the_check_is_no_traceback():
    assert "ZeroDivisionError" in check("demo.breaks", object()).message


def test_a_check_that_needs_a_server_and_finds_none_counts_no_try(monkeypatch):
    def ask(answer):
        raise WorkshopError("No server is known here.", "Start one.")

    monkeypatch.setattr(checking.all_exercises()["demo.two"], "judge", ask)
    result = check("demo.two", 2)
    assert (result.state, result.message, result.hints) == (
        "unanswered",
        "No server is known here. Start one.",
        (),
    )
    assert checking.progress() == {}


def test_of_an_answer_that_cannot_be_used_the_beginning_is_shown():
    assert len(check("demo.breaks", 10**400).message) < 150


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


def test_numbers_are_compared_with_what_went_wrong(subtests):
    for answer, says in [
        (810, None),
        (810.5, None),
        (405, "half"),
        (1, "1 GB is too small"),
        (900, "900 GB is too large"),
        ("810", "without quotes"),
        ("810 GB", "without the unit: it is GB"),
        ("131,072", "give 131072 as a number"),  # typed as it stands, it is a SyntaxError
        ("39,06", "give 39.06 as a number"),
        ({"choices": [{"text": "x" * 500}]}, "… is not a number of GB"),
        (pd.DataFrame({"GB": [810]}), "{'GB': [810]} is not a number of GB: give a number"),
        ((810, 0), "commas"),
        (True, "not a number"),
        (float("nan"), "number of GB"),
    ]:
        with subtests.test(str(answer)):
            message = Exercise(
                "", close_to(810, "GB"), wrong={405: "that is half: 2 bytes each"}
            ).test(answer)
            assert message is None if says is None else says in message


def test_an_answer_that_is_off_by_a_prefix_is_asked_for_its_unit(subtests):
    for answer, unit, asks in [
        (810_000, "GB", "too large, by a factor of 1,000: is it in GB, or in another unit?"),
        (0.81 / 1024, "GB", ""),
        (810 / 1024, "GiB", "too small, by a factor of 1,024: is it in GiB"),
        (810 * 1.024**3, "GiB", "by a factor of 1.07"),
        (810 * 2**30, "GiB", "by a factor of 1,073,741,824"),
        (0.81, "s", "by a factor of 1,000: is it in s,"),
        (810 * 1024, "s", ""),
        (810_000, "tokens", ""),
        (0, "GB", ""),
        (-810, "GB", ""),
    ]:
        with subtests.test(str(answer)):
            message = close_to(810, unit)(answer)
            assert asks in message if asks else "factor" not in message
            assert close_to(0, unit)(answer) is None or "factor" not in close_to(0, unit)(answer)


def test_every_judge_has_words_and_every_key_its_notebooks_prefix():
    keys = []
    for module in pkgutil.iter_modules(sets.__path__):
        notebook_keys = checking.of_notebook(module.name.removeprefix("e"))
        # some were of 08, some of 13
        prefixes = 2 if module.name in ("e09_fewer_bits", "e14_agents") else 1
        assert len({key.split(".")[0] for key in notebook_keys}) == prefixes
        names = vars(importlib.import_module(f"{sets.__name__}.{module.name}"))
        entries = tomllib.loads((checking.SETS / f"{module.name}.toml").read_text())
        for key, entry in entries.items():
            judged = key.split(".")[1] in names
            assert judged == (not {"answer", "options"} & set(entry)), (
                f"{key}: a number or a judge of its name"
            )
        own = {
            name: value
            for name, value in names.items()
            if getattr(value, "__module__", "") == names["__name__"]
        }
        judges = {
            name for name, value in own.items() if get_type_hints(value).get("return") == str | None
        }
        judges = {name for name in judges if name[0] != "_"}
        assert judges <= {key.split(".")[1] for key in notebook_keys}, "a judge that nothing asks"
        keys += notebook_keys
    assert len(keys) == len(set(keys)) and checking.of_notebook("99_none") == ()


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Run a cell in IPython, as a notebook does; return its result."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.user_ns.update(check=check, predict=predict)
    yield lambda source: shell.run_cell(source, store_history=True).result
    InteractiveShell.clear_instance()


MINE = "answer = ...\ncheck('demo.two', answer)"
SOLUTION = '# Solution: click the dots\nprint("two")\ncheck("demo.two", 2)'


def test_a_solution_runs_in_tests(cell, monkeypatch):
    monkeypatch.setenv("WORKSHOP_STRICT", "1")
    assert cell(SOLUTION)


def test_other_cells_run_as_they_are(cell):
    cell(MINE)
    assert cell("6 * 7") == cell("# Solutions of an equation, no check\n6 * 7") == 42


def test_a_solution_that_ran_with_the_others_is_not_the_learners_answer(cell):
    assert not cell(MINE.replace("...", "3"))
    assert "Only yours counts" in cell(SOLUTION)._repr_html_()
    assert not checking.progress()["demo.two"]["done"]
    assert "Only yours counts" not in cell(MINE.replace("...", "2"))._repr_html_()
    assert checking.progress()["demo.two"] == {"tries": 2, "done": True}


def test_a_prediction_is_kept_and_shown_beside_the_result(workshop_home):
    prediction = predict("demo.more", ("more", "less"))
    assert prediction.asks and "one of: more · less" in repr(prediction)
    prediction.choose("less")
    assert predict("demo.more", ("more", "less")).predicted == "less", "it lasts"
    shown = predict("demo.more", result="more")
    assert (
        repr(shown) == "You predicted: less. Result: more."
        and repr(shown) in shown._repr_mimebundle_()["text/html"]
    )
    stored = json.loads((workshop_home / "progress.json").read_text())
    assert stored == {
        "demo.more": {"options": ["more", "less"], "predicted": "less", "result": "more"}
    }
    compared = predict("demo.more", ("more", "less"))
    assert not compared.asks, "what was compared stays as it is"
    assert "verdict open" in shown._repr_mimebundle_()["text/html"]
    assert "verdict good" in predict("demo.more", result="less")._repr_mimebundle_()["text/html"], (
        "a cell may run again"
    )


def test_a_click_predicts():
    pytest.importorskip("ipywidgets")
    prediction = predict("demo.more", ("more", "less"))
    buttons = prediction.buttons()
    assert buttons.value is None and "widget-view+json" in str(prediction._repr_mimebundle_())
    buttons.value = "more"
    assert checking.progress()["demo.more"]["predicted"] == "more"


def test_who_did_not_predict_sees_the_result_and_may_predict_later():
    assert repr(predict("demo.more", result="more")) == "No prediction. Result: more."
    predict("demo.more", ("more", "less"))
    predict("demo.more", result="more")
    late = predict("demo.more", ("more", "less"))
    assert late.asks
    late.choose("less")
    assert repr(predict("demo.more", ("more", "less"))) == "You predicted: less. Result: more."


def test_a_result_or_choice_that_is_no_option_is_refused():
    prediction = predict("demo.more", ("more", "less"))
    for wrong in (lambda: prediction.choose("same"), lambda: predict("demo.more", result="same")):
        with pytest.raises(BadInput, match="more, less"):
            wrong()


def test_a_question_is_shown_with_its_options_and_answers_each_of_them():
    assert all(
        text in repr(check("demo.why")) for text in ("Why?", "a) One.", "b) Two.", "c) Three.")
    )
    assert checking.progress() == {}, "to look is no try"
    wrong, right = check("demo.why", "c"), check("demo.why", " B) ")
    assert not wrong and "✗ c) Three. It is not three." in repr(wrong)
    assert right and "✓ b) Two. It is two." in repr(right) and "It is two." in right._repr_html_()
    assert checking.progress()["demo.why"] == {"first": "c", "tries": 2, "done": True}


def test_what_is_no_option_is_told_the_letters(subtests):
    for answer in ["d", "", 2, None, "Two."]:
        with subtests.test(str(answer)):
            assert "give one of a, b, c" in check("demo.why", answer).message


def test_a_click_answers_a_question():
    pytest.importorskip("ipywidgets")
    question = check("demo.why")
    assert "widget-view+json" in str(question._repr_mimebundle_())
    *_, buttons, feedback = question.buttons().children
    assert buttons.value is None and [text for text, _ in buttons.options] == [
        "a) One.",
        "b) Two.",
        "c) Three.",
    ]
    buttons.value = "a"
    assert "It is not one." in feedback.value and not checking.progress()["demo.why"]["done"]
    buttons.value = "b"
    assert "It is two." in feedback.value and checking.progress()["demo.why"]["done"]


def test_tests_answer_questions_by_themselves(monkeypatch):
    monkeypatch.setenv("WORKSHOP_STRICT", "1")
    check("demo.why")._repr_mimebundle_()
    assert checking.progress()["demo.why"]["done"]


def test_a_number_is_right_rounded_to_the_digits_that_were_asked_for_or_more(subtests):
    for digits, right, wrong in [
        (2, (0.12, 0.123, 0.1235, 0.123456), (0.1, 0.13)),
        (3, (0.123,), (0.12,)),
    ]:
        with subtests.test(str(digits)):
            judge = close_to(0.123456, digits=digits)
            assert [judge(answer) for answer in right] == [None] * len(right) and all(
                judge(answer) for answer in wrong
            )


def test_a_series_without_labels_is_a_list_and_a_dict_of_whole_numbers_stays_one():
    assert plain(pd.Series([5, 7])) == [5, 7] and plain(pd.Series({1: 5, 2: 7})) == {1: 5, 2: 7}
    assert plain({0: "a", 1: "b"}) == {0: "a", 1: "b"}


def test_reading_all_exercises_needs_no_library_that_a_browser_lacks():
    code = (
        "import sys; from workshop.course.exercises.checking import all_exercises; all_exercises();"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lacking = {"huggingface_hub", "openai", "aiohttp", "torch", "matplotlib"}
    assert not lacking & set(done.stdout.split())

"""An answer that Python cannot read gets a sentence about the answer; a prediction's result says why."""

from __future__ import annotations

import pytest
from IPython.core.interactiveshell import InteractiveShell
from predictions import NOTEBOOKS, RIGHT, predictions

from workshop.course.exercises import checking, slips
from workshop.course.exercises.checking import check, predict
from workshop.course.progress import paths

CORE_PREDICTIONS = [
    prediction.key
    for path in NOTEBOOKS
    if paths.CORE.has(path.stem)
    for prediction in predictions(path)
]
LONGEST_REASON = 22  # words: one clause, read in a glance


def test_a_slip_gets_a_sentence_about_the_answer(subtests):
    for answer, sentence in [
        ("39,06", "a point in place of the comma"),
        ("39.06 GiB", "without its unit"),
        ("150 GB/s     # both ways", "without its unit"),
        ("451 248", "leave out the spaces"),
        ("1 234.5", "leave out the spaces"),
        ("84 %", "leave out the % sign"),
        ("“shard”", "straight quotes"),
        ("memory", 'in quotes, "memory"'),
        ("(city, 0.5)", 'in quotes, "city"'),
        ('{"city": port}', 'in quotes, "port"'),
    ]:
        with subtests.test(answer):
            message = slips.slip(
                f'value = {answer}\ncheck("memory.kv_request_70b", value)', {"check"}
            )
            assert message and sentence in message
            assert "Syntax" not in message and "NameError" not in message


def test_what_python_runs_or_explains_better_is_left_to_it(subtests):
    for source in [
        "value = 39.06",
        "value = (2, 32, 8, 128, 2)",
        "value = [1, 2",  # Python's own message says what is open
        "def best(scored)\n    return 1",
        "value = known",
        "value = later + 1",  # a computation: Python's own message names what is missing
        "value = ...",
        "answer = known.case",
    ]:
        with subtests.test(source):
            assert slips.slip(source, {"known"}) is None


@pytest.fixture
def shell(workshop_home, monkeypatch):
    monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
    own = InteractiveShell()
    monkeypatch.setattr(checking.lost, "shell", lambda: own)
    own.push({"check": check})
    checking._watch_cells()
    return own


def test_a_cell_of_a_notebook_shows_the_sentence_and_counts_no_try(shell, subtests):
    for answer in ["39,06", "memory"]:
        with subtests.test(answer):
            run = shell.run_cell(f'value = {answer}\ncheck("memory.kv_request_70b", value)')
            assert run.success and run.result.state == "unanswered"
            assert "point" in run.result.message or "quotes" in run.result.message
            assert checking.progress() == {}


def test_cells_without_an_exercise_keep_their_errors(shell, capsys):
    assert not shell.run_cell("value = 39,06").success
    assert not shell.run_cell("value = memory").success


def test_a_number_on_another_scale_is_told_so(workshop_home, monkeypatch, subtests):
    for key, answer, sentence in [
        ("server.hand_tokens", 65.536, "a point separates no thousands"),
        ("sampling.softmax", 85.0, "from 0 to 1, not percent"),
        ("logprobs.confidence", 28.6, "from 0 to 1, not percent"),
    ]:
        with subtests.test(key):
            monkeypatch.delenv("WORKSHOP_STRICT", raising=False)
            assert sentence in check(key, answer).message


def test_the_result_of_a_prediction_of_the_core_has_a_reason(subtests):
    for key in CORE_PREDICTIONS:
        with subtests.test(key):
            result, reason = checking.reasons()[key]
            told = RIGHT[key][0]
            assert result == told or told.startswith(result) or result.lower() in told.lower()
            assert 4 <= len(reason.split()) <= LONGEST_REASON and not reason.endswith(".")


def test_every_reason_explains_an_option():
    options = {
        prediction.key: prediction.options for path in NOTEBOOKS for prediction in predictions(path)
    }
    for key, (result, _) in checking.reasons().items():
        assert result in options[key], key


def test_a_reason_is_shown_beside_its_result_alone(workshop_home):
    options = ("both", "only /health", "neither")
    predict("start.no_key", options).choose("neither")
    assert "as a completion needs the key" in repr(predict("start.no_key", result="only /health"))
    assert repr(predict("start.no_key", result="both")) == "You predicted: neither. Result: both."

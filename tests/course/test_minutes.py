"""Stated minutes are measured: words, code, tasks and outputs at their rates, waiting by the clock."""

from __future__ import annotations

import json
from pathlib import Path

import course_minutes
import pytest

from workshop.course.progress import paths

ROOT = Path(__file__).parents[2]


# What a learner does there is their own work, which nobody can count.
OWN_WORK = ("capstone",)
NAMES = [name for name in course_minutes.names() if name not in OWN_WORK]
CORE = [name for name in NAMES if paths.CORE.has(name)]


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Write a notebook of some cells, and return what it takes."""

    def write(*cells: dict) -> course_minutes.Times:
        monkeypatch.setattr(course_minutes, "NOTEBOOKS", tmp_path)
        whole = [{"metadata": {}, **cell} for cell in cells]
        (tmp_path / "99_test.ipynb").write_text(json.dumps({"cells": whole}))
        return course_minutes.times("99_test")

    return write


def text(source: str) -> dict:
    return {"cell_type": "markdown", "source": source}


def code(source: str, **metadata: object) -> dict:
    return {"cell_type": "code", "source": source, "metadata": metadata}


def test_180_words_take_a_minute_without_markup_and_tooltips(notebook):
    word = '<abbr title="a long explanation that nobody reads unless the mouse rests">word</abbr>'
    times = notebook(text("## " + " ".join([word] * 178) + " [two words](https://a.example/b)"))
    assert times.reading == pytest.approx(60)


def test_what_is_folded_takes_no_time_unless_everybody_opens_it(notebook):
    folded = "<details><summary>Deeper</summary>\n\n" + "word " * 500 + "</details>"
    assert notebook(text(folded)).reading == 0
    seen = "<details><summary>What you should see</summary>\n\n" + "word " * 176 + "</details>"
    assert notebook(text(seen)).reading == pytest.approx(60)


def test_hidden_code_takes_no_time_and_a_line_five_seconds(notebook):
    hidden = code("# Solution\na = 1", jupyter={"source_hidden": True}, tags=["solution"])
    assert notebook(code("a = 1\n\nb = 2"), hidden).code == 10


def test_an_exercise_takes_three_minutes_and_a_prediction_twenty_seconds(notebook):
    times = notebook(
        code('predict("memory.how_many", ("less", "more"))'),
        code('answer = ...\ncheck("memory.weights_405b", answer)'),
    )
    assert times.answers == 20 + 180


def test_the_stated_minutes_are_the_computed_ones(subtests):
    """Run benchmarks/course_minutes.py --write after a change of a notebook."""
    for name in CORE:
        with subtests.test(name):
            assert name in course_minutes.measured(), "its waiting was measured"
            computed = course_minutes.times(name).minutes
            assert abs(course_minutes.stated(name) - computed) <= course_minutes.ROUND_TO


def test_the_core_takes_three_and_a_half_hours_at_most():
    assert sum(course_minutes.times(name).minutes for name in CORE) <= 210

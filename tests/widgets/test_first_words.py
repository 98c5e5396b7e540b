"""The box of the first minute without a browser, and what its page is texts."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import types
from html import escape
from pathlib import Path

import pytest

pytest.importorskip("ipywidgets")

from workshop.client import client
from workshop.course.exercises import checking
from workshop.course.widgets import page_answer
from workshop.course.widgets.page_answer import ANSWER_S, CAUSES
from workshop.course.widgets.sampling import first_words
from workshop.course.widgets.sampling.first_words import FirstWords, is_word, plain
from workshop.course.widgets.sampling.source import Position, ServerSource, TeachingModel
from workshop.errors import WorkshopError
from workshop.teaching_model import reference

ROOT = Path(__file__).parents[2]


class Gone:
    """A server that answers a number of times."""

    def __init__(self, answers: int):
        self.answers = answers

    def describe(self) -> str:
        return "a server"

    def position(self, prompt, output=()):
        if not self.answers:
            raise WorkshopError("The server does not answer.", "Start it again.")
        self.answers -= 1
        return Position({5: math.log(0.75), 6: math.log(0.25)})

    def text(self, tokens):
        return "".join(f" t{token}" for token in tokens)


@pytest.fixture
def box(workshop_home):
    """A box where no server runs."""
    return FirstWords()


class TestBox:
    def test_without_a_server_the_teaching_model_is_computed_here(self, box):
        assert isinstance(box.source, TeachingModel)
        label = (
            'aria-label="Next token: port 52 %, center 18 %'  # NumPy in float32: a server says 19 %
        )
        assert label in box.picture.value

    def test_it_shows_what_the_reference_computes(self, box):
        ids = reference.encode("San Francisco is a")
        import numpy as np

        logits = reference.load().logits(np.array([ids]))[0, -1].astype(float)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        for row in box._drawn.rows:
            assert row.sampled == pytest.approx(shares[row.token], abs=1e-4)

    def test_typing_asks_again_and_the_temperature_does_not(self, box):
        texts = []
        look = box.source.position
        box.source.position = lambda text: texts.append(text) or look(text)
        box.controls["text"].value = "A dog is a"
        assert "member 100 %" in box.picture.value
        box.controls["temperature"].value = 0.5
        box.controls["text"].value = "A dog is a "  # a space at the end: the same question
        assert texts == ["A dog is a"]

    def test_an_empty_box_keeps_the_last_picture(self, box):
        box.controls["text"].value = "A dog is a"
        box.controls["text"].value = ""
        assert "member 100 %" in box.picture.value
        assert "✗" not in box.picture.value

    def test_a_server_that_goes_away_is_followed_by_the_teaching_model_without_an_error(self):
        box = FirstWords(Gone(answers=1))
        assert "t5 75 %" in box.picture.value
        box.controls["text"].value = "A dog is a"
        assert "member 100 %" in box.picture.value
        assert "✗" not in box.picture.value

    def test_a_server_that_is_starting_is_not_waited_for(self, workshop_home, monkeypatch):
        record = types.SimpleNamespace(state="starting")
        monkeypatch.setattr(first_words.reach, "find", lambda: record)
        monkeypatch.setattr(client, "connect", lambda: pytest.fail("it connects"))
        assert isinstance(FirstWords().source, TeachingModel)

    def test_a_word_that_is_added_stands_in_the_box(self, box):
        box.controls["temperature"].value = 0
        box.add_word()
        assert box.controls["text"].value == "San Francisco is a port"

    def test_tokens_are_shown_as_a_beginner_reads_them(self, subtests):
        for text, shown, can_be_added in [
            (" port", "port", True),
            ("\n", "⏎", True),
            ("�", "▯ (part of a character)", False),
            ("<|end_of_text|>", "<|end_of_text|>", False),
        ]:
            with subtests.test(text):
                assert plain(text) == shown
                assert is_word(text) == can_be_added


@pytest.fixture
def asked_by_a_page(monkeypatch):
    """A cell that a page has sent; the clock stands still."""
    monkeypatch.setattr(page_answer, "a_page_asks", lambda: True)
    clock = types.SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(page_answer, "time", clock)
    return clock


class TestPage:
    def test_nothing_is_said_where_nobody_looks(self, box):
        box._repr_mimebundle_()
        box.answer.sent_at -= 2 * ANSWER_S
        assert box.check_page() is None, "pytest is no page, as nbconvert and nbval are none"

    def test_a_page_that_has_answered_shows_widgets(self, box, asked_by_a_page):
        box._repr_mimebundle_()
        box.answer.click()
        assert repr(box.check_page()) == "✓ Buttons and sliders work here."

    def test_cells_that_run_at_once_are_too_early(self, box, asked_by_a_page):
        box._repr_mimebundle_()
        asked_by_a_page.now += ANSWER_S / 2
        assert box.check_page() is None

    def test_a_page_that_does_not_answer_is_told_three_causes_and_gets_the_picture(
        self, box, asked_by_a_page
    ):
        box._repr_mimebundle_()
        asked_by_a_page.now += ANSWER_S + 1
        verdict = box.check_page()
        shown = verdict._repr_html_()
        for cause, remedy in CAUSES:
            assert f"{cause} {remedy}" in repr(verdict)
            assert cause in shown
        assert "port 52 %" in shown
        assert "<b>San Francisco is a</b>" in shown

    def test_a_cell_of_a_page_is_told_by_its_id(self, monkeypatch):
        import IPython.core.getipython as ipython

        for metadata, expected in (({"cellId": "a"}, True), ({}, False)):
            parent = {"metadata": metadata}
            kernel = types.SimpleNamespace(get_parent=lambda parent=parent: parent)
            shell = types.SimpleNamespace(kernel=kernel)
            monkeypatch.setattr(ipython, "get_ipython", lambda shell=shell: shell)
            assert page_answer.a_page_asks() is expected
        monkeypatch.setattr(ipython, "get_ipython", lambda: None)
        assert not page_answer.a_page_asks()


def test_every_view_has_a_static_form_for_pages_without_widgets():
    from workshop.course.widgets.memory.view import MemorySliders

    sliders = MemorySliders()
    bundle = sliders._repr_mimebundle_()
    assert set(bundle) == {
        "text/plain",
        "text/html",
        "application/vnd.jupyter.widget-view+json",
    }
    assert sliders.picture.value in bundle["text/html"]
    assert "model: <b>llama-3.1" in bundle["text/html"]
    assert "GPU: <b>H100 SXM5" in bundle["text/html"] and "GPUs: <b>1<" in bundle["text/html"]
    question = checking.Question("memory.training")
    for text, _ in question.exercise.options.values():
        assert escape(text, quote=False) in question._repr_mimebundle_()["text/html"]


def test_without_a_server_the_first_picture_waits_for_no_client(tmp_path):
    """Importing openai takes longer than all the rest."""
    code = "import sys; from workshop import FirstWords; FirstWords(); sys.exit('openai' in sys.modules)"
    environment = {**os.environ, "WORKSHOP_HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT).returncode == 0


@pytest.mark.live
def test_the_server_that_runs_is_asked(server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    box = FirstWords()
    assert isinstance(box.source, ServerSource)
    assert "port" in box.picture.value
    box.controls["text"].value = "A dog is a"
    assert "member 100 %" in box.picture.value
    box.add_word()
    assert box.controls["text"].value == "A dog is a member"

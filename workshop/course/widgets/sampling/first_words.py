"""The box of notebook 0: a text that is typed, and its next words, which branch as the temperature says."""

from __future__ import annotations

import contextlib
import random
import sys

import ipywidgets as widgets

from workshop.client import reach
from workshop.client.sampling import Pipeline, Token, draw, pipeline
from workshop.client.sampling_settings import Settings
from workshop.course.drawing.html import Html, div, muted, panel, span
from workshop.course.drawing.readable_numbers import percent
from workshop.course.widgets.controls import Explorer, button, in_a_row, made, real
from workshop.course.widgets.page_answer import PageAnswer, Verdict
from workshop.course.widgets.sampling import picture as draws
from workshop.course.widgets.sampling.branching import SliderSteps, Word, branching
from workshop.course.widgets.sampling.source import (
    END,
    Distributions,
    Position,
    ServerSource,
    TeachingModel,
)
from workshop.errors import WorkshopError

TEXT = "San Francisco is a"
PATIENCE_S = 2.0  # a server that is slower than this is not for a first minute
TRIES = 20  # until what is drawn is a word
LOOK = {"font_size": "18px", "description_width": "initial"}


def first_source() -> Distributions:
    """Return the server that runs; without one, the teaching model in this process."""
    with contextlib.suppress(WorkshopError):
        # a page without a server (JupyterLite) has a client of its own
        if sys.platform == "emscripten" or reach.find().state == "ready":
            from workshop.client.client import connect  # half a second, only where it is needed

            return ServerSource(connect(), PATIENCE_S)
    return TeachingModel()


class FirstWords(Explorer[Pipeline]):
    """A box for a text, and the words that may come next, each branch as wide as its word is probable.

    The server that runs is asked. Where there is none yet, or it does not answer, the teaching model
    is computed here.

    >>> from workshop import FirstWords
    >>> box = FirstWords()
    >>> box.controls["temperature"].value = 0     # as if dragged there
    >>> len(box.result.probabilities)             # words that may come
    1

    Args:
        source: what says which words may come; None: the server, or the teaching model.
        text: what stands in the box at first.
    """

    def __init__(self, source: Distributions | None = None, text: str = TEXT):
        self.source = source or first_source()
        self._position: Position | None = None
        self._text = text  # what was last asked about
        self._drawn: draws.Bars | None = None
        self._steps = SliderSteps()
        self._random = random.Random()
        self.answer = PageAnswer()
        self.add = button("Add a word", self.add_word, button_style="primary", icon="plus")
        box = made(widgets.Text, "type", text, "100%", placeholder="the beginning of a sentence")
        box.style = LOOK
        box.layout.height = "38px"
        slider = real("temperature", 1.0, 0, 2, 0.05, width="320px")
        super().__init__({"text": box, "temperature": slider}, max_width="720px")

    def arranged(self) -> tuple[widgets.Widget, ...]:
        """Return the box, the slider with the button, and the picture."""
        row = in_a_row(self.controls["temperature"], self.add, gap="2px 14px")
        return self.controls["text"], row, self.picture, self.answer

    def check_page(self) -> Verdict | None:
        """Return whether the page shows widgets, and what to do if not; None where nobody looks."""
        return self.answer.verdict(self)

    def _repr_mimebundle_(self, **kwargs: object) -> dict[str, object]:
        self.answer.sent()
        return super()._repr_mimebundle_(**kwargs)

    def compute(self) -> Pipeline:
        """Return the distribution after the text, under the temperature."""
        # A space at the end would ask for a word without one in front: notebook 4 has it as a pitfall.
        text = self.controls["text"].value.rstrip()
        if self._position is None or (text and text != self._text):
            self._position = self._look(text or TEXT)
            self._text = text or TEXT
        settings = Settings(temperature=self.controls["temperature"].value)
        return pipeline(self._position.logprobs, settings, ceiling=self._position.ceiling)

    def _look(self, text: str) -> Position:
        """Ask the server; the teaching model stands in for one that does not answer."""
        try:
            return self.source.position(text)
        except WorkshopError:
            if isinstance(self.source, TeachingModel):
                raise
        self.source = TeachingModel()
        return self.source.position(text)

    def picture_of(self, result: Pipeline) -> Html:
        """Return the branching with the percentages."""
        shown = draws.rows_shown(result.steps[0].probabilities, ())
        drawn = draws.bars(result, shown, self._word)
        before = {}
        if self._drawn is not None:
            before = {row.token: row.sampled for row in (*self._drawn.rows, self._drawn.others)}
        self._drawn = drawn
        next_words = []
        for row in (*drawn.rows, drawn.others):
            name = div(plain(row.label), cls="name cut", title=draws.spoken(row.label))
            number = span(percent(row.sampled), cls="number")
            old = before.get(row.token, 0.0)
            next_words.append(Word(name, row.sampled, old, number, draws.look_of(row)))
        shown = branching(self._text, next_words, look="plain", is_still=self._steps.come_fast())
        return panel(shown, muted(self.source.describe()), label=draws.spoken_shares(drawn.rows))

    def _word(self, token: Token) -> str:
        return self.source.text((token,))

    def add_word(self) -> None:
        """Draw a word by its probability, and write it behind the text."""
        if self.result is None:
            return
        for _ in range(TRIES):
            text = self._word(draw(self.result.probabilities, self._random))
            if is_word(text):
                self.controls["text"].value = self._text + text
                return


def is_word(text: str) -> bool:
    """Return whether a token can stand in the box: no end of the text, no part of a character."""
    return bool(text) and "�" not in text and not END.fullmatch(text)


def plain(text: str) -> str:
    """Return a token as a beginner reads it: without the space in front."""
    if not text.strip() or "�" in text:
        return draws.token_label(text)
    return text.strip()

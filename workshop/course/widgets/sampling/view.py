from __future__ import annotations

import random
from collections.abc import Collection
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.client.sampling import Pipeline, SampledStep, Token, draw, model_step, pipeline
from workshop.client.sampling_settings import DEFAULTS, Settings
from workshop.course.drawing.html import Html, alert, join, span
from workshop.course.widgets.controls import (
    Explorer,
    beside,
    button,
    in_a_row,
    made,
    real,
    whole,
)
from workshop.course.widgets.sampling import picture as draws
from workshop.course.widgets.sampling.branching import SliderSteps
from workshop.course.widgets.sampling.picture import USUAL
from workshop.course.widgets.sampling.source import (
    END,
    Distributions,
    Position,
    ServerSource,
    TeachingModel,
)
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    from workshop.client.client import Client

PROMPT = "San Francisco is a"
HIGHEST_TOP_K = 200  # the slider's end; anything higher hardly differs from off
SLIDERS = {
    "temperature": (real, 0, 2, 0.05),
    "min_p": (real, 0, 0.5, 0.01),
    "top_k": (whole, -1, HIGHEST_TOP_K, 1),
    "top_p": (real, 0.01, 1, 0.01),
    "frequency_penalty": (real, -2, 2, 0.1),
    "presence_penalty": (real, -2, 2, 0.1),
}


class SamplingExplorer(Explorer[Pipeline]):
    """The distribution of the next token, and what the sampling parameters make of it.

    They apply in vLLM's order.

    The text branches into its next tokens, each branch as wide as its token is probable. An outline
    is the model's probability, a filled bar what is sampled: after penalties, temperature, min_p,
    top_k and top_p. Branches and bars glide from one setting to the next. "Sample a token" draws one
    and goes on from there.

    >>> from workshop import SamplingExplorer
    >>> explorer = SamplingExplorer()   # SamplingExplorer(llm) asks a server
    >>> explorer.sliders["top_k"].value = 2     # as if dragged there
    >>> len(explorer.result.probabilities)      # tokens that may come
    2
    >>> first = SamplingExplorer(show=("temperature",))     # one slider; the page grows with the notebook

    Args:
        source: a client (`connect()`), distributions, or None: the teaching model, computed here.
        prompt: what to start from.
        settings: where the sliders stand at first.
        show: the sliders to show, by name, from top to bottom; the others stay off and hidden.
            None: everything.
        best_tokens: how many tokens to take at the start, each the most probable one. Penalties
            need some.

    Raises:
        BadInput: there is no slider of that name.
    """

    def __init__(
        self,
        source: Client | Distributions | None = None,
        prompt: str = PROMPT,
        settings: Settings | None = None,
        *,
        show: Collection[str] | None = None,
        best_tokens: int = 0,
    ):
        self.shown_sliders = _shown_sliders(show)
        self.is_whole = show is None
        if source is None:
            source = TeachingModel()
        elif not isinstance(source, Distributions):
            source = ServerSource(source)
        self.source: Distributions = source
        self.output: list[Token] = []  # what was generated
        self._shown: list[Token] = []  # what has a row
        self._drawn: draws.Bars | None = None  # what is on the screen
        self._steps = SliderSteps()
        self._position: Position | None = None
        self._model: SampledStep | None = None
        self.head = widgets.HTML()
        self.story = widgets.HTML()
        self.banner = widgets.HTML()
        self.prompt = _prompt_box(prompt, is_low=not self.is_whole)
        self.prompt.observe(lambda _: self.ask(), "value")
        self.sliders = {}
        for name, (make, low, high, step) in SLIDERS.items():
            value = min(getattr(settings or DEFAULTS, name), high)
            self.sliders[name] = make(name, value, low, high, step, tooltip=USUAL[name])
        super().__init__(self.sliders, label_px=130, indent_px=4, max_width="1000px")
        self.ask()
        for _ in range(best_tokens):
            self.take_best()

    def control_rows(self) -> list[tuple[widgets.Widget, ...]]:
        """Return the sliders that are shown, each with what it does just now."""
        return [(self.sliders[name], self.says[name]) for name in self.shown_sliders]

    def arranged(self) -> tuple[widgets.Widget, ...]:
        picture = widgets.VBox([self.picture, self._buttons_below()])
        rows = self.control_rows()
        if len(rows) == 1:  # above the picture, which has the whole width
            body = widgets.VBox([*rows[0], picture])
        else:
            about_off = "temperature 1, everything else off"
            off = button("All off", lambda: self.set(DEFAULTS), "90px", tooltip=about_off)
            body = beside([*rows, (off,)], picture, 385)
        return self.head, widgets.HBox([self.prompt]), self.story, self.banner, body

    def _buttons_below(self) -> widgets.HBox:
        """Return the buttons that add or remove a token, and the seed."""
        self.seed = made(widgets.IntText, "seed", 1, "110px")
        sample = button("Sample a token", self.sample, button_style="primary", icon="random")
        best = button("Take the best", self.take_best)
        back = button("Step back", self.step_back, icon="undo")
        again = button("Start again", self.ask)
        return in_a_row(sample, best, back, again, self.seed)

    @property
    def settings(self) -> Settings:
        return Settings(**self.values)

    def set(self, settings: Settings) -> None:
        """Move all sliders, and draw once."""
        with self.without_drawing():
            for name, slider in self.sliders.items():
                slider.value = max(slider.min, min(slider.max, getattr(settings, name)))
        self.draw()

    @property
    def _prompt_text(self) -> str:
        return self.prompt.value or ""

    def ask(self) -> None:
        self.output = []
        self._move()

    def _move(self) -> bool:
        """Fetch the distribution after the present text; keep the old picture if that fails."""
        try:
            self._position = self.source.position(self._prompt_text, tuple(self.output))
        except WorkshopError as error:
            self.banner.value = alert(error)
            return False
        self.banner.value = ""
        self._model = model_step(self._position.logprobs)
        self._shown = draws.rows_shown(self._model.probabilities, self.output)
        listed = len(self._position.logprobs)
        self.head.value = draws.head(self.source.describe(), self._model, listed)
        texts = list(map(self._text, self.output))
        self.story.value = draws.story(self._prompt_text, texts)
        self.draw()
        return True

    def _text(self, token: Token) -> str:
        return self.source.text((token,))

    def draw(self) -> None:
        if self._position is not None:
            super().draw()

    def compute(self) -> Pipeline:
        position = self._position
        assert position is not None, "nothing is drawn before there is a distribution"
        return pipeline(
            position.logprobs,
            self.settings,
            output_tokens=self.output,
            model=self._model,
            ceiling=position.ceiling,
        )

    def picture_of(self, result: Pipeline) -> Html:
        before = self._drawn
        self._drawn = draws.bars(result, self._shown, self._text, generated=self.output)
        text = self._prompt_text + self.source.text(tuple(self.output))
        return draws.picture(
            self._drawn,
            text,
            before,
            is_still=self._steps.come_fast(),
            is_short=not self.is_whole,
        )

    def sentences(self) -> dict[str, Html]:
        if self.result is None:
            return {}
        effects = draws.effects(self.settings, self.result, generated=len(self.output))
        sentences = {}
        for name, effect in effects.items():
            sentences[name] = join([span(effect, cls="ink-text"), f" {USUAL[name]}"])
        return sentences

    def sample(self) -> None:
        """Draw a token from what the bars show (as the server would), append it, and go on."""
        if self.result is not None:
            random_numbers = random.Random(f"{self.seed.value}:{len(self.output)}")
            self._append(draw(self.result.probabilities, random_numbers))

    def take_best(self) -> None:
        if self.result is not None:
            probabilities = self.result.probabilities
            self._append(max(probabilities, key=probabilities.__getitem__))

    def _append(self, token: Token) -> None:
        if self.output and END.fullmatch(self._text(self.output[-1])):
            ended = "The model has ended its text: a server would stop here."
            self.banner.value = alert(WorkshopError(ended, "Step back, or start again."))
            return
        self.output.append(token)
        if not self._move():
            self.output.pop()

    def step_back(self) -> None:
        if self.output:
            self.output.pop()
            self._move()


def _prompt_box(prompt: str, *, is_low: bool) -> widgets.Text | widgets.Textarea:
    """Return the box that a prompt is typed into: one for several lines where the first one has some.

    A box for one line drops the line ends, and the model would read another prompt. A low box for
    several lines shows one of them.
    """
    if "\n" not in prompt:
        return made(widgets.Text, "prompt", prompt, "100%", continuous_update=False)
    rows = 1 if is_low else 3
    box = made(widgets.Textarea, "prompt", prompt, "100%", rows=rows, continuous_update=False)
    if is_low:
        box.add_class("workshop-one-line")
    return box


def _shown_sliders(show: Collection[str] | None) -> list[str]:
    """Return the names of the sliders to show, each once, from top to bottom; a text is one name.

    Raises:
        BadInput: there is no slider of that name, or none is named.
    """
    if show is None:
        return list(SLIDERS)
    names = list(dict.fromkeys(show))
    if isinstance(show, str):
        names = [show]
    offered = f"There are: {', '.join(SLIDERS)}."
    if not names:
        raise BadInput("No slider is named.", offered)
    for name in names:
        if name not in SLIDERS:
            raise BadInput(f"There is no slider {name!r}.", offered)
    return names

"""The sampling explorer: one token's distribution under the sliders, token by token."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.html import alert
from workshop.learn.widgets.controls import AUTO, View, button, in_a_row, real, whole
from workshop.learn.widgets.sampling.bars import bars, rows_shown
from workshop.learn.widgets.sampling.panels import CompletionsPanel, SameSeedPanel
from workshop.learn.widgets.sampling.picture import MAX_TOKENS, head, picture, said, story
from workshop.learn.widgets.sampling.recorded import RecordedSource
from workshop.learn.widgets.sampling.source import END, Completion, Position, ServerSource, Source
from workshop.learn.widgets.sampling.words import USUAL, words
from workshop.use.distribution import draw
from workshop.use.sampling import Pipeline, Step, Token, model_step, pipeline
from workshop.use.sampling_settings import Settings

if TYPE_CHECKING:
    from workshop.use.client import Client

PROMPT = "San Francisco is a"
HIGHEST_TOP_K = 200  # the slider's end; below the vocabulary anything higher hardly differs from off
_KEEP = object()


class SamplingExplorer(View):
    """The distribution of the next token, and what the sampling parameters make of it, in vLLM's order.

    An outline is the model's probability, a filled bar what is sampled: after penalties, temperature, min_p, top_k and
    top_p. "Sample a token" draws one and goes on from there; "Pin as B" keeps settings to compare others with.

    >>> from workshop import SamplingExplorer
    >>> explorer = SamplingExplorer()           # a recording; SamplingExplorer(connect()) asks your server
    >>> explorer.sliders["top_k"].value = 2     # as if dragged there
    >>> len(explorer.result.probabilities)      # tokens that may come
    2

    Args:
        source: a client (`connect()`), a source, or None: the recording that comes with the course.
        prompt: what to start from.
        settings: where the sliders stand at first.
    """

    def __init__(self, source: Client | Source | None = None, prompt: str = PROMPT, settings: Settings | None = None):
        self.source: Source = _as_source(source)
        self.output: list[Token] = []
        self.result: Pipeline | None = None
        self.pinned: Settings | None = None
        self._position: Position | None = None
        self._model: Step | None = None
        self._shown: list[Token] = []
        self._quiet = False
        self.head, self.story, self.picture, self.banner = (widgets.HTML() for _ in range(4))
        self.prompt = self._make_prompt(prompt)
        self._make_sliders(settings or Settings())
        self._make_buttons()
        self.same_seed = SameSeedPanel(self.complete, lambda: (self.settings, self.pinned), self.source.live)
        self.completions = CompletionsPanel(self.complete, lambda: (self.settings, self.seed.value))
        tabs = widgets.Tab([self.same_seed, self.completions], titles=["Same seed", "20 completions"])
        right = widgets.VBox([self.picture, self.buttons], layout=widgets.Layout(flex="2 1 385px", min_width="340px"))
        body = widgets.HBox([self.controls, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="18px"))
        top = (self.head, widgets.HBox([self.prompt]), self.story, self.banner)
        super().__init__(*top, body, tabs, max_width="1000px")
        self.ask()

    def _make_prompt(self, prompt: str) -> widgets.Widget:
        common = {"description": "prompt", "style": AUTO, "layout": widgets.Layout(width="100%")}
        if self.source.prompts:
            value = prompt if prompt in self.source.prompts else self.source.prompts[0]
            made = widgets.Dropdown(options=self.source.prompts, value=value, **common)
        else:
            made = widgets.Text(value=prompt, continuous_update=False, **common)
        made.observe(lambda _: self.ask(), "value")
        return made

    def _make_sliders(self, settings: Settings) -> None:
        ranges = {
            "temperature": (real, 0, 2, 0.05, {}),
            "min_p": (real, 0, 0.5, 0.005, {"readout_format": ".3f"}),
            "top_k": (whole, -1, HIGHEST_TOP_K, 1, {}),
            "top_p": (real, 0.01, 1, 0.01, {}),
            "frequency_penalty": (real, -2, 2, 0.1, {}),
            "presence_penalty": (real, -2, 2, 0.1, {}),
        }
        self.sliders, self.says, rows = {}, {}, []
        for name, (make, low, high, step, more) in ranges.items():
            slider = make(name, min(getattr(settings, name), high), low, high, step, tooltip=USUAL[name], **more)
            slider.style.description_width = "130px"  # one width, so that the sliders stand in line; no label is cut
            slider.observe(lambda _: self.redraw(), "value")
            self.sliders[name], self.says[name] = slider, widgets.HTML()
            rows.append(widgets.VBox([slider, self.says[name]], layout=widgets.Layout(margin="0 0 4px 0")))
        off = button("All off", lambda: self.set(Settings()), "90px", tooltip="temperature 1, everything else off")
        about = "Keep these settings, in orange, and compare others with them"
        pin = button("Pin as B", self.pin, "90px", tooltip=about)
        self.unpin_button = button("Unpin", lambda: self.pin(None), "80px")
        self.unpin_button.layout.display = "none"
        rows.append(widgets.HBox([off, pin, self.unpin_button]))
        self.controls = widgets.VBox(rows, layout=widgets.Layout(flex="1 1 290px", max_width="380px"))

    def _make_buttons(self) -> None:
        self.seed = widgets.IntText(1, description="seed", style=AUTO, layout=widgets.Layout(width="110px"))
        sample = button("Sample a token", self.sample, button_style="primary", icon="random")
        back = button("Step back", self.step_back, icon="undo")
        again = button("Start again", self.ask)
        self.buttons = in_a_row(sample, button("Take the best", self.take_best), back, again, self.seed)

    @property
    def settings(self) -> Settings:
        """Where the sliders stand."""
        return Settings(**{name: slider.value for name, slider in self.sliders.items()})

    def set(self, settings: Settings) -> None:
        """Move all sliders, and draw once."""
        self._quiet = True
        for name, slider in self.sliders.items():
            slider.value = max(slider.min, min(slider.max, getattr(settings, name)))
        self._quiet = False
        self.redraw()

    def complete(self, settings: Settings, seed: int, n: int = 1) -> list[Completion]:
        """Return completions of what stands here now."""
        prompt, output = self.prompt.value, tuple(self.output)
        return self.source.complete(prompt, output, settings, n=n, seed=seed, max_tokens=MAX_TOKENS)

    def ask(self) -> None:
        """Start from the prompt."""
        self.output = []
        self._move()

    def _move(self) -> bool:
        """Fetch the distribution after what stands there now; keep the old picture if that fails."""
        try:
            self._position = self.source.position(self.prompt.value, tuple(self.output))
        except WorkshopError as error:
            self._complain(error)
            return False
        self.banner.value = ""
        self._model = model_step(self._position.logprobs)
        self._shown = rows_shown(self._model.probabilities, self.output)
        self.head.value = head(self.source, self._model, len(self._position.logprobs))
        self.story.value = story(self.prompt.value, [self._text(token) for token in self.output])
        self.redraw()
        return True

    def _text(self, token: Token) -> str:
        return self.source.text((token,))

    def compute(self, settings: Settings) -> Pipeline:
        """Return the pipeline of this position under any settings."""
        return pipeline(
            self._position.logprobs,
            settings,
            output_tokens=self.output,
            model=self._model,
            ceiling=self._position.ceiling,
        )

    def redraw(self) -> None:
        """Recompute and redraw; this is what a slider's step costs."""
        if self._quiet or self._position is None:
            return
        settings = self.settings
        self.result = self.compute(settings)
        pinned = None if self.pinned is None else self.compute(self.pinned)
        drawn = bars(self.result, self._shown, self._text, pinned=pinned, generated=self.output)
        self.picture.value = picture(drawn)
        for name, sentence in words(settings, self.result, generated=len(self.output)).items():
            self.says[name].value = said(sentence, USUAL[name])

    def sample(self) -> None:
        """Draw a token from what the bars show (as the server would), append it, and go on."""
        if self.result is not None:
            generator = random.Random(f"{self.seed.value}:{len(self.output)}")
            self._append(draw(self.result.probabilities, generator))

    def take_best(self) -> None:
        """Append the most probable token."""
        if self.result is not None:
            probabilities = self.result.probabilities
            self._append(max(probabilities, key=probabilities.__getitem__))

    def _append(self, token: Token) -> None:
        if self.output and END.fullmatch(self._text(self.output[-1])):
            self._complain(
                WorkshopError("The model has ended its text: a server would stop here.", "Step back, or start again.")
            )
            return
        self.output.append(token)
        if not self._move():
            self.output.pop()

    def step_back(self) -> None:
        """Take the last token away."""
        if self.output:
            self.output.pop()
            self._move()

    def start_again(self) -> None:
        """Back to the bare prompt."""
        self.ask()

    def pin(self, settings: Settings | object | None = _KEEP) -> None:
        """Keep the present settings (or the given ones) as B; None forgets them."""
        self.pinned = self.settings if settings is _KEEP else settings
        self.unpin_button.layout.display = "none" if self.pinned is None else ""
        self.redraw()
        self.same_seed.refresh()

    def _complain(self, error: WorkshopError) -> None:
        self.banner.value = alert(error)


def _as_source(source: Client | Source | None) -> Source:
    if source is None:
        return RecordedSource()
    return ServerSource(source) if hasattr(source, "complete") and hasattr(source, "openai") else source

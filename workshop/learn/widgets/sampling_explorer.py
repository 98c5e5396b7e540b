"""The sampling explorer: one token's distribution under the sliders, token by token.

    SamplingExplorer(connect(), prompt="San Francisco is a")     # or without a server: SamplingExplorer()
"""

from __future__ import annotations

import html
import random
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.sampling_bars import bars, bars_html, rows_shown
from workshop.learn.widgets.sampling_compare import CompletionsPanel, SameSeedPanel
from workshop.learn.widgets.sampling_recorded import RecordedSource
from workshop.learn.widgets.sampling_source import END, Position, ServerSource, Source
from workshop.learn.widgets.sampling_words import USUAL, words
from workshop.use.distribution import draw
from workshop.use.sampling import Pipeline, Step, Token, model_step, pipeline
from workshop.use.sampling_settings import Settings

if TYPE_CHECKING:
    from workshop.use.client import Client

PROMPT = "San Francisco is a"
HIGHEST_TOP_K = 200   # the slider's end; below the vocabulary anything higher hardly differs from off


class SamplingExplorer(widgets.VBox):
    """View only: the arithmetic is sampling.pipeline, the picture sampling_bars.bars_html.

    Args:
        source: a client (`connect()`), a source, or None: the recording that comes with the course.
        prompt: what to start from.
        settings: where the sliders stand at first.
    """

    def __init__(self, source: Client | Source | None = None, prompt: str = PROMPT,
                 settings: Settings | None = None):
        self.source: Source = _as_source(source)
        self.output: list[Token] = []
        self.result: Pipeline | None = None
        self.pinned: Settings | None = None
        self._position: Position | None = None
        self._model: Step | None = None
        self._shown: list[Token] = []
        self.head, self.story, self.picture, self.banner = (widgets.HTML() for _ in range(4))
        self._make_prompt(prompt)
        self._make_sliders(settings or Settings())
        self._make_buttons()
        self.same_seed = SameSeedPanel(self)
        self.completions = CompletionsPanel(self)
        tabs = widgets.Tab([self.same_seed, self.completions], titles=["Same seed", "20 completions"])
        right = widgets.VBox([self.picture, self.buttons], layout=widgets.Layout(flex="2 1 385px", min_width="340px"))
        body = widgets.HBox([self.controls, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="18px"))
        super().__init__([self.head, self.prompt_row, self.story, self.banner, body, tabs],
                         layout=widgets.Layout(max_width="1000px"))
        self.ask()

    def _make_prompt(self, prompt: str) -> None:
        if self.source.prompts:
            value = prompt if prompt in self.source.prompts else self.source.prompts[0]
            self.prompt = widgets.Dropdown(options=self.source.prompts, value=value, description="prompt",
                                           style={"description_width": "initial"}, layout=widgets.Layout(width="100%"))
            self.prompt.observe(lambda _: self.ask(), "value")
        else:
            self.prompt = widgets.Text(value=prompt, description="prompt", continuous_update=False,
                                       style={"description_width": "initial"}, layout=widgets.Layout(width="100%"))
            self.prompt.observe(lambda _: self.ask(), "value")
        self.prompt_row = widgets.HBox([self.prompt])

    def _make_sliders(self, settings: Settings) -> None:
        layout = widgets.Layout(width="auto")
        plain = {"description_width": "130px"}   # one width, so that the sliders stand in line; no label is cut
        common = {"style": plain, "layout": layout}
        self.sliders = {
            "temperature": widgets.FloatSlider(settings.temperature, min=0, max=2, step=0.05, **common),
            "min_p": widgets.FloatSlider(settings.min_p, min=0, max=0.5, step=0.005, readout_format=".3f", **common),
            "top_k": widgets.IntSlider(min(settings.top_k, HIGHEST_TOP_K), min=-1, max=HIGHEST_TOP_K, **common),
            "top_p": widgets.FloatSlider(settings.top_p, min=0.01, max=1, step=0.01, **common),
            "frequency_penalty": widgets.FloatSlider(settings.frequency_penalty, min=-2, max=2, step=0.1, **common),
            "presence_penalty": widgets.FloatSlider(settings.presence_penalty, min=-2, max=2, step=0.1, **common)}
        self.says = {name: widgets.HTML() for name in self.sliders}
        rows = []
        for name, slider in self.sliders.items():
            slider.description, slider.tooltip = name, USUAL[name]
            slider.observe(lambda _: self.redraw(), "value")
            rows.append(widgets.VBox([slider, self.says[name]], layout=widgets.Layout(margin="0 0 4px 0")))
        reset = widgets.Button(description="All off", tooltip="temperature 1, everything else off",
                               layout=widgets.Layout(width="90px"))
        reset.on_click(lambda _: self.set(Settings()))
        pin = widgets.Button(description="Pin as B", layout=widgets.Layout(width="90px"),
                             tooltip="Keep these settings, in orange, and compare others with them")
        pin.on_click(lambda _: self.pin())
        self.unpin_button = widgets.Button(description="Unpin", layout=widgets.Layout(width="80px", display="none"))
        self.unpin_button.on_click(lambda _: self.pin(None))
        rows.append(widgets.HBox([reset, pin, self.unpin_button]))
        self.controls = widgets.VBox(rows, layout=widgets.Layout(flex="1 1 290px", max_width="380px"))

    def _make_buttons(self) -> None:
        def button(text: str, action, **more) -> widgets.Button:
            one = widgets.Button(description=text, layout=widgets.Layout(width="auto"), **more)
            one.on_click(lambda _: action())
            return one
        self.seed = widgets.IntText(1, description="seed", style={"description_width": "initial"},
                                    layout=widgets.Layout(width="110px"))
        self.buttons = widgets.HBox([
            button("Sample a token", self.sample, button_style="primary", icon="random"),
            button("Take the best", self.take_best), button("Step back", self.step_back, icon="undo"),
            button("Start again", self.start_again), self.seed], layout=widgets.Layout(flex_flow="row wrap"))

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

    _quiet = False

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
        self.head.value = _head_html(self.source, self._model, len(self._position.logprobs))
        self.story.value = _story_html(self.prompt.value, [self._text(token) for token in self.output])
        self.redraw()
        return True

    def _text(self, token: Token) -> str:
        return self.source.text((token,))

    def compute(self, settings: Settings) -> Pipeline:
        """Return the pipeline of this position under any settings."""
        return pipeline(self._position.logprobs, settings, output_tokens=self.output, model=self._model,
                        ceiling=self._position.ceiling)

    def redraw(self) -> None:
        """Recompute and redraw; this is what a slider's step costs."""
        if self._quiet or self._position is None:
            return
        settings = self.settings
        self.result = self.compute(settings)
        pinned = None if self.pinned is None else self.compute(self.pinned)
        self.picture.value = bars_html(bars(self.result, self._shown, self._text, pinned=pinned,
                                            generated=self.output))
        for name, sentence in words(settings, self.result, generated=len(self.output)).items():
            self.says[name].value = _says_html(sentence, USUAL[name])

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
            self._complain(WorkshopError("The model has ended its text: a server would stop here.",
                                         "Step back, or start again."))
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

    _KEEP = object()

    def pin(self, settings: Settings | object | None = _KEEP) -> None:
        """Keep the present settings (or the given ones) as B; None forgets them."""
        self.pinned = self.settings if settings is self._KEEP else settings
        self.unpin_button.layout.display = "none" if self.pinned is None else ""
        self.redraw()
        self.same_seed.refresh()

    def _complain(self, error: WorkshopError) -> None:
        self.banner.value = complaint_html(error)


def _as_source(source: Client | Source | None) -> Source:
    if source is None:
        return RecordedSource()
    return ServerSource(source) if hasattr(source, "complete") and hasattr(source, "openai") else source


def complaint_html(error: WorkshopError) -> str:
    """Return an error as a banner: what happened, and what to do."""
    return style.panel(f'<div role="alert" style="border-left:4px solid {style.BAD};padding:4px 12px;margin:4px 0">'
                       f"<b>{html.escape(error.message)}</b> {html.escape(error.remedy)}</div>")


def _head_html(source: Source, model: Step, listed: int) -> str:
    seen = f"{listed:,} tokens, its whole vocabulary" if not model.outside else f"the {listed:,} most probable tokens"
    return style.panel(f'<span style="color:{style.MUTED};font-size:12px">{html.escape(source.describe())} · '
                       f"{seen}.</span>")


def _story_html(prompt: str, tokens: list[str]) -> str:
    """The prompt, then every generated token with its border visible."""
    chips = "".join(f'<span style="background:{style.BLUE}26;border-bottom:2px solid {style.BLUE};margin-right:1px;'
                    f'white-space:pre-wrap">{html.escape(text) or "·"}</span>' for text in tokens)
    cursor = f'<span style="border-left:2px solid {style.ORANGE};margin-left:2px">&#8203;</span>'
    return style.panel(f'<div style="font-size:16px;margin:6px 0 10px;overflow-wrap:anywhere">'
                       f'<span style="color:{style.MUTED};white-space:pre-wrap">{html.escape(prompt)}</span>'
                       f"{chips}{cursor}</div>")


def _says_html(sentence: str, usual: str) -> str:
    return (f'<div style="font-family:{style.FONT};font-size:12px;line-height:1.35;color:{style.TEXT};'
            f'padding-left:4px">{html.escape(sentence)} <span style="color:{style.MUTED}">{html.escape(usual)}'
            f"</span></div>")

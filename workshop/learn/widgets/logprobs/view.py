"""The logprobs viewer: a text coloured by what the model thought of each token."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.errors import BadInput, WorkshopError
from workshop.learn import html
from workshop.learn.widgets.controls import AUTO, View, button, in_a_row, real, whole
from workshop.learn.widgets.logprobs.case import cells
from workshop.learn.widgets.logprobs.picture import picture
from workshop.use import logprobs
from workshop.use.sampling_settings import Settings

if TYPE_CHECKING:
    from workshop.use.client import Client

_names = itertools.count()


class LogprobsViewer(View):
    """A text, each token coloured by what the model thought of it; click one for its logprob, rank and alternatives.

    Below stand the surprise of each token (bits: −log2 of its probability) and the perplexity of prompt and
    completion (2 to the mean bits). "processed" shows the logprobs after temperature, top_k, top_p and a penalty.

    >>> from workshop import LogprobsViewer, connect
    >>> llm = connect()
    >>> answer = llm.complete("San Francisco is a", max_tokens=12, logprobs=5, prompt_logprobs=5)
    >>> viewer = LogprobsViewer(answer)         # or LogprobsViewer(llm), with a prompt to type
    >>> "perplexity" in viewer.picture.value
    True

    Args:
        source: a response with logprobs, rows, or a client to ask with.
        prompt: what the prompt field holds at first (with a client).
        k: how many alternatives to ask for (with a client).
    """

    def __init__(self, source: object, prompt: str = "San Francisco is a", k: int = 8):
        self.client: Client | None = source if hasattr(source, "openai") else None
        self.rows: list[logprobs.Row] = []
        self._name = f"lp{next(_names)}"
        self.picture, self.banner = widgets.HTML(), widgets.HTML()
        self._make_controls()
        form = [self._make_form(prompt, k)] if self.client else []
        super().__init__(*form, self.view_row, self.processing, self.banner, self.picture, max_width="1000px")
        if self.client:
            self.ask()
        else:
            self.show(source)

    def _make_controls(self) -> None:
        about = ["what the model says", "after the sampling parameters, computed"]
        self.colour = widgets.ToggleButtons(options=["probability", "rank"], description="colour by", style=AUTO)
        self.kind = widgets.ToggleButtons(
            options=["raw", "processed"], description="logprobs", style=AUTO, tooltips=about
        )
        for buttons in (self.colour, self.kind):
            buttons.style.button_width = "auto"
        small = {"layout": widgets.Layout(width="235px")}
        self.temperature = real("temperature", 1.0, 0, 2, 0.05, **small)
        self.top_k = whole("top_k", 0, 0, 20, **small)
        self.top_p = real("top_p", 1.0, 0.01, 1, 0.01, **small)
        wide = widgets.Layout(width="290px")
        self.frequency_penalty = real("frequency_penalty", 0.0, -2, 2, 0.1, layout=wide)
        sliders = (self.temperature, self.top_k, self.top_p, self.frequency_penalty)
        for control in (self.colour, self.kind, *sliders):
            control.observe(lambda _: self.redraw(), "value")
        self.view_row, self.processing = in_a_row(self.colour, self.kind), in_a_row(*sliders)

    def _make_form(self, prompt: str, k: int) -> widgets.Widget:
        def field(kind: type, name: str, value: float, width: int, **limits: float) -> widgets.Widget:
            return kind(value, description=name, style=AUTO, layout=widgets.Layout(width=f"{width}px"), **limits)

        full = widgets.Layout(width="100%")
        self.prompt = widgets.Textarea(prompt, description="prompt", rows=2, style=AUTO, layout=full)
        self.max_tokens = field(widgets.BoundedIntText, "max_tokens", 16, 150, min=1, max=512)
        self.k = field(widgets.BoundedIntText, "logprobs", k, 140, min=0, max=1000)
        self.ask_temperature = field(widgets.BoundedFloatText, "temperature", 1.0, 160, min=0, max=2, step=0.1)
        self.seed = field(widgets.IntText, "seed", 1, 110)
        complete = button("Complete", self.ask, button_style="primary", icon="play")
        row = in_a_row(complete, self.max_tokens, self.k, self.ask_temperature, self.seed)
        return widgets.VBox([self.prompt, row])

    def ask(self) -> None:
        """Send the prompt; keep the old picture if that fails."""
        try:
            if not self.prompt.value:
                raise BadInput("The prompt is empty.", "Type at least one character.")
            response = self.client.complete(
                self.prompt.value,
                max_tokens=self.max_tokens.value,
                temperature=self.ask_temperature.value,
                seed=self.seed.value,
                logprobs=self.k.value,
                prompt_logprobs=self.k.value,
                return_token_ids=True,
                timeout=60,
            )
            self.show(logprobs.rows(response, k=self.k.value))
        except WorkshopError as error:
            self.banner.value = html.alert(error)

    def show(self, source: object) -> None:
        """Show a response, or rows.

        Raises:
            BadInput: it has no logprobs.
        """
        self.rows = list(source) if isinstance(source, list | tuple) else logprobs.rows(source)
        self.banner.value = ""
        self.redraw()

    @property
    def settings(self) -> Settings | None:
        """What the processed logprobs are processed with; None while raw ones are shown."""
        if self.kind.value == "raw":
            return None
        return Settings(
            temperature=self.temperature.value,
            top_k=self.top_k.value,
            top_p=self.top_p.value,
            frequency_penalty=self.frequency_penalty.value,
        )

    def redraw(self) -> None:
        """Draw the rows as the controls say."""
        self.processing.layout.display = "none" if self.kind.value == "raw" else ""
        drawn, look = cells(self.rows, self.settings), {"colour_by": self.colour.value, "kind": self.kind.value}
        self.picture.value = picture(drawn, name=self._name, **look)

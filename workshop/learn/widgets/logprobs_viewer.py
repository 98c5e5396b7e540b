"""The logprobs viewer: a text coloured by what the model thought of each token.

    LogprobsViewer(llm.complete("San Francisco is a", max_tokens=12, logprobs=5, prompt_logprobs=5))
    LogprobsViewer(llm)      # with a prompt to type
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import ipywidgets as widgets

from workshop.errors import BadInput, WorkshopError
from workshop.learn.widgets.logprobs_view import cells, viewer_html
from workshop.learn.widgets.sampling_explorer import complaint_html
from workshop.use import logprobs
from workshop.use.sampling_settings import Settings

if TYPE_CHECKING:
    from workshop.use.client import Client

_names = itertools.count()


class LogprobsViewer(widgets.VBox):
    """View only: rows come from use.logprobs.rows, the picture from logprobs_view.viewer_html.

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
        children = [self.view_row, self.processing, self.banner, self.picture]
        if self.client:
            children.insert(0, self._make_form(prompt, k))
        super().__init__(children, layout=widgets.Layout(max_width="1000px"))
        if self.client:
            self.ask()
        else:
            self.show(source)

    def _make_controls(self) -> None:
        plain = {"description_width": "initial"}
        self.colour = widgets.ToggleButtons(options=["probability", "rank"], description="colour by", style=plain)
        self.kind = widgets.ToggleButtons(options=["raw", "processed"], description="logprobs", style=plain,
                                          tooltips=["what the model says", "after the sampling parameters, computed"])
        for buttons in (self.colour, self.kind):
            buttons.style.button_width = "auto"
            buttons.observe(lambda _: self.redraw(), "value")
        self.view_row = widgets.HBox([self.colour, self.kind], layout=widgets.Layout(flex_flow="row wrap"))
        small = {"style": plain, "layout": widgets.Layout(width="235px")}
        self.temperature = widgets.FloatSlider(1.0, min=0, max=2, step=0.05, description="temperature", **small)
        self.top_k = widgets.IntSlider(0, min=0, max=20, description="top_k", **small)
        self.top_p = widgets.FloatSlider(1.0, min=0.01, max=1, step=0.01, description="top_p", **small)
        self.frequency_penalty = widgets.FloatSlider(0.0, min=-2, max=2, step=0.1, description="frequency_penalty",
                                                     style=plain, layout=widgets.Layout(width="290px"))
        sliders = [self.temperature, self.top_k, self.top_p, self.frequency_penalty]
        for slider in sliders:
            slider.observe(lambda _: self.redraw(), "value")
        self.processing = widgets.HBox(sliders, layout=widgets.Layout(flex_flow="row wrap", display="none"))

    def _make_form(self, prompt: str, k: int) -> widgets.Widget:
        plain = {"description_width": "initial"}
        self.prompt = widgets.Textarea(prompt, description="prompt", rows=2, style=plain,
                                       layout=widgets.Layout(width="100%"))
        self.max_tokens = widgets.BoundedIntText(16, min=1, max=512, description="max_tokens", style=plain,
                                                 layout=widgets.Layout(width="150px"))
        self.k = widgets.BoundedIntText(k, min=0, max=1000, description="logprobs", style=plain,
                                        layout=widgets.Layout(width="140px"))
        self.ask_temperature = widgets.BoundedFloatText(1.0, min=0, max=2, step=0.1, description="temperature",
                                                        style=plain, layout=widgets.Layout(width="160px"))
        self.seed = widgets.IntText(1, description="seed", style=plain, layout=widgets.Layout(width="110px"))
        button = widgets.Button(description="Complete", button_style="primary", icon="play",
                                layout=widgets.Layout(width="auto"))
        button.on_click(lambda _: self.ask())
        row = widgets.HBox([button, self.max_tokens, self.k, self.ask_temperature, self.seed],
                           layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([self.prompt, row])

    def ask(self) -> None:
        """Send the prompt; keep the old picture if that fails."""
        try:
            if not self.prompt.value:
                raise BadInput("The prompt is empty.", "Type at least one character.")
            response = self.client.complete(
                self.prompt.value, max_tokens=self.max_tokens.value, temperature=self.ask_temperature.value,
                seed=self.seed.value, logprobs=self.k.value, prompt_logprobs=self.k.value, return_token_ids=True,
                timeout=60)
            self.show(logprobs.rows(response, k=self.k.value))
        except WorkshopError as error:
            self.banner.value = complaint_html(error)

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
        return Settings(temperature=self.temperature.value, top_k=self.top_k.value, top_p=self.top_p.value,
                        frequency_penalty=self.frequency_penalty.value)

    def redraw(self) -> None:
        """Draw the rows as the controls say."""
        self.processing.layout.display = "none" if self.kind.value == "raw" else ""
        self.picture.value = viewer_html(cells(self.rows, self.settings), colour_by=self.colour.value,
                                         name=self._name, kind=self.kind.value)

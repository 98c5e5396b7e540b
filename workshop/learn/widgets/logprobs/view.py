"""The logprobs viewer: a text coloured by what the model thought of each token."""

import itertools
from collections.abc import Iterable

import ipywidgets as widgets

from workshop.errors import BadInput, WorkshopError
from workshop.learn import html
from workshop.learn.widgets.controls import Explorer, button, in_a_row, made, real, whole
from workshop.learn.widgets.logprobs.picture import Cell, cells, picture
from workshop.use import logprobs
from workshop.use.sampling_settings import Settings

SLIDERS = {  # name → kind, value, lowest, highest, step, width
    "temperature": (real, 1.0, 0, 2, 0.05, "235px"),
    "top_k": (whole, 0, 0, 20, 1, "235px"),
    "top_p": (real, 1.0, 0.01, 1, 0.01, "235px"),
    "frequency_penalty": (real, 0.0, -2, 2, 0.1, "290px"),
}
_names = itertools.count()


class LogprobsViewer(Explorer):
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
        self.client = source if hasattr(source, "openai") else None
        self.rows = [] if self.client else _rows(source)
        self._name, self.banner = f"lp{next(_names)}", widgets.HTML()
        self.form = self._make_form(prompt, k) if self.client else ()
        about = ["what the model says", "after the sampling parameters, computed"]
        self.colour = made(widgets.ToggleButtons, "colour by", "probability", options=["probability", "rank"])
        self.kind = made(widgets.ToggleButtons, "logprobs", "raw", options=["raw", "processed"], tooltips=about)
        for buttons in (self.colour, self.kind):
            buttons.style.button_width = "auto"
        sliders = {name: make(name, *where, width=width) for name, (make, *where, width) in SLIDERS.items()}
        super().__init__({"colour": self.colour, "kind": self.kind, **sliders}, max_width="1000px")
        if self.client:
            self.ask()

    def arranged(self) -> tuple[widgets.Widget, ...]:
        self.processing = in_a_row(*(self.controls[name] for name in SLIDERS))
        return *self.form, in_a_row(self.colour, self.kind), self.processing, self.banner, self.picture

    def _make_form(self, prompt: str, k: int) -> tuple[widgets.Widget, ...]:
        self.prompt = made(widgets.Textarea, "prompt", prompt, "100%", rows=2)
        self.max_tokens = made(widgets.BoundedIntText, "max_tokens", 16, "150px", min=1, max=512)
        self.k = made(widgets.BoundedIntText, "logprobs", k, "140px", min=0, max=1000)
        limits = {"min": 0, "max": 2, "step": 0.1}
        self.ask_temperature = made(widgets.BoundedFloatText, "temperature", 1.0, "160px", **limits)
        self.seed = made(widgets.IntText, "seed", 1, "110px")
        complete = button("Complete", self.ask, button_style="primary", icon="play")
        return self.prompt, in_a_row(complete, self.max_tokens, self.k, self.ask_temperature, self.seed)

    def ask(self) -> None:
        """Send the prompt; keep the old picture if that fails."""
        try:
            if not self.prompt.value:
                raise BadInput("The prompt is empty.", "Type at least one character.")
            k, more = self.k.value, {"temperature": self.ask_temperature.value, "seed": self.seed.value}
            more |= {"logprobs": k, "prompt_logprobs": k, "return_token_ids": True, "timeout": 60}
            response = self.client.complete(self.prompt.value, max_tokens=self.max_tokens.value, **more)
            self.show(logprobs.rows(response, k=k))
        except WorkshopError as error:
            self.banner.value = html.alert(error)

    def show(self, source: object) -> None:
        """Show a response, or rows; BadInput if it has no logprobs."""
        self.rows, self.banner.value = _rows(source), ""
        self.draw()

    @property
    def settings(self) -> Settings | None:
        """What the processed logprobs are processed with; None while raw ones are shown."""
        return None if self.kind.value == "raw" else Settings(**{name: self.said[name] for name in SLIDERS})

    def compute(self) -> list[Cell]:
        self.processing.layout.display = "none" if self.kind.value == "raw" else ""
        return cells(self.rows, self.settings)

    def picture_of(self, result: list[Cell]) -> str:
        look = {"colour_by": self.colour.value, "kind": self.kind.value}
        return picture(result, name=self._name, **look) if result else ""


def _rows(source: Iterable[logprobs.Row] | object) -> list[logprobs.Row]:
    return list(source) if isinstance(source, list | tuple) else logprobs.rows(source)

"""KV growth: requests fill a paged KV cache token by token, until it is full.

    KvGrowth()                                   # or KvGrowth(model="llama-3.1-70b", blocks=48)
"""

from __future__ import annotations

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.beside import beside
from workshop.learn.widgets.kv_case import REQUESTS, State, simulate
from workshop.learn.widgets.kv_picture import growth_html, size
from workshop.learn.widgets.memory_picture import error_html
from workshop.plan.catalog import list_models, load_model
from workshop.plan.kv_cache import BLOCK_SIZE, kv_cache_bytes_per_token

MS_A_STEP = 150


class KvGrowth(widgets.VBox):
    """View only: the scheduler is kv_case.simulate, the picture kv_picture.growth_html.

    Args:
        model: whose bytes a token are counted: a catalogue name, or a folder with a config.json.
        blocks: size of the pool at first; vLLM's log calls it "# GPU blocks".
        requests: how many requests come.
    """

    def __init__(self, model: str = "llama-3.1-8b", blocks: int = 24, requests: int = 4):
        self.states: tuple[State, ...] = ()
        self.picture = widgets.HTML()
        models = list_models()
        wide, plain = widgets.Layout(width="auto"), {"description_width": "70px"}
        self.model = widgets.Dropdown(options=models if model in models else [model, *models], value=model,
                                      description="model", style=plain, layout=wide)
        self.blocks = widgets.IntSlider(blocks, min=8, max=64, step=4, description="blocks", style=plain, layout=wide)
        self.requests = widgets.IntSlider(requests, min=1, max=len(REQUESTS), description="requests", style=plain,
                                          layout=wide)
        self.step = widgets.IntSlider(0, min=0, max=1, description="step", style=plain, layout=wide)
        self.play = widgets.Play(value=0, min=0, max=1, interval=MS_A_STEP, show_repeat=False)
        widgets.link((self.play, "value"), (self.step, "value"))
        self.says = {name: widgets.HTML() for name in ("model", "blocks", "requests", "step")}
        for name in ("blocks", "requests"):
            getattr(self, name).observe(lambda _: self.restart(), "value")
        for name in ("model", "step"):
            getattr(self, name).observe(lambda _: self.draw(), "value")
        rows = [(getattr(self, name), self.says[name]) for name in ("model", "blocks", "requests", "step")]
        rows[-1] += (widgets.HBox([self.play], layout=widgets.Layout(margin="4px 0 0 74px")),)
        super().__init__([beside(rows, self.picture)], layout=widgets.Layout(max_width="1080px"))
        self.restart()

    def restart(self) -> None:
        """Compute all states of these requests in this pool; the step stays where it is if there is such a step."""
        try:
            self.states = simulate(self.blocks.value, REQUESTS[:self.requests.value])
        except WorkshopError as error:
            self.states = ()
            self.picture.value = error_html(error)
            return
        self.step.max = self.play.max = len(self.states) - 1
        self.draw()

    @property
    def state(self) -> State | None:
        """The state that is shown."""
        return self.states[min(self.step.value, len(self.states) - 1)] if self.states else None

    def draw(self) -> None:
        """Draw the state of this step; this is what a step of the animation costs."""
        if self.state is None:
            return
        number = self.state.step
        last = next((s.event for s in reversed(self.states[:number + 1]) if s.event), "")
        model = load_model(self.model.value)
        self.picture.value = growth_html(self.state, model, last)
        for name, sentence in self._words(model).items():
            self.says[name].value = (f'<div style="font-family:{style.FONT};font-size:12px;line-height:1.35;'
                                     f'color:{style.MUTED};padding-left:74px">{sentence}</div>')

    def _words(self, model) -> dict[str, str]:
        tokens = self.blocks.value * BLOCK_SIZE
        running = sum(s.state == "running" for s in self.state.requests)
        return {"model": f"{size(kv_cache_bytes_per_token(model))} of KV cache a token.",
                "blocks": f"× {BLOCK_SIZE} = {tokens:,} tokens, {size(tokens * kv_cache_bytes_per_token(model))}.",
                "requests": f"{'comes' if self.requests.value == 1 else 'come'} one after the other; "
                            f"now {running} run{'s' if running == 1 else ''}.",
                "step": "each gives every running request one token. Press ▶, or drag."}

import contextlib
from collections.abc import Mapping

import ipywidgets as widgets
from inference_planner.catalog import load_model
from inference_planner.model.kv_cache import BLOCK_SIZE

from workshop.course.drawing.readable_numbers import size
from workshop.course.widgets.controls import Explorer, models, whole
from workshop.course.widgets.kv_cache.case import REQUESTS, State, simulate, token_bytes
from workshop.course.widgets.kv_cache.picture import picture
from workshop.errors import WorkshopError

MS_A_STEP = 150


class KvCacheExplorer(Explorer[State]):
    """A paged KV cache as requests fill it: press ▶, or drag `step`.

    vLLM cuts the KV cache into blocks of 16 tokens and gives a request one more when its last is
    full. When none is free, the request that came last is preempted: its blocks go back, and its
    tokens are computed again later. Sizes are in bytes of `model` (2 × KV heads × head_dim × layers
    × bytes an element for each token).

    >>> from workshop import KvCacheExplorer
    >>> cache = KvCacheExplorer("llama-3.1-8b", blocks=24, requests=4)
    >>> cache.step.value = 60                   # as if dragged there
    >>> cache.result.used, len(cache.result.pool)   # blocks that hold tokens, of all
    (20, 24)

    Args:
        model: whose bytes a token are counted: a catalog name, or a folder with a config.json.
        blocks: size of the pool at first; vLLM's log calls it "# GPU blocks".
        requests: how many requests come.
    """

    def __init__(self, model: str = "llama-3.1-8b", blocks: int = 24, requests: int = 4):
        self.play = widgets.Play(value=0, min=0, max=1, interval=MS_A_STEP, show_repeat=False)
        self.model = models(model)
        self.step = whole("step", 0, 0, 1)
        self.blocks = whole("blocks", blocks, 8, 64, 4)
        self.requests = whole("requests", requests, 1, len(REQUESTS))
        widgets.link((self.play, "value"), (self.step, "value"))
        controls = {
            "model": self.model,
            "blocks": self.blocks,
            "requests": self.requests,
            "step": self.step,
        }
        super().__init__(controls, label_px=70)

    def control_rows(self) -> list[tuple[widgets.Widget, ...]]:
        player = widgets.HBox([self.play], layout=widgets.Layout(margin="4px 0 0 74px"))
        *others, step = super().control_rows()
        return [*others, (*step, player)]

    @property
    def states(self) -> tuple[State, ...]:
        """The story of these requests in this pool; raises what stands against such a pool."""
        return simulate(self.blocks.value, REQUESTS[: self.requests.value])

    def adapt(self, name: str) -> None:
        """Make the slider as long as the story."""
        if name != "step":
            with contextlib.suppress(WorkshopError):
                self.step.max = self.play.max = len(self.states) - 1

    def compute(self) -> State:
        return self.states[min(self.step.value, len(self.states) - 1)]

    def picture_of(self, result: State) -> str:
        last_event = ""
        for state in self.states[: result.step + 1]:
            last_event = state.event or last_event
        return picture(result, load_model(self.values["model"]), last_event)

    def sentences(self) -> Mapping[str, str]:
        bytes_per_token = token_bytes(load_model(self.values["model"]))
        tokens = self.blocks.value * BLOCK_SIZE
        running = 0
        if self.result:
            running = sum(request.state == "running" for request in self.result.requests)
        come = "come"
        if self.requests.value == 1:
            come = "comes"
        return {
            "model": f"{size(bytes_per_token)} of KV cache per token.",
            "blocks": f"× {BLOCK_SIZE} = {tokens:,} tokens, {size(tokens * bytes_per_token)}.",
            "requests": f"{come} one after the other; {running} running now.",
            "step": "each gives every running request one token. Press ▶, or drag.",
        }

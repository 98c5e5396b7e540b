"""The memory sliders: model, precision, context, requests, GPU, number of GPUs → what fills each GPU, and the verdict.

    MemorySliders()                                  # or MemorySliders(model="llama-3.1-70b", gpus=4)
"""

from __future__ import annotations

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.beside import beside
from workshop.learn.widgets.memory_case import (
    CONTEXTS,
    GPU_COUNTS,
    KV_DTYPES,
    Case,
    Memory,
    memory,
    weight_choices,
    weight_words,
)
from workshop.learn.widgets.memory_picture import error_html, memory_html
from workshop.plan.catalog import list_gpus, list_models, load_gpu, load_model
from workshop.plan.memory import parameters

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LABELS = {"as published": "as published", "fp8": "fp8, made while loading", "awq": "4 bit (awq)"}


class MemorySliders(widgets.VBox):
    """View only: the arithmetic is memory_case.memory, the picture memory_picture.memory_html.

    Args:
        model: a catalogue name, or a folder with a config.json.
        **case: where the other controls stand at first: the fields of memory_case.Case.
    """

    def __init__(self, model: str = "llama-3.1-8b", **case):
        start = Case(model=model, **case)
        self.result: Memory | None = None
        self._quiet = False
        self.picture = widgets.HTML()
        self._make(start)
        rows = [(control, self.says[name]) for name, control in self.controls.items()]
        super().__init__([beside(rows, self.picture)], layout=widgets.Layout(max_width="1080px"))
        self._models_changed()

    def _make(self, start: Case) -> None:
        common = {"style": {"description_width": "80px"}, "layout": widgets.Layout(width="auto")}
        models = list_models()
        if start.model not in models:
            models = [start.model, *models]
        gpus = [(load_gpu(name).title, name) for name in list_gpus()]
        counts = sorted({*GPU_COUNTS, start.gpus})
        self.controls = {
            "model": widgets.Dropdown(options=models, value=start.model, **common),
            "weights": widgets.Dropdown(**common),
            "kv_cache_dtype": widgets.Dropdown(options=[("16 bit" if d == "auto" else d, d) for d in KV_DTYPES],
                                               value=start.kv_cache_dtype, **common),
            "context": widgets.SelectionSlider(**_options(CONTEXTS, start.context), **common),
            "requests": widgets.SelectionSlider(**_options(REQUESTS, start.requests), **common),
            "gpu": widgets.Dropdown(options=gpus, value=load_gpu(start.gpu).name, **common),
            "gpus": widgets.SelectionSlider(**_options(counts, start.gpus), **common),
            "gpu_memory_utilization": widgets.FloatSlider(start.gpu_memory_utilization, min=0.5, max=0.98, step=0.01,
                                                          **common)}
        names = {"kv_cache_dtype": "KV cache", "gpus": "GPUs", "gpu": "GPU", "gpu_memory_utilization": "utilization"}
        self.says = {name: widgets.HTML() for name in self.controls}
        self._start_weights = start.weights
        for name, control in self.controls.items():
            control.description = names.get(name, name)
            control.observe(self._models_changed if name == "model" else self._changed, "value")

    def _models_changed(self, change: object = None) -> None:
        """Offer the precisions and context lengths that this model has, keep what was chosen where possible."""
        model = load_model(self.controls["model"].value)
        box, context = self.controls["weights"], self.controls["context"]
        self._quiet = True
        kept = box.value or self._start_weights
        box.options = [(LABELS[w], w) for w in weight_choices(model)]
        box.value = kept if kept in weight_choices(model) else "as published"
        longest = model.max_position_embeddings
        lengths = sorted({c for c in (*CONTEXTS, context.value) if c < longest} | {longest})
        chosen = min(context.value, longest)
        context.options = [(f"{c:,}", c) for c in lengths]
        context.value = chosen
        self._quiet = False
        self.draw()

    def _changed(self, change: object = None) -> None:
        if not self._quiet:
            self.draw()

    @property
    def case(self) -> Case:
        """What the controls say."""
        said = {name: control.value for name, control in self.controls.items()}
        return Case(**{**said, "gpu_memory_utilization": round(said["gpu_memory_utilization"], 2)})

    def draw(self) -> None:
        """Compute and draw; this is what a step of a slider costs."""
        try:
            self.result = memory(self.case)
            self.picture.value = memory_html(self.result)
        except WorkshopError as error:
            self.result = None
            self.picture.value = error_html(error)
        for name, sentence in words(self.case, self.result).items():
            self.says[name].value = (f'<div style="font-family:{style.FONT};font-size:12px;line-height:1.35;'
                                     f'color:{style.MUTED};padding-left:84px">{sentence}</div>')


def words(case: Case, result: Memory | None) -> dict[str, str]:
    """Return what each control means now, in one sentence."""
    model, gpu = load_model(case.model), load_gpu(case.gpu)
    groups = f"{model.num_key_value_heads} KV heads for {model.num_attention_heads} heads"
    split = "–" if result is None else _split_words(result)
    limit = gpu.engine_gib * case.gpu_memory_utilization
    return {
        "model": f"{parameters(model) / 1e9:,.1f} billion parameters; {model.kind}"
                 f"{'' if model.mla else ': ' + groups}.",
        "weights": f"{weight_words(model, case.weights)}.",
        "kv_cache_dtype": "half the bytes a token, a little less exact." if case.kv_cache_dtype == "fp8"
                          else "what the model computes in.",
        "context": "tokens of one request, prompt and answer together (max_model_len).",
        "requests": "at the same moment, all as long as that.",
        "gpu": f"{gpu.marketing_gb} GB on the box, {gpu.engine_gib:.1f} GiB for the engine.",
        "gpus": split,
        "gpu_memory_utilization": f"vLLM may use {limit:.1f} GiB of each GPU; 0.92 is its default."}


def _split_words(result: Memory) -> str:
    if result.case.gpus == 1:
        return "one GPU holds everything."
    if result.pp == 1:
        return f"tensor parallel {result.tp}: each GPU holds 1/{result.tp} of every layer."
    if result.tp == 1:
        return f"its heads do not divide: pipeline parallel {result.pp}, by layers."
    return f"tensor parallel {result.tp} in a node × pipeline parallel {result.pp} over nodes."


def _options(values: tuple[int, ...] | list[int], value: int) -> dict:
    values = sorted({*values, value})
    return {"options": [(f"{v:,}", v) for v in values], "value": value}

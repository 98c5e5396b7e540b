"""The parallelism explorer: nodes × GPUs, TP × PP → who holds which layers and heads, and what travels.

    ParallelismExplorer()                        # or ParallelismExplorer(model="llama-3.1-405b", nodes=2, tp=8)
"""

from __future__ import annotations

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.beside import beside
from workshop.learn.widgets.memory_picture import error_html
from workshop.learn.widgets.parallelism_case import Choice, Layout, layout, usable_tp
from workshop.learn.widgets.parallelism_picture import layout_html
from workshop.plan.catalog import list_gpus, list_models, load_gpu, load_model
from workshop.plan.communication import NETWORKS, network_link, node_link

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)
CHOICES = {"nodes": (1, 2, 3, 4), "gpus_per_node": (1, 2, 3, 4, 5, 6, 7, 8), "tp": SIZES, "pp": SIZES,
           "requests": (1, 4, 16, 64, 256)}
NAMES = {"gpu": "GPU", "gpus_per_node": "GPUs a node", "tp": "TP", "pp": "PP"}


class ParallelismExplorer(widgets.VBox):
    """View only: the arithmetic is parallelism_case.layout, the picture parallelism_picture.layout_html.

    Args:
        model: a catalogue name, or a folder with a config.json.
        **choice: where the other controls stand at first: the fields of parallelism_case.Choice.
    """

    def __init__(self, model: str = "llama-3.1-70b", **choice):
        start = Choice(model=model, **choice)
        self.result: Layout | None = None
        self.picture = widgets.HTML()
        common = {"style": {"description_width": "92px"}, "layout": widgets.Layout(width="auto")}
        models = list_models()
        options = {"model": models if model in models else [model, *models],
                   "gpu": [(load_gpu(name).title, name) for name in list_gpus()],
                   "network": [(network_link(name).name, name) for name in NETWORKS if name != "nvlink"]}
        self.controls, self.says = {}, {}
        for name in ("model", "nodes", "gpus_per_node", "tp", "pp", "gpu", "network", "requests"):
            value = load_gpu(start.gpu).name if name == "gpu" else getattr(start, name)
            if name in options:
                control = widgets.Dropdown(options=options[name], value=value, **common)
            else:
                values = sorted({*CHOICES[name], value})
                control = widgets.SelectionSlider(options=[(f"{v:,}", v) for v in values], value=value, **common)
            control.description = NAMES.get(name, name)
            control.observe(lambda _: self.draw(), "value")
            self.controls[name], self.says[name] = control, widgets.HTML()
        rows = [(control, self.says[name]) for name, control in self.controls.items()]
        super().__init__([beside(rows, self.picture)], layout=widgets.Layout(max_width="1080px"))
        self.draw()

    @property
    def choice(self) -> Choice:
        """What the controls say."""
        return Choice(**{name: control.value for name, control in self.controls.items()})

    def draw(self) -> None:
        """Compute and draw; this is what a step of a slider costs."""
        try:
            self.result = layout(self.choice)
            self.picture.value = layout_html(self.result)
        except WorkshopError as error:
            self.result = None
            self.picture.value = error_html(error)
        for name, sentence in words(self.choice).items():
            self.says[name].value = (f'<div style="font-family:{style.FONT};font-size:12px;line-height:1.35;'
                                     f'color:{style.MUTED};padding-left:96px">{sentence}</div>')


def words(choice: Choice) -> dict[str, str]:
    """Return what each control means now, in one sentence."""
    m, gpu = load_model(choice.model), load_gpu(choice.gpu)
    inside, outside = node_link(gpu), network_link(choice.network)
    divides = ", ".join(map(str, usable_tp(m, 16)))
    kv = "one latent, on every rank" if m.mla else f"{m.num_key_value_heads} KV heads"
    one = "one token goes" if choice.requests == 1 else f"{choice.requests} tokens go"
    return {"model": f"{m.num_hidden_layers} layers, {m.num_attention_heads} heads, {kv}.",
            "nodes": "machines in the allocation.", "gpus_per_node": f"{choice.gpus} GPUs in all.",
            "tp": f"tensor parallel: heads of every layer split. Possible: {divides}.",
            "pp": "pipeline parallel: layers split into stages, in order.",
            "gpu": f"inside a node: {inside.name}, {inside.gb_s:g} GB/s one way.",
            "network": f"between nodes: {outside.gb_s:g} GB/s one way a GPU.", 
            "requests": f"answered at once: {one} through the model in a step."}

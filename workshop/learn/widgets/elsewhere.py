"""One plan, three places, side by side: the same fact has the same colour.

    ThreePlaces("llama-3.1-70b", "h100", gpus_per_node=4)
"""

from __future__ import annotations

import html

import ipywidgets as widgets

from workshop.errors import WorkshopError
from workshop.learn.widgets import style
from workshop.learn.widgets.elsewhere_case import FACTS, Elsewhere, Line, Place, three
from workshop.learn.widgets.memory_picture import error_html
from workshop.plan.catalog import list_models, load_gpu
from workshop.plan.parallelism import plan

COLOURS = dict(zip(FACTS, (style.BLUE, style.ORANGE, style.PURPLE, style.YELLOW, style.SKY, style.GREY, style.GREEN),
                   strict=True))
GPUS = ("t4", "a10g", "l4", "a100-80gb", "h100", "h100-nvl", "h200")
COUNTS = (1, 2, 4, 8)
LENGTHS = (2048, 8192, 32768, 131072)


class ThreePlaces(widgets.VBox):
    """View only: the lines are elsewhere_case.three, the plan is plan().

    Args:
        model, gpu: catalogue names.
        gpus_per_node, nodes: the hardware.
        max_model_len: tokens of one request; cut to what the model reads.
    """

    def __init__(self, model: str = "llama-3.1-70b", gpu: str = "h100", *, gpus_per_node: int = 4, nodes: int = 1,
                 max_model_len: int = 32768):
        self.result: Elsewhere | None = None
        self.picture = widgets.HTML()
        common = {"style": {"description_width": "initial"}, "layout": widgets.Layout(width="auto")}
        self.controls = {
            "model": widgets.Dropdown(options=list_models(), value=model, description="model", **common),
            "gpu": widgets.Dropdown(options=[(load_gpu(g).title, g) for g in dict.fromkeys([*GPUS, gpu])], value=gpu,
                                    description="GPU", **common),
            "gpus_per_node": widgets.Dropdown(options=sorted({*COUNTS, gpus_per_node}), value=gpus_per_node,
                                              description="GPUs a node", **common),
            "nodes": widgets.Dropdown(options=sorted({1, 2, 4, nodes}), value=nodes, description="nodes", **common),
            "max_model_len": widgets.Dropdown(options=sorted({*LENGTHS, max_model_len}), value=max_model_len,
                                              description="max_model_len", **common)}
        for control in self.controls.values():
            control.observe(self._changed, "value")
        row = widgets.HBox(list(self.controls.values()),
                           layout=widgets.Layout(flex_flow="row wrap", grid_gap="4px 14px"))
        super().__init__([row, self.picture], layout=widgets.Layout(max_width="1180px"))
        self.draw()

    def _changed(self, change: object = None) -> None:
        self.draw()

    def draw(self) -> None:
        """Plan, render and draw."""
        said = {name: control.value for name, control in self.controls.items()}
        try:
            longest = plan(said["model"], said["gpu"]).config.max_position_embeddings
            p = plan(said.pop("model"), said.pop("gpu"), usage="serve",
                     max_model_len=min(said.pop("max_model_len"), longest), **said)
            self.result = three(p)
            self.picture.value = picture(self.result)
        except WorkshopError as error:
            self.result = None
            self.picture.value = error_html(error)


def picture(result: Elsewhere) -> str:
    """Return the three columns, with a legend of the colours, as HTML."""
    p = result.plan
    sign, colour = ("✓", style.GOOD) if p.fits else ("✗", style.BAD)
    words = (f"{p.kv_cache_tokens:,} tokens of KV cache, about {p.single_stream_tokens_per_s:.0f} tokens/s for one "
             "stream." if p.fits else (p.advice[0] if p.advice else p.reasons[0]))
    verdict = (f'<div style="border-left:5px solid {colour};padding:4px 12px;margin:8px 0"><b style="color:{colour}">'
               f"{sign}</b> <b>{html.escape(p.model)}</b> on {p.gpus} × {html.escape(load_gpu(p.gpu).title)}: TP "
               f"{p.tensor_parallel_size} × PP {p.pipeline_parallel_size}. {html.escape(words)}</div>")
    legend = "".join(f'<span style="white-space:nowrap;margin-right:16px"><span style="display:inline-block;width:10px;'
                     f'height:10px;border-radius:2px;background:{COLOURS[name]};margin-right:6px"></span>'
                     f"{html.escape(about)}</span>" for name, (about, _) in FACTS.items())
    columns = "".join(_column(place) for place in result.places)
    return style.panel(
        f'{verdict}<div style="font-size:12px;color:{style.MUTED};margin-bottom:8px;line-height:1.8">{legend}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:12px;align-items:flex-start">{columns}</div>'
    ).replace("max-width:860px", "max-width:1180px")


def _column(place: Place) -> str:
    body = (f'<div style="padding:8px 10px;color:{style.BAD}">{html.escape(place.problem)}</div>' if place.problem else
            f'<div tabindex="0" style="overflow-x:auto;contain:inline-size;padding:6px 0">'
            f'{"".join(_line(line) for line in place.lines)}</div>')
    return (f'<section style="flex:1 1 300px;min-width:0;border:1px solid {style.LINE};border-radius:8px;'
            f'overflow:hidden"><div style="padding:8px 10px 6px;border-bottom:1px solid {style.LINE}">'
            f'<b style="font-size:15px">{place.name}</b><div style="font-family:{style.MONO};font-size:11px;'
            f'color:{style.MUTED};overflow-wrap:anywhere">{html.escape(place.command)}</div></div>{body}</section>')


def _line(line: Line) -> str:
    colour = COLOURS.get(line.fact, "transparent")
    tint = f"background:color-mix(in srgb, {colour} 14%, transparent);" if line.fact else ""
    title = f' title="{html.escape(FACTS[line.fact][0])}"' if line.fact else ""
    return (f'<div{title} style="font-family:{style.MONO};font-size:11.5px;line-height:1.55;white-space:pre;'
            f'border-left:4px solid {colour};{tint}padding:0 8px;min-width:max-content">'
            f"{html.escape(line.text) or ' '}</div>")

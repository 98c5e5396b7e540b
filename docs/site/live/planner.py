"""The whole planner on a page: what `workshop plan` says, and a config.json that is pasted in."""

from __future__ import annotations

import json
from pathlib import Path

import ipywidgets as widgets
from inference_planner.answer.parallelism import Plan
from inference_planner.catalog import load_model

from workshop.course.drawing import html
from workshop.course.widgets import controls as make
from workshop.engine.exact import plan
from workshop.errors import BadInput, WorkshopError

PASTED = Path("/models")
AUTO = ("choose", None)
SIZES = [AUTO, *((str(n), n) for n in (1, 2, 4, 8, 16))]
CONTEXTS = [
    ("the model's", None),
    *((f"{n:,}", n) for n in (4096, 8192, 16384, 32768, 65536, 131072)),
]
SEQUENCES = [("vLLM's default", None), *((f"{n:,}", n) for n in (1, 8, 32, 128, 256, 512, 1024))]


class Planner(make.Explorer[Plan]):
    """Every setting of a deployment → its plan: what fits, why, what to run, what would help."""

    def __init__(self, model: str = "llama-3.1-70b"):
        choices = {
            "gpus_per_node": ("GPUs a node", SIZES, None),
            "nodes": ("nodes", [AUTO, *((str(n), n) for n in (1, 2, 4, 8))], None),
            "tensor_parallel_size": ("tensor parallel", SIZES, None),
            "pipeline_parallel_size": ("pipeline parallel", SIZES, None),
            "quantization": ("quantization", [("as published", None), ("fp8", "fp8")], None),
            "kv_cache_dtype": ("KV cache", [("as the model computes", None), ("fp8", "fp8")], None),
            "max_model_len": ("max_model_len", CONTEXTS, 8192),
            "max_num_seqs": ("max_num_seqs", SEQUENCES, None),
            "enforce_eager": ("CUDA graphs", [("yes", False), ("no (eager)", True)], False),
        }
        controls: dict[str, widgets.Dropdown | widgets.FloatSlider]
        controls = {"model": make.models(model), "gpu": make.gpus("h100")}
        for name, (label, options, value) in choices.items():
            controls[name] = make.choice(label, options, value)
        controls["gpu_memory_utilization"] = make.real("utilization", 0.92, 0.5, 0.98, 0.01)
        super().__init__(controls, label_px=130)

    def compute(self) -> Plan:
        settings = self.values
        return plan(settings.pop("model"), settings.pop("gpu"), exact=False, **settings)

    def picture_of(self, result: Plan) -> html.Html:
        return picture(result)


def picture(p: Plan) -> html.Html:
    """Draw a plan: the verdict, its numbers, the command, and why."""
    split = f"{p.gpus} × {p.gpu}: tensor parallel {p.tensor_parallel_size} × pipeline parallel {p.pipeline_parallel_size}"
    over = f" on {p.nodes} nodes" if p.nodes > 1 else ""
    head = (
        html.verdict("✓", "good", "It fits. ", split, over)
        if p.fits
        else html.verdict("✗", "bad", "It does not fit. ", split, over)
    )
    numbers = [
        (f"{p.weights_gib_per_gpu:,.1f} GiB", "weights a GPU"),
        (f"{p.overhead_gib_per_gpu:,.1f} GiB", "overhead a GPU"),
        (f"{p.kv_cache_tokens:,}", "tokens of KV cache"),
        (f"{p.max_concurrency:,.2f}", f"requests of {p.max_model_len:,} tokens"),
        (f"{p.single_stream_tokens_per_s:,.0f}", "tokens/s for one"),
        (p.basis, "how near it was measured"),
    ]
    run = [html.bold("Run"), html.tag("pre", p.command, cls="mono")] if p.fits else []
    lists = [
        part
        for title, lines in (("Why", p.reasons), ("For more" if p.fits else "Nearest", p.advice))
        if lines
        for part in (html.bold(title), html.tag("ul", *(html.tag("li", line) for line in lines)))
    ]
    return html.panel(head, html.tiles(numbers, columns=3), *run, *lists, label="")


class Paste(widgets.VBox):
    """A config.json, pasted: from then on a model like those of the catalog, in every widget of the page."""

    def __init__(self, shown: dict[str, object]):
        self.shown = shown
        self.text = widgets.Textarea(
            description="config.json",
            rows=4,
            placeholder='{"architectures": ["LlamaForCausalLM"], …}',
        )
        self.says = widgets.HTML()
        super().__init__(
            [
                self.text,
                make.button("Plan this model", self.take, button_style="primary"),
                self.says,
            ]
        )

    def take(self) -> None:
        """Read what was pasted, and choose it; say what is wrong with it, and leave everything as it is."""
        try:
            path = keep(self.text.value)
            name = load_model(str(path)).name
        except WorkshopError as error:
            self.says.value = html.alert(error)
            return
        self.says.value = html.panel(
            html.verdict("✓", "good", f"{name} is read, and chosen in each part below.")
        )
        for widget in self.shown.values():
            if chooser := getattr(widget, "controls", {}).get("model"):
                chooser.options = [*dict.fromkeys([*chooser.options, str(path)])]
                chooser.value = str(path)


def keep(text: str) -> Path:
    """Write a pasted config.json where a model's folder would be; return the folder.

    Raises:
        BadInput: it is no JSON object.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        raise BadInput(
            f"That is no JSON ({error}).", "Paste the whole config.json of a model, from { to }."
        ) from None
    if not isinstance(config, dict):
        raise BadInput(
            "That is no config.json: it holds no object.", "Paste it whole, from { to }."
        )
    called = str(config.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    name = "".join(
        c for c in called or str(config.get("model_type") or "model") if c.isalnum() or c in "-_."
    )[:60]
    folder = PASTED / (name.strip(".") or "model")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(text)
    return folder

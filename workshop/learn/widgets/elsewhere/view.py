"""One plan in three places, side by side: lines that spell the same fact have the same colour."""

from workshop.learn.html import Html, bold, div, legend, panel, tag, verdict
from workshop.learn.widgets.controls import Explorer, choice, gpus, models
from workshop.learn.widgets.elsewhere.case import FACTS, Elsewhere, Place, three
from workshop.plan.catalog import load_gpu
from workshop.plan.parallelism import plan

COLOURS = dict(zip(FACTS, ("blue", "orange", "purple", "yellow", "sky", "grey", "green"), strict=True))


class ThreePlaces(Explorer):
    """The same plan as a SLURM submission, a Kubernetes manifest and a VM's container: equal colours, equal facts.

    What a place is told differs in its words only: how many GPUs, how the model is split over them, the longest
    request (`max_model_len`, tokens), how long a start may take, who may ask.

    >>> from workshop import elsewhere
    >>> places = elsewhere.ThreePlaces("llama-3.1-70b", "h100", gpus_per_node=4, max_model_len=32768)
    >>> [place.name for place in places.result.places]
    ['SLURM', 'Kubernetes', 'A VM']

    Args:
        model, gpu: catalogue names.
        gpus_per_node, nodes: the hardware.
        max_model_len: tokens of one request; cut to what the model reads.
    """

    def __init__(self, model: str = "llama-3.1-70b", gpu: str = "h100", *, gpus_per_node: int = 4, nodes: int = 1,
                 max_model_len: int = 32768):  # fmt: skip
        controls = {
            "model": models(model),
            "gpu": gpus(gpu, ("t4", "a10g", "l4", "a100-80gb", "h100", "h100-nvl", "h200")),
            "gpus_per_node": choice("GPUs a node", sorted({1, 2, 4, 8, gpus_per_node}), gpus_per_node),
            "nodes": choice("nodes", sorted({1, 2, 4, nodes}), nodes),
            "max_model_len": choice("max_model_len", sorted({2048, 8192, 32768, 131072, max_model_len}), max_model_len),
        }
        super().__init__(controls, max_width="1180px")

    def compute(self) -> Elsewhere:
        said = self.said
        model, gpu = said.pop("model"), said.pop("gpu")
        longest = plan(model, gpu).config.max_position_embeddings
        length = min(said.pop("max_model_len"), longest)
        return three(plan(model, gpu, usage="serve", max_model_len=length, **said))

    def picture_of(self, result: Elsewhere) -> Html:
        p = result.plan
        speed = f"about {p.single_stream_tokens_per_s:.0f} tokens/s for one stream"
        words = f"{p.kv_cache_tokens:,} tokens of KV cache, {speed}." if p.fits else (p.advice or p.reasons)[0]
        split = f"TP {p.tensor_parallel_size} × PP {p.pipeline_parallel_size}"
        said = f" on {p.gpus} × {load_gpu(p.gpu).title}: {split}. {words}"
        head = verdict("✓" if p.fits else "✗", "good" if p.fits else "bad", p.model, said)
        keys = legend((f"bg-{COLOURS[name]}", about) for name, (about, _) in FACTS.items())
        return panel(head, keys, div(*map(_column, result.places), cls="columns"), cls="wide")


def _column(place: Place) -> Html:
    head = div(bold(place.name), div(place.command, cls="mono"))
    if place.problem:
        return tag("section", head, tag("p", place.problem), cls="column")
    lines = []
    for line in place.lines:
        look = {"cls": f"of-{COLOURS[line.fact]}", "title": FACTS[line.fact][0]} if line.fact else {}
        lines.append(div(line.text or " ", **look))
    return tag("section", head, div(*lines, cls="script", tabindex="0"), cls="column")

"""One plan, three places: what SLURM, Kubernetes and a VM are told, as controls change it."""

from __future__ import annotations

from workshop.learn.widgets.controls import Explorer, choice, gpus, models
from workshop.learn.widgets.elsewhere.case import Elsewhere, three
from workshop.learn.widgets.elsewhere.picture import picture
from workshop.plan.parallelism import plan

GPUS = ("t4", "a10g", "l4", "a100-80gb", "h100", "h100-nvl", "h200")
COUNTS = (1, 2, 4, 8)
LENGTHS = (2048, 8192, 32768, 131072)


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

    picture_of = staticmethod(picture)

    def __init__(
        self,
        model: str = "llama-3.1-70b",
        gpu: str = "h100",
        *,
        gpus_per_node: int = 4,
        nodes: int = 1,
        max_model_len: int = 32768,
    ):
        controls = {
            "model": models(model),
            "gpu": gpus(gpu, GPUS),
            "gpus_per_node": choice("GPUs a node", sorted({*COUNTS, gpus_per_node}), gpus_per_node),
            "nodes": choice("nodes", sorted({1, 2, 4, nodes}), nodes),
            "max_model_len": choice("max_model_len", sorted({*LENGTHS, max_model_len}), max_model_len),
        }
        super().__init__(controls, max_width="1180px")

    def compute(self) -> Elsewhere:
        """Plan, and spell the plan three times."""
        said = self.said
        model, gpu = said.pop("model"), said.pop("gpu")
        longest = plan(model, gpu).config.max_position_embeddings
        length = min(said.pop("max_model_len"), longest)
        return three(plan(model, gpu, usage="serve", max_model_len=length, **said))

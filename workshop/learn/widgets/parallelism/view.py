"""The parallelism explorer: nodes × GPUs, TP × PP → who holds which layers and heads, and what travels."""

from collections.abc import Mapping

from workshop.learn.widgets import controls as make
from workshop.learn.widgets.parallelism.case import Choice, Layout, layout, usable_tp
from workshop.learn.widgets.parallelism.picture import picture
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.communication import NETWORKS, network_link, node_link

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)


class ParallelismExplorer(make.Explorer):
    """Who holds which layers and heads, and what travels between GPUs in one step.

    Tensor parallel (TP) cuts every layer by heads; two all-reduces a layer add the parts up. Pipeline parallel (PP)
    cuts between layers; one message a border hands the hidden state over. Links in GB/s (10**9 bytes, one way).

    >>> from workshop import ParallelismExplorer
    >>> explorer = ParallelismExplorer("llama-3.1-405b", nodes=2, gpus_per_node=8, tp=8, pp=2)
    >>> explorer.result.state, len(explorer.result.ranks)
    ('fits', 16)
    >>> explorer.controls["tp"].value = 3       # as if dragged there
    >>> explorer.result.verdict
    'llama-3.1-405b does not divide: 3 does not divide the 128 attention heads.'

    Args:
        model: a catalogue name, or a folder with a config.json.
        **choice: where the other controls stand at first: gpu, nodes, gpus_per_node, tp, pp, network, requests.
    """

    picture_of = staticmethod(picture)

    def __init__(self, model: str = "llama-3.1-70b", **choice):
        start = Choice(model=model, **choice)
        networks = [(network_link(name).name, name) for name in NETWORKS if name != "nvlink"]
        controls = {
            "model": make.models(start.model),
            "nodes": make.steps("nodes", range(1, 5), start.nodes),
            "gpus_per_node": make.steps("GPUs a node", range(1, 9), start.gpus_per_node),
            "tp": make.steps("TP", SIZES, start.tp),
            "pp": make.steps("PP", SIZES, start.pp),
            "gpu": make.gpus(start.gpu),
            "network": make.choice("network", networks, start.network),
            "requests": make.steps("requests", (1, 4, 16, 64, 256), start.requests),
        }
        super().__init__(controls, label_px=92)

    @property
    def choice(self) -> Choice:
        return Choice(**self.said)

    def compute(self) -> Layout:
        return layout(self.choice)

    def words(self) -> Mapping[str, str]:
        choice = self.choice
        m, gpu = load_model(choice.model), load_gpu(choice.gpu)
        inside, outside = node_link(gpu), network_link(choice.network)
        divides = ", ".join(map(str, usable_tp(m, 16)))
        kv = "one latent, on every rank" if m.mla else f"{m.num_key_value_heads} KV heads"
        one = "one token goes" if choice.requests == 1 else f"{choice.requests} tokens go"
        return {
            "model": f"{m.num_hidden_layers} layers, {m.num_attention_heads} heads, {kv}.",
            "nodes": "machines in the allocation.",
            "gpus_per_node": f"{choice.gpus} GPUs in all.",
            "tp": f"tensor parallel: heads of every layer split. Possible: {divides}.",
            "pp": "pipeline parallel: layers split into stages, in order.",
            "gpu": f"inside a node: {inside.name}, {inside.gb_s:g} GB/s one way.",
            "network": f"between nodes: {outside.gb_s:g} GB/s one way a GPU.",
            "requests": f"answered at once: {one} through the model in a step.",
        }

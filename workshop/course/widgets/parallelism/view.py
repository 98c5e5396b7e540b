"""The parallelism explorer: nodes × GPUs and TP × PP, drawn as a cluster.

It shows who holds which layers and heads, and what travels.
"""

import itertools
from collections.abc import Mapping
from functools import lru_cache, partial

from inference_planner.catalog import load_gpu, load_model
from inference_planner.model.attention import main_kind
from inference_planner.split.communication import NETWORKS, network_link, node_link
from inference_planner.split.ranks import Rank, tp_problem

from workshop.course.drawing.chart import LEAST_WIDTH, box, path, svg, text
from workshop.course.drawing.html import Html, bar, bold, div, legend, muted, panel, table, verdict
from workshop.course.drawing.readable_numbers import duration, size
from workshop.course.widgets import controls as make
from workshop.course.widgets import style
from workshop.course.widgets.parallelism.case import ChosenSplit, SplitLayout, head_range, layout

CARD, HEIGHT, NODE = 70, 100, 160  # a GPU's width and height, a node's height
STEP, MARGIN = CARD + 6, 34
CLUSTER_WIDTH = 2 * MARGIN + 8 * STEP + 8  # of a node with eight GPUs
ONE_NODE = "All ranks on one node: vLLM starts them itself (--distributed-executor-backend mp)."
LINK, HOP = style.SKY, style.TEXT
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # of a slider


def picture(result: SplitLayout) -> Html:
    model = load_model(result.choice.model)
    kind = main_kind(model)
    kv_heads = str(model.num_key_value_heads)
    if not kind.splits_kv_heads:
        kv_heads = kind.describe_cache(model)
    layers = f"{model.num_hidden_layers} layers (down)"
    heads = f"{model.num_attention_heads} heads (across)"
    keys = (
        ("bg-weights", f"what it holds of {layers} × {heads}"),
        ("bg-kv thin", f"its KV heads, of {kv_heads}"),
        ("bg-sky thin", "all-reduce"),
        ("bg-text thin", "point-to-point"),
    )
    parts = (_verdict(result), _cluster(result), legend(keys))
    return panel(*parts, *_traffic(result), label=spoken(result))


def spoken(result: SplitLayout) -> str:
    """Return the picture in words, for a screen reader."""
    model = load_model(result.choice.model)
    sentences = [f"{result.verdict} {result.remedy}"]
    for rank in result.ranks:
        heads, kv_heads = map(_span, head_range(rank, model))
        place = f"GPU {rank.rank} on node {rank.node}"
        layers = _span(rank.layers)
        sentences.append(f"{place}: layers {layers}, heads {heads}, KV heads {kv_heads}")
    for message in result.messages:
        sent = f"{message.count} {message.what} of {size(message.bytes_each)}"
        sentences.append(f"{sent} over {message.link}, {duration(1e3 * message.ms)}")
    return ". ".join(sentences)


def _verdict(result: SplitLayout) -> Html:
    parts = []
    if result.remedy:
        parts.append(div("→ ", bold(result.remedy)))
    notes = _notes(result)
    if notes:
        parts.append(muted(" ".join(notes)))
    sign, look = "✗", "bad tall"
    if result.state == "fits":
        sign, look = "✓", "good tall"
    return verdict(sign, look, result.verdict, *parts)


def _notes(result: SplitLayout) -> list[str]:
    """Return what to know about the nodes of a layout that works."""
    nodes = len({rank.node for rank in result.ranks})
    if not nodes:
        return []
    notes = []
    if result.idle:
        notes.append(f"{result.idle} of {result.choice.gpus} GPUs stay idle.")
    if result.tp_crosses_nodes:
        network = network_link(result.choice.network).name
        notes.append(f"A tensor-parallel group spans nodes: every layer waits twice for {network}.")
    if nodes > 1:
        ray = "a Ray cluster (--distributed-executor-backend ray)"
        notes.append(f"{nodes} nodes: vLLM with --nnodes {nodes}, or {ray}.")
    elif len(result.ranks) == 1:
        notes.append("One process computes everything.")
    else:
        notes.append(ONE_NODE)
    return notes


def _cluster(result: SplitLayout) -> Html:
    """Draw the nodes with their GPUs.

    Blue lines are under each tensor-parallel group, arrows lead from stage to stage.
    """
    c = result.choice
    width = c.gpus_per_node * STEP + 8
    places = _places(result)
    shares = dict(zip(places, map(partial(_share, result), result.ranks), strict=True))
    parts = []
    for node in range(c.nodes):
        parts += _node(node, width, f"node {node} · {load_gpu(c.gpu).link} inside")
    for number in range(c.gpus):
        x, y, _ = _place(number, c.gpus_per_node)
        card = _card(number, *shares.get(number, ()))
        parts.append(f'<g transform="translate({x} {y})">{card}</g>')
    stages = [places[first : first + c.tp] for first in range(0, len(places), c.tp)]
    if c.tp > 1:
        parts += [_group(gpus, c.gpus_per_node) for gpus in stages]
    for stage, after in itertools.pairwise(stages):
        parts.append(_hop(stage[-1], after[0], c.gpus_per_node))
    full_width = max(620, 2 * MARGIN + width)
    drawing = svg("".join(parts), full_width, c.nodes * NODE, min_width=LEAST_WIDTH)
    return div(drawing, cls="scroll")


def _node(node: int, width: float, name: str) -> list[str]:
    """Return the frame of a node, and its name."""
    frame = box(MARGIN - 6, node * NODE + 6, width, NODE - 20, "none", stroke=style.GREY, radius=8)
    return [frame, text(MARGIN + 2, node * NODE + 137, name, size=11, fill=style.MUTED)]


def _places(result: SplitLayout) -> list[int]:
    """Return the GPU of each rank, counted over all nodes.

    Every node that is used has as many ranks.
    """
    if not result.ranks:
        return []
    ranks_per_node = len(result.ranks) // (result.ranks[-1].node + 1)
    places = []
    for rank in result.ranks:
        slot = rank.rank % ranks_per_node
        places.append(rank.node * result.choice.gpus_per_node + slot)
    return places


def _share(result: SplitLayout, rank: Rank) -> tuple[range, int, int, range, str]:
    """Return what a rank holds, as `_card` draws it."""
    model = load_model(result.choice.model)
    heads, kv_heads = head_range(rank, model)
    if not main_kind(model).splits_kv_heads:
        kv = "KV: a full copy"
    else:
        kv = f"KV {_span(kv_heads)}"
        if result.choice.tp > model.num_key_value_heads:
            kv += " (copy)"
    return rank.layers, model.num_hidden_layers, model.num_attention_heads, heads, kv


@lru_cache(maxsize=4096)  # a step of a slider leaves most as they are
def _card(
    number: int,
    layers: range | None = None,
    of_layers: int = 1,
    of_heads: int = 1,
    heads: range = range(0),
    kv: str = "",
) -> str:
    """Draw one GPU: its part of the model, blue in the model's outline, and in numbers."""
    outline_x, outline_y = 8, 16
    outline_width, outline_height = CARD - 16, 34
    middle = CARD / 2
    parts = [box(0, 0, CARD, HEIGHT - 4, style.PANEL, stroke=style.LINE, radius=5)]
    colour = style.MUTED
    if layers:
        colour = style.TEXT
    look = {"anchor": "middle", "size": 10, "fill": colour}
    parts.append(text(middle, 11, f"GPU {number}", bold=True, **look))
    parts.append(
        box(
            outline_x,
            outline_y,
            outline_width,
            outline_height,
            style.PANEL,
            stroke=style.GREY,
            radius=0,
        )
    )
    if layers is None:
        return "".join([*parts, text(middle, 68, "idle", **look)])
    left = outline_x + outline_width * heads.start / of_heads
    top = outline_y + outline_height * layers.start / of_layers
    width = max(1.5, outline_width * len(heads) / of_heads)
    height = max(1.5, outline_height * len(layers) / of_layers)
    parts.append(box(left, top, width, height, style.WEIGHTS, radius=0))
    lines = (f"layers {_span(layers)}", f"heads {_span(heads)}", kv)
    for n, line in enumerate(lines):
        letters = 9.5
        if len(line) > 12:
            letters = 8.4
        parts.append(text(middle, 62 + 11.5 * n, line, anchor="middle", size=letters))
    return "".join([*parts, box(10, 88.5, CARD - 20, 3, style.KV_CACHE, radius=1.5)])


def _place(number: int, per_node: int) -> tuple[int, int, int]:
    """Left and top of a GPU's card, and its node."""
    node, slot = divmod(number, per_node)
    return MARGIN + slot * STEP, node * NODE + 14, node


def _group(gpus: list[int], per_node: int) -> str:
    """A line under the GPUs of a group; on several nodes, the lines are joined at the left."""
    ends: dict[int, tuple[int, int]] = {}  # node → where its line begins and ends
    for gpu in gpus:
        x, _, node = _place(gpu, per_node)
        begin, _ = ends.get(node, (x + 11, 0))
        ends[node] = (begin, x + CARD - 11)
    lines = []
    for node, (begin, end) in ends.items():
        lines.append(f"M{begin} {_level(node)}H{end}")
    for a, b in itertools.pairwise(ends):
        lines.append(f"M{ends[a][0]} {_level(a)}H10V{_level(b)}H{ends[b][0]}")
    return "".join(path(line, LINK, 4) for line in lines)


def _level(node: int) -> int:
    """Return where the lines under a node's GPUs are drawn."""
    return node * NODE + 16 + HEIGHT


def _hop(gpu: int, to: int, per_node: int) -> str:
    """An arrow to the GPU where the next stage begins."""
    xa, ya, node_a = _place(gpu, per_node)
    xb, yb, node_b = _place(to, per_node)
    right, y = xa + CARD, ya + 33
    if node_a == node_b:
        shaft = path(f"M{right - 5} {y}H{xb + 1}", HOP, 3)
        return shaft + f'<path d="M{xb + 6} {y}l-7 -4.5v9z" fill="{HOP}"/>'
    middle = xb + CARD / 2
    shaft = path(f"M{right} {y}H{right + 16}V{node_b * NODE - 4}H{middle}V{yb - 7}", HOP, 3)
    return shaft + f'<path d="M{middle} {yb}l-5 -8h10z" fill="{HOP}"/>'


def _traffic(result: SplitLayout) -> tuple[Html, ...]:
    """Return a table of what one step sends, a bar beside all else, and a sentence on both."""
    if not result.ranks:
        return ()
    rows = []
    for x in result.messages:
        over = f"{x.link}, {x.gb_s:g} GB/s"
        rows.append((x.what, over, f"{x.count:,}", size(x.bytes_each), duration(1e3 * x.ms)))
    if not rows:
        rows.append(("nothing: one GPU", "–", "0", "0 bytes", "0 µs"))
    memory = f"{load_gpu(result.choice.gpu).bandwidth_gb_s:,.0f} GB/s memory"
    rest = "all else: weights, KV cache, kernels"
    rows.append((rest, memory, "", "", duration(result.compute_us)))
    head = ("what travels", "over", "times a step", "bytes each", "time a step")
    sent_us = 1e3 * sum(x.ms for x in result.messages)
    share = 100 * sent_us / (sent_us + result.compute_us)
    both = bar([("sky", share), ("grey", 100 - share)], cls="thin")
    return table(head, rows, "numbers full"), both, _sum(result, sent_us)


def _sum(result: SplitLayout, sent_us: float) -> Html:
    """Return the sentence below the table.

    How long a step takes, how much of it messages travel, and the tokens per second.
    """
    step_us = sent_us + result.compute_us
    requests = result.choice.requests
    whom = "one request"
    if requests != 1:
        whom = f"each of {requests} requests"
    end = f" for {whom}."
    if result.state == "small":
        end += " The model does not fit, so this is what it would be."
    return div(
        "A step takes about ",
        bold(duration(step_us)),
        f", {100 * sent_us / step_us:.0f} % of it travelling: about ",
        bold(f"{1e6 / step_us:,.0f} tokens a second"),
        end,
        cls="sum",
    )


def _span(values: range) -> str:
    if len(values) == 1:
        return f"{values.start}"
    return f"{values.start}–{values.stop - 1}"


class ParallelismExplorer(make.Explorer[SplitLayout]):
    """The layers and heads that each GPU holds, and what travels between GPUs in one step.

    Tensor parallel (TP) cuts every layer by heads; two all-reduces a layer add the parts up.
    Pipeline parallel (PP) cuts between layers; one message a border hands the hidden state over.
    Links in GB/s (10**9 bytes, one way).

    >>> from workshop import ParallelismExplorer
    >>> explorer = ParallelismExplorer("llama-3.1-405b", nodes=2, gpus_per_node=8, tp=8, pp=2)
    >>> explorer.result.state, len(explorer.result.ranks)
    ('fits', 16)
    >>> explorer.controls["tp"].value = 3       # as if dragged there
    >>> explorer.result.verdict
    'tensor_parallel_size 3 cannot split llama-3.1-405b: 3 does not divide the 128 attention heads.'

    Args:
        model: a catalog name, or a folder with a config.json.
        **choice: where the other controls stand at first: gpu, nodes, gpus_per_node, tp, pp,
            network, requests.
    """

    def __init__(self, model: str = "llama-3.1-70b", **choice):
        start = ChosenSplit(model=model, **choice)
        networks = []
        for name in NETWORKS:
            if name != "nvlink":
                networks.append((network_link(name).name, name))
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
        super().__init__(controls, label_px=92, picture_px=CLUSTER_WIDTH)

    @property
    def choice(self) -> ChosenSplit:
        return ChosenSplit(**self.values)

    def compute(self) -> SplitLayout:
        return layout(self.choice)

    def picture_of(self, result: SplitLayout) -> Html:
        return picture(result)

    def sentences(self) -> Mapping[str, str]:
        choice = self.choice
        model, gpu = load_model(choice.model), load_gpu(choice.gpu)
        inside, outside = node_link(gpu), network_link(choice.network)
        sizes = [str(size) for size in range(1, 17) if not tp_problem(model, size)]
        kind = main_kind(model)
        kv_heads = kind.describe_cache(model)
        if not kind.splits_kv_heads:
            kv_heads += ", on every rank"
        tokens = "one token goes"
        if choice.requests != 1:
            tokens = f"{choice.requests} tokens go"
        owner = "node"
        if outside.port_each_gpu:
            owner = "GPU"
        return {
            "model": f"{model.num_hidden_layers} layers, {model.num_attention_heads} heads, {kv_heads}.",
            "nodes": "machines in the allocation.",
            "gpus_per_node": f"{choice.gpus} GPUs in all.",
            "tp": f"tensor parallel: heads of every layer split. Possible: {', '.join(sizes)}.",
            "pp": "pipeline parallel: layers split into stages, in order.",
            "gpu": f"inside a node: {inside.name}, {inside.gb_s:g} GB/s one way.",
            "network": f"between nodes: {outside.gb_s:g} GB/s one way, a port for each {owner}.",
            "requests": f"answered at once: {tokens} through the model in a step.",
        }

"""The parallelism explorer: nodes × GPUs, TP × PP → who holds which layers and heads, and what travels."""

import itertools
from collections.abc import Mapping
from functools import lru_cache

from inference_planner.catalog import load_gpu, load_model
from inference_planner.communication import NETWORKS, network_link, node_link
from inference_planner.ranks import tp_problem

from workshop.course.chart import LEAST_WIDTH, box, path, svg, text
from workshop.course.html import Html, bar, bold, div, legend, muted, panel, table, verdict
from workshop.course.numbers import duration, size
from workshop.course.widgets import controls as make
from workshop.course.widgets import style
from workshop.course.widgets.parallelism.case import Choice, Layout, head_range, layout

CARD, HEIGHT, NODE = 70, 100, 160  # a GPU's width and height, a node's height
STEP, MARGIN = CARD + 6, 34
CLUSTER_WIDTH = 2 * MARGIN + 8 * STEP + 8  # of a node with eight GPUs
ONE_NODE = "All ranks on one node: vLLM starts them itself (--distributed-executor-backend mp)."
LINK, HOP = style.SKY, style.TEXT
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 16, 32)  # of a slider


def picture(result: Layout) -> Html:
    m = load_model(result.choice.model)
    kv = "1 latent" if m.mla else m.num_key_value_heads
    held = f"what it holds of {m.num_hidden_layers} layers (down) × {m.num_attention_heads} heads (across)"
    keys = (
        ("bg-weights", held),
        ("bg-kv thin", f"its KV heads, of {kv}"),
        ("bg-sky thin", "all-reduce"),
    )
    parts = (
        _verdict(result),
        _cluster(result),
        legend((*keys, ("bg-text thin", "point-to-point"))),
    )
    return panel(*parts, *_traffic(result), label=spoken(result))


def spoken(result: Layout) -> str:
    m, parts = load_model(result.choice.model), [f"{result.verdict} {result.remedy}"]
    for r in result.ranks:
        heads, kv = map(_span, head_range(r, m))
        parts.append(
            f"GPU {r.rank} on node {r.node}: layers {_span(r.layers)}, heads {heads}, KV heads {kv}"
        )
    for x in result.messages:
        parts.append(
            f"{x.count} {x.what} of {size(x.bytes_each)} over {x.link}, {duration(1e3 * x.ms)}"
        )
    return ". ".join(parts)


def _verdict(result: Layout) -> Html:
    used, notes = len({r.node for r in result.ranks}), []
    if used and result.idle:
        notes.append(f"{result.idle} of {result.choice.gpus} GPUs stay idle.")
    if used and result.tp_crosses_nodes:
        network = network_link(result.choice.network).name
        notes.append(f"A tensor-parallel group spans nodes: every layer waits twice for {network}.")
    if used > 1:
        notes.append(
            f"{used} nodes: vLLM with --nnodes {used}, or a Ray cluster (--distributed-executor-backend ray)."
        )
    elif used:
        notes.append("One process computes everything." if len(result.ranks) == 1 else ONE_NODE)
    more = [div("→ ", bold(result.remedy))] if result.remedy else []
    more += [muted(" ".join(notes))] if notes else []
    fits = result.state == "fits"
    return verdict("✓" if fits else "✗", f"{'good' if fits else 'bad'} tall", result.verdict, *more)


def _cluster(result: Layout) -> Html:
    """The nodes with their GPUs, blue lines under each tensor-parallel group, arrows from stage to stage."""
    c, m, parts = result.choice, load_model(result.choice.model), []
    wide = c.gpus_per_node * STEP + 8
    for node in range(c.nodes):
        parts.append(
            box(MARGIN - 6, node * NODE + 6, wide, NODE - 20, "none", stroke=style.GREY, radius=8)
        )
        inside = f"node {node} · {load_gpu(c.gpu).link} inside"
        parts.append(text(MARGIN + 2, node * NODE + 137, inside, size=11, fill=style.MUTED))
    held, copy = {}, " (copy)" if c.tp > m.num_key_value_heads else ""
    share = len(result.ranks) // (result.ranks[-1].node + 1) if result.ranks else 0
    # nodes have as many ranks each
    at = [r.node * c.gpus_per_node + r.rank % share for r in result.ranks]
    for r, number in zip(result.ranks, at, strict=True):
        heads, kv = head_range(r, m)
        words = "KV: a full copy" if m.mla else f"KV {_span(kv)}{copy}"
        held[number] = (r.layers, m.num_hidden_layers, m.num_attention_heads, heads, words)
    for number in range(c.gpus):
        x, y, _ = _place(number, c.gpus_per_node)
        parts.append(
            f'<g transform="translate({x} {y})">{_card(number, *held.get(number, ()))}</g>'
        )
    stages = [at[first : first + c.tp] for first in range(0, len(at), c.tp)]
    parts += [_group(gpus, c.gpus_per_node) for gpus in stages if c.tp > 1]
    parts += [_hop(a[-1], b[0], c.gpus_per_node) for a, b in itertools.pairwise(stages)]
    return div(
        svg("".join(parts), max(620, 2 * MARGIN + wide), c.nodes * NODE, min_width=LEAST_WIDTH),
        cls="scroll",
    )


@lru_cache(maxsize=4096)  # a step of a slider leaves most as they are
def _card(number: int, layers: range | None = None, of_layers: int = 1, of_heads: int = 1, heads: range = range(0),
          kv: str = "") -> str:  # fmt: skip
    """One GPU: its part of the model as a blue rectangle in the model's outline, and the same in numbers."""
    box_x, box_y, box_w, box_h, middle = 8, 16, CARD - 16, 34, CARD / 2
    parts, ink = [box(0, 0, CARD, HEIGHT - 4, style.PANEL, stroke=style.LINE, radius=5)], style.TEXT
    named = {"anchor": "middle", "size": 10, "fill": ink if layers else style.MUTED}
    parts.append(text(middle, 11, f"GPU {number}", bold=True, **named))
    parts.append(box(box_x, box_y, box_w, box_h, style.PANEL, stroke=style.GREY, radius=0))
    if layers is None:
        return "".join([*parts, text(middle, 68, "idle", **named)])
    left, top = box_x + box_w * heads.start / of_heads, box_y + box_h * layers.start / of_layers
    size = (max(1.5, box_w * len(heads) / of_heads), max(1.5, box_h * len(layers) / of_layers))
    parts.append(box(left, top, *size, style.WEIGHTS, radius=0))
    for n, words in enumerate((f"layers {_span(layers)}", f"heads {_span(heads)}", kv)):
        parts.append(
            text(
                middle, 62 + 11.5 * n, words, anchor="middle", size=8.4 if len(words) > 12 else 9.5
            )
        )
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
        ends[node] = (ends.get(node, (x + 11,))[0], x + CARD - 11)
    levels = {node: node * NODE + 16 + HEIGHT for node in ends}
    lines = [f"M{a} {levels[node]}H{b}" for node, (a, b) in ends.items()]
    for a, b in itertools.pairwise(ends):
        lines.append(f"M{ends[a][0]} {levels[a]}H10V{levels[b]}H{ends[b][0]}")
    return "".join(path(one, LINK, 4) for one in lines)


def _hop(gpu: int, to: int, per_node: int) -> str:
    """An arrow to the GPU where the next stage begins."""
    (xa, ya, node_a), (xb, yb, node_b) = _place(gpu, per_node), _place(to, per_node)
    right, y = xa + CARD, ya + 33
    if node_a == node_b:
        return (
            path(f"M{right - 5} {y}H{xb + 1}", HOP, 3)
            + f'<path d="M{xb + 6} {y}l-7 -4.5v9z" fill="{HOP}"/>'
        )
    middle = xb + CARD / 2
    way = f"M{right} {y}H{right + 16}V{node_b * NODE - 4}H{middle}V{yb - 7}"
    return path(way, HOP, 3) + f'<path d="M{middle} {yb}l-5 -8h10z" fill="{HOP}"/>'


def _traffic(result: Layout) -> tuple[Html, ...]:
    """What one step sends, how long it takes beside all else, a bar of both, and the sentence that says it."""
    if not result.ranks:
        return ()
    rows = [] if result.messages else [("nothing: one GPU", "–", "0", "0 bytes", "0 µs")]
    for x in result.messages:
        rows.append(
            (
                x.what,
                f"{x.link}, {x.gb_s:g} GB/s",
                f"{x.count:,}",
                size(x.bytes_each),
                duration(1e3 * x.ms),
            )
        )
    memory = f"{load_gpu(result.choice.gpu).bandwidth_gb_s:,.0f} GB/s memory"
    rows.append(
        ("all else: weights, KV cache, kernels", memory, "", "", duration(result.compute_us))
    )
    head = ("what travels", "over", "times a step", "bytes each", "time a step")
    sent, many = 1e3 * sum(x.ms for x in result.messages), result.choice.requests
    step, whom = (
        sent + result.compute_us,
        "one request" if many == 1 else f"each of {many} requests",
    )
    share, rate = 100 * sent / step, bold(f"{1e6 / step:,.0f} tokens a second")
    small = (
        " The model does not fit, so this is what it would be." if result.state == "small" else ""
    )
    words = (
        "A step takes about ",
        bold(duration(step)),
        f", {share:.0f} % of it travelling: about ",
        rate,
    )
    both = bar([("sky", share), ("grey", 100 - share)], cls="thin")
    return table(head, rows, "numbers full"), both, div(*words, f" for {whom}.{small}", cls="sum")


def _span(values: range) -> str:
    return f"{values.start}" if len(values) == 1 else f"{values.start}–{values.stop - 1}"


class ParallelismExplorer(make.Explorer[Layout]):
    """Who holds which layers and heads, and what travels between GPUs in one step.

    Tensor parallel (TP) cuts every layer by heads; two all-reduces a layer add the parts up. Pipeline parallel (PP)
    cuts between layers; one message a border hands the hidden state over. Links in GB/s (10**9 bytes, one way).

    >>> from workshop import ParallelismExplorer
    >>> explorer = ParallelismExplorer("llama-3.1-405b", nodes=2, gpus_per_node=8, tp=8, pp=2)
    >>> explorer.result.state, len(explorer.result.ranks)
    ('fits', 16)
    >>> explorer.controls["tp"].value = 3       # as if dragged there
    >>> explorer.result.verdict
    'tensor_parallel_size 3 cannot split llama-3.1-405b: 3 does not divide the 128 attention heads.'

    Args:
        model: a catalog name, or a folder with a config.json.
        **choice: where the other controls stand at first: gpu, nodes, gpus_per_node, tp, pp, network, requests.
    """

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
        super().__init__(controls, label_px=92, picture_px=CLUSTER_WIDTH)

    @property
    def choice(self) -> Choice:
        return Choice(**self.values)

    def compute(self) -> Layout:
        return layout(self.choice)

    def picture_of(self, result: Layout) -> Html:
        return picture(result)

    def words(self) -> Mapping[str, str]:
        choice = self.choice
        m, gpu = load_model(choice.model), load_gpu(choice.gpu)
        inside, outside = node_link(gpu), network_link(choice.network)
        divides = ", ".join(str(size) for size in range(1, 17) if not tp_problem(m, size))
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

"""The picture of the parallelism explorer: the model cut up, GPUs on their nodes, what travels. Pure: text out.

In every little rectangle layers run from top to bottom and heads from left to right: what a GPU holds is blue.
"""

from __future__ import annotations

import itertools

from workshop.learn.chart import box, path, svg, text
from workshop.learn.html import Html, bar, bold, div, legend, muted, panel, table, verdict
from workshop.learn.numbers import duration, size
from workshop.learn.widgets import style
from workshop.learn.widgets.parallelism.case import Layout, head_range
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.communication import network_link
from workshop.plan.ranks import Rank

CARD, HEIGHT, NODE = 70, 100, 160  # a GPU's width and height, a node's height
STEP, MARGIN = CARD + 6, 34
LINK, HOP = style.SKY, style.TEXT


def picture(result: Layout) -> Html:
    """Return the whole picture."""
    parts = (_verdict(result), _cluster(result), _legend(result), *_traffic(result))
    return panel(*parts, label=spoken(result))


def spoken(result: Layout) -> str:
    """Return the picture in words, for screen readers."""
    m, parts = load_model(result.choice.model), [f"{result.verdict} {result.remedy}"]
    for r in result.ranks:
        heads, kv = map(_span, head_range(r, m))
        parts.append(f"GPU {r.rank} on node {r.node}: layers {_span(r.layers)}, heads {heads}, KV heads {kv}")
    for x in result.messages:
        parts.append(f"{x.count} {x.what} of {size(x.bytes_each)} over {x.link}, {duration(1e3 * x.ms)}")
    return ". ".join(parts)


def _verdict(result: Layout) -> Html:
    notes = []
    if result.ranks and result.idle:
        notes.append(f"{result.idle} of {result.choice.gpus} GPUs stay idle.")
    if result.ranks and result.tp_crosses_nodes:
        network = network_link(result.choice.network).name
        notes.append(f"A tensor-parallel group spans nodes: every layer waits twice for {network}.")
    if result.ranks:
        notes.append(_executor(result))
    more = [div("→ Nearest: ", bold(result.remedy))] if result.remedy else []
    more += [muted(" ".join(notes))] if notes else []
    fits = result.state == "fits"
    return verdict("✓" if fits else "✗", f"{'good' if fits else 'bad'} tall", result.verdict, *more)


def _executor(result: Layout) -> str:
    used = len({r.node for r in result.ranks})
    if len(result.ranks) == 1:
        return "One process computes everything."
    if used == 1:
        return "All ranks on one node: vLLM starts them itself (--distributed-executor-backend mp)."
    return f"{used} nodes: vLLM with --nnodes {used}, or a Ray cluster (--distributed-executor-backend ray)."


def _cluster(result: Layout) -> Html:
    c, m = result.choice, load_model(result.choice.model)
    width = max(620, 2 * MARGIN + c.gpus_per_node * STEP + 8)
    by_gpu = {r.rank: r for r in result.ranks}
    parts = []
    for node in range(c.nodes):
        top, inside = node * NODE, f"node {node} · {load_gpu(c.gpu).link} inside"
        frame = (MARGIN - 6, top + 6, c.gpus_per_node * STEP + 8, NODE - 20)
        parts.append(box(*frame, "none", stroke=style.GREY, radius=8))
        parts.append(text(MARGIN + 2, top + 137, inside, size=11, fill=style.MUTED))
        for slot in range(c.gpus_per_node):
            number = node * c.gpus_per_node + slot
            parts.append(_card(by_gpu.get(number), number, MARGIN + slot * STEP, top + 14, m, c.tp))
    return svg("".join([*parts, *_links(result)]), width, c.nodes * NODE)


def _card(rank: Rank | None, number: int, x: float, y: float, m: ModelConfig, tp: int) -> str:
    """One GPU: its part of the model as a blue rectangle in the model's outline, and the same in numbers."""
    box_x, box_y, box_w, box_h, middle = x + 8, y + 16, CARD - 16, 34, x + CARD / 2
    ink = style.TEXT if rank else style.MUTED
    parts = [
        box(x, y, CARD, HEIGHT - 4, style.PANEL, stroke=style.LINE, radius=5),
        text(middle, y + 11, f"GPU {number}", anchor="middle", size=10, fill=ink, bold=True),
        box(box_x, box_y, box_w, box_h, style.EMPTY, radius=0),
    ]
    if rank is None:
        return "".join([*parts, text(middle, y + 68, "idle", anchor="middle", size=10, fill=style.MUTED)])
    heads, kv = head_range(rank, m)
    left, wide = heads.start / m.num_attention_heads, len(heads) / m.num_attention_heads
    first, tall = rank.layers.start / m.num_hidden_layers, len(rank.layers) / m.num_hidden_layers
    held = (max(1.5, wide * box_w), max(1.5, tall * box_h))
    parts.append(box(box_x + left * box_w, box_y + first * box_h, *held, style.WEIGHTS, radius=0))
    kv_words = _kv_words(kv, m, not m.mla and tp > m.num_key_value_heads)
    lines = (f"layers {_span(rank.layers)}", f"heads {_span(heads)}", kv_words)
    for n, words in enumerate(lines):
        parts.append(text(middle, y + 62 + 11.5 * n, words, anchor="middle", size=8.4 if len(words) > 12 else 9.5))
    parts.append(box(x + 10, y + 88.5, CARD - 20, 3, style.KV_CACHE, radius=1.5))
    return "".join(parts)


def _kv_words(kv: range, m: ModelConfig, copies: bool) -> str:
    if m.mla:
        return "KV: a full copy"
    return f"KV {_span(kv)}{' (copy)' if copies else ''}"


def _place(number: int, per_node: int) -> tuple[float, float, int]:
    """Middle of a GPU's card, its top, and its node."""
    node, slot = divmod(number, per_node)
    return MARGIN + slot * STEP + CARD / 2, node * NODE + 14, node


def _links(result: Layout) -> list[str]:
    """Blue lines under each tensor-parallel group, arrows from stage to stage."""
    c, out = result.choice, []
    if not result.ranks:
        return out
    for stage in range(c.pp):
        gpus = range(stage * c.tp, (stage + 1) * c.tp)
        if c.tp > 1:
            out.append(_group(gpus, c.gpus_per_node))
        if stage + 1 < c.pp:
            out.append(_hop(gpus[-1], gpus[-1] + 1, c.gpus_per_node))
    return out


def _group(gpus: range, per_node: int) -> str:
    by_node: dict[int, list[float]] = {}
    for gpu in gpus:
        x, _, node = _place(gpu, per_node)
        by_node.setdefault(node, []).append(x)
    levels = {node: node * NODE + 16 + HEIGHT for node in by_node}
    lines = [f"M{xs[0] - 24} {levels[node]}H{xs[-1] + 24}" for node, xs in by_node.items()]
    for a, b in itertools.pairwise(sorted(by_node)):
        lines.append(f"M{by_node[a][0] - 24} {levels[a]}H10V{levels[b]}H{by_node[b][0] - 24}")
    return "".join(path(one, LINK, 4) for one in lines)


def _hop(a: int, b: int, per_node: int) -> str:
    (xa, ya, node_a), (xb, yb, node_b) = _place(a, per_node), _place(b, per_node)
    if node_a == node_b:
        start, end, y = xa + CARD / 2 - 5, xb - CARD / 2 + 6, ya + 33
        return path(f"M{start} {y}H{end - 5}", HOP, 3) + f'<path d="M{end} {y}l-7 -4.5v9z" fill="{HOP}"/>'
    right, middle = xa + CARD / 2, node_b * NODE - 4
    way = f"M{right} {ya + 33}H{right + 16}V{middle}H{xb}V{yb - 7}"
    return path(way, HOP, 3) + f'<path d="M{xb} {yb}l-5 -8h10z" fill="{HOP}"/>'


def _legend(result: Layout) -> Html:
    m = load_model(result.choice.model)
    kv = "1 latent" if m.mla else m.num_key_value_heads
    held = f"what it holds of {m.num_hidden_layers} layers (down) × {m.num_attention_heads} heads (across)"
    keys = (("bg-weights", held), ("bg-kv thin", f"its KV heads, of {kv}"), ("bg-sky thin", "all-reduce"))
    return legend((*keys, ("bg-text thin", "point-to-point")))


def _traffic(result: Layout) -> tuple[Html, ...]:
    """What one step sends, and how long it takes beside all else."""
    if not result.ranks:
        return ()
    rows = [
        (x.what, f"{x.link}, {x.gb_s:g} GB/s", f"{x.count:,}", size(x.bytes_each), duration(1e3 * x.ms))
        for x in result.messages
    ] or [("nothing: one GPU", "–", "0", "0 bytes", "0 µs")]
    memory = f"{load_gpu(result.choice.gpu).bandwidth_gb_s:,.0f} GB/s memory"
    rows.append(("all else: weights, KV cache, kernels", memory, "", "", duration(result.compute_us)))
    head = ("what travels", "over", "times a step", "bytes each", "time a step")
    return table(head, rows, "numbers full"), *_sum(result)


def _sum(result: Layout) -> tuple[Html, Html]:
    """A bar of the step: what travels beside all else, and the sentence that says it."""
    sent = 1e3 * sum(x.ms for x in result.messages)
    step, many = sent + result.compute_us, result.choice.requests
    share, whom = 100 * sent / step, "one request" if many == 1 else f"each of {many} requests"
    small = " The model does not fit, so this is what it would be." if result.state == "small" else ""
    rate = bold(f"{1e6 / step:,.0f} tokens a second")
    words = ("A step takes about ", bold(duration(step)), f", {share:.0f} % of it travelling: about ", rate)
    return bar([("sky", share), ("grey", 100 - share)], cls="thin"), div(*words, f" for {whom}.{small}", cls="sum")


def _span(values: range) -> str:
    return f"{values.start}" if len(values) == 1 else f"{values.start}–{values.stop - 1}"

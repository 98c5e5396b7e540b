"""The picture of the parallelism explorer: the model cut up, GPUs on their nodes, what travels. Pure: text out.

In every little rectangle layers run from top to bottom and heads from left to right: what a GPU holds is blue.
"""

from __future__ import annotations

import html
import itertools

from workshop.learn.widgets import style
from workshop.learn.widgets.parallelism_case import Layout, head_range
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.communication import network_link
from workshop.plan.ranks import Rank

SIGNS = {"fits": ("✓", style.GOOD), "small": ("✗", style.BAD), "wrong": ("✗", style.BAD)}
CARD, HEIGHT, NODE = 70, 100, 160     # a GPU's width and height, a node's height
MARGIN = 34
LINK, HOP = style.SKY, style.TEXT
EMPTY = "var(--jp-layout-color2, #eeeeee)"


def layout_html(result: Layout) -> str:
    """Return the whole picture as HTML."""
    label = html.escape(spoken(result), quote=True)
    return style.panel(_verdict(result) + _cluster(result) + _traffic(result), label=label)


def spoken(result: Layout) -> str:
    """Return the picture in words, for screen readers."""
    m = load_model(result.choice.model)
    parts = [f"{result.verdict} {result.remedy}"]
    parts += [f"GPU {r.rank} on node {r.node}: layers {_span(r.layers)}, heads {_span(head_range(r, m)[0])}, "
              f"KV heads {_span(head_range(r, m)[1])}" for r in result.ranks]
    parts += [f"{x.count} {x.what} of {_bytes(x.bytes_each)} over {x.link}, {_time(1e3 * x.ms)}"
              for x in result.messages]
    return ". ".join(parts)


def _verdict(result: Layout) -> str:
    sign, colour = SIGNS[result.state]
    more = f'<div>→ Nearest: <b>{html.escape(result.remedy)}</b></div>' if result.remedy else ""
    notes = []
    if result.ranks and result.idle:
        notes.append(f"{result.idle} of {result.choice.gpus} GPUs stay idle.")
    if result.ranks and result.tp_crosses_nodes:
        network = network_link(result.choice.network).name
        notes.append(f"A tensor-parallel group spans nodes: every layer waits twice for {network}.")
    if result.ranks:
        notes.append(_executor(result))
    note = f'<div style="font-size:12px;color:{style.MUTED}">{" ".join(notes)}</div>' if notes else ""
    return (f'<div style="border-left:5px solid {colour};padding:4px 12px;margin:0 0 10px;min-height:46px">'
            f'<b style="color:{colour};font-size:16px">{sign}</b> <b>{html.escape(result.verdict)}</b>{more}{note}'
            f"</div>")


def _executor(result: Layout) -> str:
    used = len({r.node for r in result.ranks})
    if len(result.ranks) == 1:
        return "One process computes everything."
    if used == 1:
        return "All ranks on one node: vLLM starts them itself (--distributed-executor-backend mp)."
    return f"{used} nodes: vLLM with --nnodes {used}, or a Ray cluster (--distributed-executor-backend ray)."


def _cluster(result: Layout) -> str:
    c, m = result.choice, load_model(result.choice.model)
    width = max(620, 2 * MARGIN + c.gpus_per_node * (CARD + 6) + 8)
    by_gpu = {r.rank: r for r in result.ranks}
    parts = []
    for node in range(c.nodes):
        top = node * NODE
        parts.append(f'<rect x="{MARGIN - 6}" y="{top + 6}" width="{c.gpus_per_node * (CARD + 6) + 8}" '
                     f'height="{NODE - 20}" rx="8" fill="none" stroke="{style.GREY}"/>'
                     f'<text x="{MARGIN + 2}" y="{top + 137}" font-size="11" fill="{style.MUTED}">node {node} · '
                     f'{html.escape(load_gpu(c.gpu).link)} inside</text>')
        for slot in range(c.gpus_per_node):
            parts.append(_card(by_gpu.get(node * c.gpus_per_node + slot), node * c.gpus_per_node + slot,
                               MARGIN + slot * (CARD + 6), top + 14, m, c.tp))
    parts += _links(result)
    legend = _legend(result)
    return (f'<svg viewBox="0 0 {width} {c.nodes * NODE}" style="width:100%;max-width:{width}px;display:block" '
            f'font-family="{html.escape(style.FONT, quote=True)}" aria-hidden="true">{"".join(parts)}</svg>{legend}')


def _card(rank: Rank | None, number: int, x: float, y: float, m: ModelConfig, tp: int) -> str:
    """One GPU: its part of the model as a blue rectangle in the model's outline, and the same in numbers."""
    box_x, box_y, box_w, box_h = x + 8, y + 16, CARD - 16, 34
    parts = [f'<rect x="{x}" y="{y}" width="{CARD}" height="{HEIGHT - 4}" rx="5" fill="{style.PANEL}" '
             f'stroke="{style.LINE}"/>',
             f'<text x="{x + CARD / 2}" y="{y + 11}" font-size="10" text-anchor="middle" '
             f'fill="{style.TEXT if rank else style.MUTED}" font-weight="600">GPU {number}</text>',
             f'<rect x="{box_x}" y="{box_y}" width="{box_w}" height="{box_h}" fill="{EMPTY}"/>']
    if rank is None:
        parts.append(f'<text x="{x + CARD / 2}" y="{y + 68}" font-size="10" text-anchor="middle" '
                     f'fill="{style.MUTED}">idle</text>')
        return "".join(parts)
    heads, kv = head_range(rank, m)
    left, wide = heads.start / m.num_attention_heads, len(heads) / m.num_attention_heads
    first, tall = rank.layers.start / m.num_hidden_layers, len(rank.layers) / m.num_hidden_layers
    parts.append(f'<rect x="{box_x + left * box_w:.2f}" y="{box_y + first * box_h:.2f}" '
                 f'width="{max(1.5, wide * box_w):.2f}" height="{max(1.5, tall * box_h):.2f}" fill="{style.WEIGHTS}"/>')
    copies = not m.mla and tp > m.num_key_value_heads
    lines = [f"layers {_span(rank.layers)}", f"heads {_span(heads)}", _kv_words(kv, m, copies)]
    for n, text in enumerate(lines):
        size = 8.4 if len(text) > 12 else 9.5
        parts.append(f'<text x="{x + CARD / 2}" y="{y + 62 + 11.5 * n}" font-size="{size}" text-anchor="middle" '
                     f'fill="{style.TEXT}">{text}</text>')
    parts.append(f'<rect x="{x + 10}" y="{y + 88.5}" width="{CARD - 20}" height="3" rx="1.5" fill="{style.KV_CACHE}"/>')
    return "".join(parts)


def _kv_words(kv: range, m: ModelConfig, copies: bool) -> str:
    if m.mla:
        return "KV: a full copy"
    return f"KV {_span(kv)}{' (copy)' if copies else ''}"


def _place(number: int, per_node: int) -> tuple[float, float, int]:
    """Middle of a GPU's card, its top, and its node."""
    node, slot = divmod(number, per_node)
    return MARGIN + slot * (CARD + 6) + CARD / 2, node * NODE + 14, node


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
    line = f'stroke="{LINK}" stroke-width="4" stroke-linecap="round" fill="none"'
    parts = []
    for node, xs in by_node.items():
        y = node * NODE + 14 + HEIGHT + 2
        parts.append(f'<path d="M{xs[0] - 24} {y}H{xs[-1] + 24}" {line}/>')
    nodes = sorted(by_node)
    for a, b in itertools.pairwise(nodes):
        ya, yb = (n * NODE + 14 + HEIGHT + 2 for n in (a, b))
        parts.append(f'<path d="M{by_node[a][0] - 24} {ya}H10V{yb}H{by_node[b][0] - 24}" {line}/>')
    return "".join(parts)


def _hop(a: int, b: int, per_node: int) -> str:
    (xa, ya, node_a), (xb, yb, node_b) = _place(a, per_node), _place(b, per_node)
    if node_a == node_b:
        start, end, y = xa + CARD / 2 - 5, xb - CARD / 2 + 6, ya + 33
        return (f'<path d="M{start} {y}H{end - 5}" stroke="{HOP}" stroke-width="3"/>'
                f'<path d="M{end} {y}l-7 -4.5v9z" fill="{HOP}"/>')
    right = xa + CARD / 2
    turn, start, middle = right + 16, ya + 33, node_b * NODE - 4
    return (f'<path d="M{right} {start}H{turn}V{middle}H{xb}V{yb - 7}" stroke="{HOP}" stroke-width="3" fill="none"/>'
            f'<path d="M{xb} {yb}l-5 -8h10z" fill="{HOP}"/>')


def _legend(result: Layout) -> str:
    m = load_model(result.choice.model)
    box = "display:inline-block;width:14px;vertical-align:2px;margin-right:5px;border-radius:2px"
    items = [f'<span style="{box};height:10px;background:{style.WEIGHTS};vertical-align:-1px"></span>what it holds of '
             f"{m.num_hidden_layers} layers (down) × {m.num_attention_heads} heads (across)",
             f'<span style="{box};height:3px;background:{style.KV_CACHE}"></span>its KV heads, of '
             f"{1 if m.mla else m.num_key_value_heads}{' latent' if m.mla else ''}",
             f'<span style="{box};height:4px;background:{LINK}"></span>all-reduce',
             f'<span style="{box};height:3px;background:{HOP}"></span>point-to-point']
    return (f'<div style="font-size:12px;color:{style.MUTED};margin:2px 0 10px">'
            + "".join(f'<span style="margin-right:14px;white-space:nowrap">{item}</span> ' for item in items)
            + "</div>")


def _traffic(result: Layout) -> str:
    """What one step sends, and how long it takes beside all else."""
    if not result.ranks:
        return ""
    cell = f"padding:3px 10px 3px 0;border-bottom:1px solid {style.LINE};text-align:left"
    right = f"{cell[:-4]}right;font-variant-numeric:tabular-nums;white-space:nowrap"
    sides = (cell, cell, right, right, right)
    head = "".join(f'<th style="{side};color:{style.MUTED};font-weight:400">{text}</th>' for side, text in
                   zip(sides, ("what travels", "over", "times a step", "bytes each", "time a step"), strict=True))
    rows = [(x.what, f"{x.link}, {x.gb_s:g} GB/s", f"{x.count:,}", _bytes(x.bytes_each), _time(1e3 * x.ms))
            for x in result.messages] or [("nothing: one GPU", "–", "0", "0 B", "0 µs")]
    memory = f"{load_gpu(result.choice.gpu).bandwidth_gb_s:,.0f} GB/s memory"
    rows.append(("all else: weights, KV cache, kernels", memory, "", "", _time(result.compute_us)))
    body = "".join("<tr>" + "".join(f'<td style="{side}">{html.escape(text)}</td>'
                                    for side, text in zip(sides, row, strict=True)) + "</tr>" for row in rows)
    return (f'<table style="border-collapse:collapse;font-size:12.5px;margin:0;width:100%"><thead><tr>{head}</tr>'
            f'</thead><tbody>{body}</tbody></table><div style="margin-top:8px">{_sum(result)}</div>')


def _sum(result: Layout) -> str:
    """A bar of the step: what travels beside all else, and the sentence that says it."""
    sent = 1e3 * sum(x.ms for x in result.messages)
    step = sent + result.compute_us
    many = result.choice.requests
    whom = "one request" if many == 1 else f"each of {many} requests"
    share = 100 * sent / step
    small = " The model does not fit, so this is what it would be." if result.state == "small" else ""
    return (f'<div style="display:flex;height:10px;border-radius:3px;overflow:hidden;background:{style.GREY}">'
            f'<span style="width:{share:.2f}%;background:{LINK}"></span></div>'
            f'<div style="font-size:12px;margin-top:4px">A step takes about <b>{_time(step)}</b>, '
            f"{share:.0f} % of it travelling: about <b>{1e6 / step:,.0f} tokens a second</b> for {whom}.{small}</div>")


def _span(values: range) -> str:
    return f"{values.start}" if len(values) == 1 else f"{values.start}–{values.stop - 1}"


def _bytes(size: float) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}".replace(".0 ", " ")
    return f"{size:,.0f} B"


def _time(us: float) -> str:
    if us >= 1e6:
        return f"{us / 1e6:,.2f} s"
    return f"{us / 1e3:,.2f} ms" if us >= 1e3 else f"{us:,.0f} µs"

"""The schematic pictures of notebooks 01 and 02: the KV cache, kinds of parallelism, links, Megatron-LM's products.

Each returns a Picture, SVG in the course's colours, with words for screen readers. For charts of numbers: figure.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from workshop.learn.chart import FRAME, Picture, arrow, box, dot, line, path, text
from workshop.learn.widgets import style

SHADES = (style.BLUE, style.SKY, style.GREEN, style.GREY)  # GPU 0 to 3


def kv_caching(words: Sequence[str] = ("San", "Francisco", "is", "a", "city")) -> Picture:
    """Draw which keys and values each step computes, without and with a cache: a row a step, a column a token."""
    n, wide, high, left = len(words), 50, 32, 86
    parts, counts = [], []
    for panel, (title, cached) in enumerate((("without a cache", False), ("with a KV cache", True))):
        x0, y0 = left + panel * (n * wide + 60), 46
        parts.append(text(x0, 16, title, bold=True, size=13))
        parts += [
            text(x0 + (t + 0.5) * wide, 38, w, anchor="middle", size=10, fill=style.MUTED) for t, w in enumerate(words)
        ]
        done = 0
        for step in range(n):
            if panel == 0:
                parts.append(text(left - 10, y0 + step * high + 20, f"step {step + 1}", anchor="end"))
            for token in range(step + 1):
                fresh = not cached or token == step
                done += fresh
                parts.append(
                    box(
                        x0 + token * wide + 2,
                        y0 + step * high + 2,
                        wide - 4,
                        high - 4,
                        style.VERMILLION if fresh else "none",
                        stroke=style.KV_CACHE if not fresh else "none",
                        dash="" if fresh else "3 2",
                    )
                )
        counts.append(done)
        parts.append(text(x0, y0 + n * high + 18, f"{done} pairs of K and V computed"))
    y = 46 + n * high + 34
    parts += [
        box(left, y, 12, 12, style.VERMILLION),
        text(left + 18, y + 10, "K and V computed in this step"),
        box(left + 220, y, 12, 12, "none", stroke=style.KV_CACHE, dash="3 2"),
        text(left + 238, y + 10, "read from the cache"),
    ]
    said = (
        f"Generating {n} tokens computes {counts[0]} pairs of keys and values without a cache, {counts[1]} with one.",
        "Each row is a step, and only its newest token is new.",
    )
    return Picture("".join(parts), left + 2 * n * wide + 70, y + 20, " ".join(said))


def kinds(layers: int = 4) -> Picture:
    """Draw how a model of a few layers lies on GPUs: alone, tensor, pipeline, both, and copies of it (data)."""
    cell_w, cell_h, gap, top = 104, 18, 34, 46
    cuts = {
        "one GPU": (1, 1),
        "tensor parallel 2": (2, 1),
        "pipeline parallel 2": (1, 2),
        "TP 2 × PP 2": (2, 2),
        "data parallel 2": (1, 1),
    }
    under = {
        "one GPU": "no talk",
        "tensor parallel 2": "every layer talks",
        "pipeline parallel 2": "one hand-over",
        "TP 2 × PP 2": "both",
        "data parallel 2": "two whole copies",
    }
    parts = []
    for n, (name, (tp, pp)) in enumerate(cuts.items()):
        x0 = 10 + n * (cell_w + gap)
        parts.append(text(x0 + cell_w / 2, 16, name, anchor="middle", bold=True))
        parts.append(text(x0 + cell_w / 2, 32, under[name], anchor="middle", size=11, fill=style.MUTED))
        copies = 2 if name.startswith("data") else 1
        for copy in range(copies):
            wide = (cell_w - 8 * (copies - 1)) / copies
            left = x0 + copy * (wide + 8)
            for layer in range(layers):
                stage = layer * pp // layers
                for t in range(tp):
                    gpu = stage * tp + t + copy
                    parts.append(
                        box(left + t * wide / tp, top + layer * (cell_h + 3), wide / tp - 2, cell_h, SHADES[gpu])
                    )
    y = top + layers * (cell_h + 3) + 18
    for gpu, colour in enumerate(SHADES):
        parts += [box(10 + gpu * 76, y - 10, 12, 12, colour), text(28 + gpu * 76, y, f"GPU {gpu}")]
    parts.append(text(330, y, "boxes one below the other: layers", fill=style.MUTED))
    said = (
        "Five ways to lay a model on GPUs: on one, or cut across every layer (tensor parallel).",
        "Or cut between layers (pipeline parallel), both, or copied whole (data parallel).",
    )
    return Picture("".join(parts), 10 + 5 * (cell_w + gap), y + 10, " ".join(said))


def links(gpus: int = 4, nvlink_gb_s: int = 75, network_gb_s: int = 50) -> Picture:
    """Draw two nodes: every GPU linked with every other of its node, and each with the network."""
    parts, size, span = [], 230, 150
    places = ((40, 40), (40 + span, 40), (40, 40 + span), (40 + span, 40 + span))[:gpus]
    for node in range(2):
        x0 = 20 + node * (size + 190)
        parts.append(box(x0, 14, size, size + 10, "none", stroke=FRAME, radius=8))
        parts.append(text(x0 + 10, 32, f"node {node + 1}", bold=True))
        at = [(x0 + x, 24 + y) for x, y in places]
        for i, (xa, ya) in enumerate(at):
            for xb, yb in at[i + 1 :]:
                parts.append(line([(xa, ya), (xb, yb)], style.GREEN, 3))
        for i, (x, y) in enumerate(at):
            parts.append(box(x - 26, y - 15, 52, 30, style.BLUE, radius=4))
            parts.append(text(x, y + 4, f"GPU {node * gpus + i}", anchor="middle", size=11, fill="#fff"))
    left, right = 20 + size, 20 + size + 190
    for n in range(gpus):
        y = 64 + n * 48
        parts.append(path(f"M{left} {y}H{right}", style.KV_CACHE, 3, dash="7 4"))
    parts.append(text((left + right) / 2, 50, f"InfiniBand, {network_gb_s} GB/s a GPU", anchor="middle", size=11))
    # Without the sum: notebook 02 asks for it.
    parts.append(text(20, size + 44, f"NVLink (green): {nvlink_gb_s} GB/s between any two GPUs, each way"))
    said = (
        f"Two nodes of {gpus} GPUs. Inside a node every two GPUs share a link of {nvlink_gb_s} GB/s each way.",
        f"Between nodes each GPU has {network_gb_s} GB/s.",
    )
    return Picture("".join(parts), 2 * size + 230, size + 56, " ".join(said))


def megatron() -> Picture:
    """Draw the MLP on two GPUs: W1 cut by columns, W2 by rows, partial sums, one all-reduce."""
    parts = [
        text(4, 16, "every GPU: the whole x", size=11, fill=style.MUTED),
        text(150, 16, "W₁ by columns", bold=True),
        text(292, 16, "h = f(x W₁)", size=11, fill=style.MUTED),
        text(400, 16, "W₂ by rows", bold=True),
        text(520, 16, "a partial sum", size=11, fill=style.MUTED),
        text(640, 16, "all-reduce", bold=True),
    ]
    for gpu, colour in enumerate((style.BLUE, style.ORANGE)):
        y = 34 + gpu * 120
        parts.append(text(4, y + 92, f"GPU {gpu}", bold=True))
        parts += [box(20, y + 30, 70, 14, style.FREE, stroke=FRAME), text(55, y + 41, "x", anchor="middle")]
        parts.append(arrow(96, y + 37, 142, y + 37))
        # W1: 70 high, cut into a left and a right half
        parts += [
            box(150, y + 2, 112, 70, "none", stroke=FRAME, dash="3 3"),
            box(150 + 56 * gpu, y + 2, 56, 70, colour),
        ]
        parts.append(arrow(268, y + 37, 292, y + 37))
        parts += [
            box(298, y + 30, 76, 14, "none", stroke=FRAME, dash="3 3"),
            box(298 + 38 * gpu, y + 30, 38, 14, colour),
        ]
        parts.append(arrow(378, y + 37, 402, y + 37))
        # W2: 112 wide model dimension becomes rows: upper or lower half
        parts += [box(408, y - 6, 70, 86, "none", stroke=FRAME, dash="3 3"), box(408, y - 6 + 43 * gpu, 70, 43, colour)]
        parts.append(arrow(484, y + 37, 514, y + 37))
        parts += [box(520, y + 30, 70, 14, colour), text(555, y + 58, f"y{'₀₁'[gpu]}", anchor="middle")]
        parts.append(arrow(596, y + 37, 640, 112 if gpu == 0 else 116))
    parts += [
        dot(660, 114, 20, style.SKY),
        text(660, 121, "+", anchor="middle", size=20, fill="#000"),
        arrow(682, 114, 704, 114),
        box(708, 107, 70, 14, style.GREEN),
        text(743, 136, "y = y₀ + y₁", anchor="middle"),
        text(743, 152, "on both GPUs", anchor="middle", size=11, fill=style.MUTED),
    ]
    said = (
        "Megatron-LM's MLP on two GPUs. Each multiplies x by half of W1's columns, and applies the activation.",
        "Each multiplies by the matching half of W2's rows, and one all-reduce adds the two partial sums.",
    )
    return Picture("".join(parts), 800, 256, " ".join(said))

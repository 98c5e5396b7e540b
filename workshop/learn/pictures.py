"""The schematic pictures of notebooks 01 and 02: the KV cache, kinds of parallelism, links, Megatron-LM's products.

Each returns a Picture, SVG in the course's colours, with words for screen readers. For charts of numbers: figure.py.
"""

from collections.abc import Sequence
from functools import partial
from itertools import combinations, combinations_with_replacement

from workshop.learn.chart import FRAME, Picture, arrow, box, dot, line, path, text
from workshop.learn.widgets import style

SHADES = (style.BLUE, style.SKY, style.GREEN, style.GREY)  # GPU 0 to 3
middle, note = partial(text, anchor="middle"), partial(text, size=11, fill=style.MUTED)


def kv_caching(words: Sequence[str] = ("San", "Francisco", "is", "a", "city")) -> Picture:
    """Draw which keys and values each step computes, without and with a cache: a row a step, a column a token."""
    n, wide, high, left, top = len(words), 50, 32, 86, 46
    fresh = partial(box, fill=style.VERMILLION)
    kept = partial(box, fill="none", stroke=style.KV_CACHE, dash="3 2")
    parts = [text(left - 10, top + step * high + 20, f"step {step + 1}", anchor="end") for step in range(n)]
    counts = (n * (n + 1) // 2, n)
    for x0, title, cached in ((left, "without a cache", False), (left + n * wide + 60, "with a KV cache", True)):
        parts += [text(x0, 16, title, bold=True, size=13)]
        parts += [middle(x0 + (t + 0.5) * wide, 38, w, size=10, fill=style.MUTED) for t, w in enumerate(words)]
        for token, step in combinations_with_replacement(range(n), 2):
            cell = kept if cached and token < step else fresh
            parts.append(cell(x0 + token * wide + 2, top + step * high + 2, wide - 4, high - 4))
        parts.append(text(x0, top + n * high + 18, f"{counts[cached]} pairs of K and V computed"))
    y = top + n * high + 34
    parts += [fresh(left, y, 12, 12), text(left + 18, y + 10, "K and V computed in this step")]
    parts += [kept(left + 220, y, 12, 12), text(left + 238, y + 10, "read from the cache")]
    said = f"Generating {n} tokens computes {counts[0]} pairs of keys and values without a cache, {counts[1]} with one."
    said += " Each row is a step, and only its newest token is new."
    return Picture("".join(parts), left + 2 * n * wide + 70, y + 20, said)


def kinds(layers: int = 4) -> Picture:
    """Draw how a model of a few layers lies on GPUs: alone, tensor, pipeline, both, and copies of it (data)."""
    wide, high, top = 104, 21, 46
    cuts = {  # name → what it costs, TP, PP, copies
        "one GPU": ("no talk", 1, 1, 1),
        "tensor parallel 2": ("every layer talks", 2, 1, 1),
        "pipeline parallel 2": ("one hand-over", 1, 2, 1),
        "TP 2 × PP 2": ("both", 2, 2, 1),
        "data parallel 2": ("two whole copies", 1, 1, 2),
    }
    parts = []
    for n, (name, (under, tp, pp, copies)) in enumerate(cuts.items()):
        x0 = 10 + n * (wide + 34)
        parts += [middle(x0 + wide / 2, 16, name, bold=True), note(x0 + wide / 2, 32, under, anchor="middle")]
        each = (wide + 8) / copies - 8
        for copy, layer, t in ((c, y, t) for c in range(copies) for y in range(layers) for t in range(tp)):
            x, gpu = x0 + copy * (each + 8) + t * each / tp, layer * pp // layers * tp + t + copy
            parts.append(box(x, top + layer * high, each / tp - 2, high - 3, SHADES[gpu]))
    y = top + layers * high + 18
    for gpu, colour in enumerate(SHADES):
        parts += [box(10 + gpu * 76, y - 10, 12, 12, colour), text(28 + gpu * 76, y, f"GPU {gpu}")]
    parts.append(text(330, y, "boxes one below the other: layers", fill=style.MUTED))
    said = "Five ways to lay a model on GPUs: on one, or cut across every layer (tensor parallel)."
    said += " Or cut between layers (pipeline parallel), both, or copied whole (data parallel)."
    return Picture("".join(parts), 10 + len(cuts) * (wide + 34), y + 10, said)


def links(gpus: int = 4, nvlink_gb_s: int = 75, network_gb_s: int = 50) -> Picture:
    """Draw two nodes: every GPU linked with every other of its node, and each with the network."""
    parts, size = [], 230
    lefts = (20, 20 + size + 190)
    for node, x0 in enumerate(lefts):
        parts.append(box(x0, 14, size, size + 10, "none", stroke=FRAME, radius=8))
        parts.append(text(x0 + 10, 32, f"node {node + 1}", bold=True))
        at = [(x0 + x, y) for y in (64, 214) for x in (40, 190)][:gpus]
        parts += [line(two, style.GREEN, 3) for two in combinations(at, 2)]
        for i, (x, y) in enumerate(at):
            parts.append(box(x - 26, y - 15, 52, 30, style.BLUE, radius=4))
            parts.append(middle(x, y + 4, f"GPU {node * gpus + i}", size=11, fill="#fff"))
    left, right = lefts[0] + size, lefts[1]
    parts += [path(f"M{left} {64 + n * 48}H{right}", style.KV_CACHE, 3, dash="7 4") for n in range(gpus)]
    parts.append(middle((left + right) / 2, 50, f"InfiniBand, {network_gb_s} GB/s a GPU", size=11))
    # Without the sum: notebook 02 asks for it.
    parts.append(text(20, size + 44, f"NVLink (green): {nvlink_gb_s} GB/s between any two GPUs, each way"))
    said = f"Two nodes of {gpus} GPUs. Inside a node every two GPUs share a link of {nvlink_gb_s} GB/s each way."
    said += f" Between nodes each GPU has {network_gb_s} GB/s."
    return Picture("".join(parts), 2 * size + 230, size + 56, said)


def megatron() -> Picture:
    """Draw the MLP on two GPUs: W1 cut by columns, W2 by rows, partial sums, one all-reduce."""
    parts = [text(x, 16, words, bold=True) for x, words in ((150, "W₁ by columns"), (400, "W₂ by rows"))]
    heads = ((4, "every GPU: the whole x"), (292, "h = f(x W₁)"), (520, "a partial sum"))
    parts += [text(640, 16, "all-reduce", bold=True), *(note(x, 16, words) for x, words in heads)]
    whole = partial(box, fill="none", stroke=FRAME, dash="3 3")
    for gpu, colour in enumerate((style.BLUE, style.ORANGE)):
        y = 34 + gpu * 120
        parts += [text(4, y + 92, f"GPU {gpu}", bold=True), middle(555, y + 58, f"y{'₀₁'[gpu]}")]
        parts += [box(20, y + 30, 70, 14, style.FREE, stroke=FRAME), middle(55, y + 41, "x")]
        # W1 is cut into a left and a right half; W2's wide side becomes rows: an upper and a lower half.
        parts += [whole(150, y + 2, 112, 70), box(150 + 56 * gpu, y + 2, 56, 70, colour)]
        parts += [whole(298, y + 30, 76, 14), box(298 + 38 * gpu, y + 30, 38, 14, colour)]
        parts += [whole(408, y - 6, 70, 86), box(408, y - 6 + 43 * gpu, 70, 43, colour)]
        parts += [arrow(a, y + 37, b, y + 37) for a, b in ((96, 142), (268, 292), (378, 402), (484, 514))]
        parts += [box(520, y + 30, 70, 14, colour), arrow(596, y + 37, 640, 112 + 4 * gpu)]
    parts += [dot(660, 114, 20, style.SKY), middle(660, 121, "+", size=20, fill="#000"), arrow(682, 114, 704, 114)]
    parts += [box(708, 107, 70, 14, style.GREEN), middle(743, 136, "y = y₀ + y₁")]
    parts.append(note(743, 152, "on both GPUs", anchor="middle"))
    said = "Megatron-LM's MLP on two GPUs. Each multiplies x by half of W1's columns, and applies the activation."
    said += " Each multiplies by the matching half of W2's rows, and one all-reduce adds the two partial sums."
    return Picture("".join(parts), 800, 256, said)

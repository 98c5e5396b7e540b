"""The pictures of notebook 02: kinds of parallelism, links between GPUs, Megatron-LM's two products. SVG."""

from __future__ import annotations

from workshop.learn.plots import FRAME, Picture, svg_arrow, svg_box, svg_text
from workshop.learn.widgets import style

SHADES = (style.BLUE, style.SKY, style.GREEN, style.GREY)     # GPU 0 to 3


def kinds(layers: int = 4) -> Picture:
    """Draw how a model of a few layers lies on GPUs: alone, tensor, pipeline, both, and copies of it (data)."""
    cell_w, cell_h, gap, top = 104, 18, 34, 46
    cuts = {"one GPU": (1, 1), "tensor parallel 2": (2, 1), "pipeline parallel 2": (1, 2), "TP 2 × PP 2": (2, 2),
            "data parallel 2": (1, 1)}
    under = {"one GPU": "no talk", "tensor parallel 2": "every layer talks", "pipeline parallel 2": "one hand-over",
             "TP 2 × PP 2": "both", "data parallel 2": "two whole copies"}
    parts = []
    for n, (name, (tp, pp)) in enumerate(cuts.items()):
        x0 = 10 + n * (cell_w + gap)
        parts.append(svg_text(x0 + cell_w / 2, 16, name, anchor="middle", bold=True))
        parts.append(svg_text(x0 + cell_w / 2, 32, under[name], anchor="middle", size=11, fill=style.MUTED))
        copies = 2 if name.startswith("data") else 1
        for copy in range(copies):
            wide = (cell_w - 8 * (copies - 1)) / copies
            left = x0 + copy * (wide + 8)
            for layer in range(layers):
                stage = layer * pp // layers
                for t in range(tp):
                    gpu = stage * tp + t + copy
                    parts.append(svg_box(left + t * wide / tp, top + layer * (cell_h + 3), wide / tp - 2, cell_h,
                                      SHADES[gpu]))
    y = top + layers * (cell_h + 3) + 18
    for gpu, colour in enumerate(SHADES):
        parts += [svg_box(10 + gpu * 76, y - 10, 12, 12, colour), svg_text(28 + gpu * 76, y, f"GPU {gpu}")]
    parts.append(svg_text(330, y, "boxes one below the other: layers", fill=style.MUTED))
    return Picture("".join(parts), 10 + 5 * (cell_w + gap), y + 10,
                   "Five ways to lay a model on GPUs: on one; cut across every layer (tensor parallel); cut between "
                   "layers (pipeline parallel); both; or copied whole (data parallel).")


def links(gpus: int = 4, nvlink_gb_s: int = 75, network_gb_s: int = 50) -> Picture:
    """Draw two nodes: every GPU linked with every other of its node, and each with the network."""
    parts, size, span = [], 230, 150
    places = ((40, 40), (40 + span, 40), (40, 40 + span), (40 + span, 40 + span))[:gpus]
    for node in range(2):
        x0 = 20 + node * (size + 190)
        parts.append(svg_box(x0, 14, size, size + 10, "none", stroke=FRAME, radius=8))
        parts.append(svg_text(x0 + 10, 32, f"node {node + 1}", bold=True))
        at = [(x0 + x, 24 + y) for x, y in places]
        for i, (xa, ya) in enumerate(at):
            for xb, yb in at[i + 1:]:
                parts.append(f'<path d="M{xa} {ya}L{xb} {yb}" stroke="{style.GREEN}" stroke-width="3"/>')
        for i, (x, y) in enumerate(at):
            parts += [svg_box(x - 26, y - 15, 52, 30, style.BLUE, radius=4),
                      f'<text x="{x}" y="{y + 4}" text-anchor="middle" font-size="11" fill="#fff">GPU '
                      f"{node * gpus + i}</text>"]
    left, right = 20 + size, 20 + size + 190
    for n in range(gpus):
        y = 64 + n * 48
        parts.append(f'<path d="M{left} {y}H{right}" stroke="{style.KV_CACHE}" stroke-width="3" '
                     'stroke-dasharray="7 4"/>')
    parts.append(svg_text((left + right) / 2, 50, f"InfiniBand, {network_gb_s} GB/s a GPU", anchor="middle", size=11))
    # Without the sum: notebook 02 asks for it.
    parts.append(svg_text(20, size + 44, f"NVLink (green): {nvlink_gb_s} GB/s between any two GPUs, each way"))
    return Picture("".join(parts), 2 * size + 230, size + 56,
                   f"Two nodes of {gpus} GPUs. Inside a node every two GPUs share a link of {nvlink_gb_s} GB/s each "
                   f"way; between nodes each GPU has {network_gb_s} GB/s.")


def megatron() -> Picture:
    """Draw the MLP on two GPUs: W1 cut by columns, W2 by rows, partial sums, one all-reduce."""
    parts = [svg_text(4, 16, "every GPU: the whole x", size=11, fill=style.MUTED),
             svg_text(150, 16, "W₁ by columns", bold=True), svg_text(292, 16, "h = f(x W₁)", size=11, fill=style.MUTED),
             svg_text(400, 16, "W₂ by rows", bold=True), svg_text(520, 16, "a partial sum", size=11, fill=style.MUTED),
             svg_text(640, 16, "all-reduce", bold=True)]
    for gpu, colour in enumerate((style.BLUE, style.ORANGE)):
        y = 34 + gpu * 120
        parts.append(svg_text(4, y + 92, f"GPU {gpu}", bold=True))
        parts += [svg_box(20, y + 30, 70, 14, style.FREE, stroke=FRAME), svg_text(55, y + 41, "x", anchor="middle")]
        parts.append(svg_arrow(96, y + 37, 142, y + 37))
        # W1: 70 high, cut into a left and a right half
        parts += [svg_box(150, y + 2, 112, 70, "none", stroke=FRAME, dash="3 3"),
                  svg_box(150 + 56 * gpu, y + 2, 56, 70, colour)]
        parts.append(svg_arrow(268, y + 37, 292, y + 37))
        parts += [svg_box(298, y + 30, 76, 14, "none", stroke=FRAME, dash="3 3"),
                  svg_box(298 + 38 * gpu, y + 30, 38, 14, colour)]
        parts.append(svg_arrow(378, y + 37, 402, y + 37))
        # W2: 112 wide model dimension becomes rows: upper or lower half
        parts += [svg_box(408, y - 6, 70, 86, "none", stroke=FRAME, dash="3 3"),
                  svg_box(408, y - 6 + 43 * gpu, 70, 43, colour)]
        parts.append(svg_arrow(484, y + 37, 514, y + 37))
        parts += [svg_box(520, y + 30, 70, 14, colour), svg_text(555, y + 58, f"y{'₀₁'[gpu]}", anchor="middle")]
        parts.append(svg_arrow(596, y + 37, 640, 112 if gpu == 0 else 116))
    parts += [f'<circle cx="660" cy="114" r="20" fill="{style.SKY}"/>',
              '<text x="660" y="121" text-anchor="middle" font-size="20" fill="#000">+</text>',
              svg_arrow(682, 114, 704, 114), svg_box(708, 107, 70, 14, style.GREEN),
              svg_text(743, 136, "y = y₀ + y₁", anchor="middle"),
              svg_text(743, 152, "on both GPUs", anchor="middle", size=11, fill=style.MUTED)]
    return Picture("".join(parts), 800, 256,
                   "Megatron-LM's MLP on two GPUs: each multiplies x by half of W1's columns, applies the activation, "
                   "multiplies by the matching half of W2's rows, and one all-reduce adds the two partial sums.")

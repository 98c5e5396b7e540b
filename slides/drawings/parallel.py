"""Part 1, continued: links between GPUs, and the ways to lay a model over them."""

from __future__ import annotations

from inference_planner.catalog import load_model
from inference_planner.split.ranks import partition_layers

from drawings.canvas import (
    BLUE,
    FREE,
    GPUS,
    GREEN,
    GREY,
    HAIR,
    INK,
    KV_CACHE,
    KV_CACHE_PALE,
    NORMAL,
    ORANGE,
    PALE,
    SMALL,
    SOFT,
    VERMILLION,
    WIDTH,
    Canvas,
)

STAGES, REQUESTS = 4, 8
NETWORKS = ("infiniband-ndr", "ethernet-100g", "ethernet-25g")


def _model(
    c: Canvas, x: float, y: float, w: float, colours: list[list[str]], cell: float = 30
) -> None:
    """Draw layers from top to bottom, each cut into parts, in the GPUs' colours."""
    for layer, parts in enumerate(colours):
        for n, colour in enumerate(parts):
            c.box(
                x + n * w / len(parts),
                y + layer * (cell + 5),
                w / len(parts) - 4,
                cell,
                colour,
                radius=4,
            )


def kinds() -> Canvas:
    """Tensor, pipeline, both, and data parallelism, on a model of four layers."""
    g = GPUS
    cases = (
        ("tensor", "every layer cut:\nall GPUs, each token", [[g[0], g[1]]] * 4),
        ("pipeline", "layers dealt out:\nstage after stage", [[g[0]], [g[0]], [g[1]], [g[1]]]),
        ("tensor × pipeline", "both: for\nseveral nodes", [[g[0], g[1]]] * 2 + [[g[2], g[3]]] * 2),
        ("data", "whole copies:\nmore requests", []),
    )
    c = Canvas(
        350,
        "Four ways to lay a model of four layers on GPUs: tensor parallel cuts every layer; pipeline "
        "parallel deals "
        "the layers out; both together use four GPUs; data parallel makes whole copies.",
    )
    width, gap, between_copies = 199, 40, 21
    for n, (name, under, colours) in enumerate(cases):
        x = n * (width + gap)
        c.text(x, 28, name, 25, bold=True)
        if colours:
            _model(c, x, 52, width, colours, 36)
        else:
            _model(c, x, 52, width, [[g[0]]] * 4, 36)
            _model(c, x + width + between_copies, 52, width, [[g[1]]] * 4, 36)
        for k, line in enumerate(under.split("\n")):
            c.text(x, 250 + 28 * k, line, 21, fill=SOFT)
    return c.legend(0, 338, [(colour, f"GPU {n}") for n, colour in enumerate(g)])


def experts_context() -> Canvas:
    """Expert parallelism deals out a layer's experts; context parallelism deals out a sequence's tokens."""
    m = load_model("qwen3-30b-a3b")
    c = Canvas(
        400,
        f"Left: a router sends a token to some of the experts of a layer, which lie on different GPUs; "
        f"{m.name} takes "
        f"{m.moe.experts_per_token} of {m.moe.num_experts}. Right: one long sequence's KV cache is cut "
        f"along the tokens.",
    )
    c.text(0, 28, "expert", 25, bold=True)
    c.label(176, 50, 150, 50, "token", PALE, stroke=HAIR)
    c.label(176, 134, 150, 50, "router", INK)
    c.arrow(251, 102, 251, 130)
    for e in range(8):
        x, chosen = e * 64, e in (1, 6)
        colour = GPUS[e // 2]
        c.label(
            x, 250, 56, 66, f"E{e}", colour if chosen else FREE, size=20, bold=chosen, stroke=colour
        )
        c.line(
            [(251, 188), (x + 28, 244)],
            INK if chosen else HAIR,
            3.5 if chosen else 1.5,
            head=chosen,
        )
    c.text(0, 356, "a token visits a few experts, wherever they are", 20, fill=SOFT)
    c.text(
        0,
        388,
        f"Qwen3 30B-A3B: {m.moe.experts_per_token} of {m.moe.num_experts} in each layer",
        20,
        fill=SOFT,
    )
    x0 = 624
    c.text(x0, 28, "context", 25, bold=True)
    for n in range(16):
        c.box(x0 + n * 32, 120, 27, 60, GPUS[n // 4], radius=4)
    for n in range(4):
        c.text(x0 + n * 128 + 62, 216, f"GPU {n}", 20, anchor="middle")
    c.text(x0, 100, "one sequence, token after token", 20, fill=SOFT)
    c.line([(x0, 236), (x0, 250), (x0 + 508, 250), (x0 + 508, 236)], SOFT)
    c.arrow(x0 + 254, 250, x0 + 254, 270)
    c.label(x0 + 104, 272, 300, 48, "attention, combined", INK)
    c.text(x0, 356, "for contexts whose KV cache is too large", 20, fill=SOFT)
    return c.text(x0, 388, "for one GPU, or whose prompt takes too long", 20, fill=SOFT)


def megatron() -> Canvas:
    """The MLP on two GPUs: the first matrix cut by columns, the second by rows, one all-reduce."""
    c = Canvas(
        440,
        "Two GPUs, each with the whole input x. W1 is cut by columns, so each gets half of the hidden "
        "numbers and applies "
        "the activation alone. W2 is cut by the matching rows, so each gets a partial sum. An all-reduce "
        "adds the two.",
    )
    heads = (
        (70, "x, whole"),
        (250, "W1 by columns"),
        (478, "f(x W1)"),
        (690, "W2 by rows"),
        (872, "a partial sum"),
    )
    for x, label in heads:
        c.text(x, 26, label, NORMAL, anchor="middle", bold="W" in label and "f" not in label)
    for gpu, colour in enumerate((BLUE, ORANGE)):
        y = 48 + gpu * 196
        c.box(0, y, 950, 176, PALE, radius=12).text(14, y + 164, f"GPU {gpu}", 20, bold=True)
        c.label(20, y + 70, 100, 34, "x", "#ffffff", stroke=GREY)
        c.text(148, y + 96, "·", 34, anchor="middle")
        c.box(176, y + 30, 148, 114, "#ffffff", stroke=GREY, dash="5 5").box(
            176 + 74 * gpu, y + 30, 74, 114, colour
        )
        c.arrow(336, y + 87, 384, y + 87)
        c.box(404, y + 70, 148, 34, "#ffffff", stroke=GREY, dash="5 5").box(
            404 + 74 * gpu, y + 70, 74, 34, colour
        )
        c.text(582, y + 96, "·", 34, anchor="middle")
        c.box(640, y + 30, 100, 114, "#ffffff", stroke=GREY, dash="5 5").box(
            640, y + 30 + 57 * gpu, 100, 57, colour
        )
        c.arrow(752, y + 87, 800, y + 87)
        c.box(822, y + 70, 100, 34, colour)
        c.line(
            [(928, y + 87), (1000, y + 87), (1000, 214 if gpu == 0 else 268)], colour, 3, head=True
        )
    return (
        c.label(966, 218, 170, 46, "all-reduce: +", INK, bold=True, size=20)
        .text(1051, 300, "y, whole,", SMALL, fill=SOFT, anchor="middle")
        .text(1051, 324, "on both", SMALL, fill=SOFT, anchor="middle")
    )


def heads_split() -> Canvas:
    """Attention over four GPUs, for 70B: heads and KV heads dealt out."""
    m, tp = load_model("llama-3.1-70b"), 4
    heads, kv = m.num_attention_heads // tp, m.num_key_value_heads // tp
    c = Canvas(
        270,
        f"Llama 3.1 70B over {tp} GPUs: each computes {heads} of {m.num_attention_heads} heads and keeps "
        f"{kv} of "
        f"{m.num_key_value_heads} KV heads.",
    )
    width = WIDTH / tp
    for gpu in range(tp):
        x = gpu * width
        c.box(x, 0, width - 14, 214, PALE, radius=12).text(x + 16, 34, f"GPU {gpu}", 22, bold=True)
        for h in range(heads):
            c.box(
                x + 16 + h * (width - 46) / heads,
                52,
                (width - 46) / heads - 3,
                58,
                GPUS[gpu],
                radius=3,
            )
        for k in range(kv):
            c.label(
                x + 16 + k * (width - 46) / kv,
                130,
                (width - 46) / kv - 6,
                58,
                "K V",
                KV_CACHE_PALE,
                stroke=KV_CACHE,
                ink=INK,
                bold=True,
            )
    return c.text(
        0,
        254,
        f"{heads} heads computed, {kv} KV heads kept: a quarter of the cache on each GPU",
        23,
    )


def _pipe(c: Canvas, y: float, jobs: int, unit: float, name: str) -> int:
    """Draw a pipeline's timetable; return how many of the slots are idle."""
    slots = jobs + STAGES - 1
    c.text(0, y - 14, name, 23, bold=True)
    for stage in range(STAGES):
        top = y + stage * 38
        c.text(0, top + 23, f"stage {stage}", 20, fill=SOFT)
        for slot in range(slots):
            job = slot - stage
            busy = 0 <= job < jobs
            x = 96 + slot * unit
            if busy:
                shade = GPUS[stage]
                c.label(x, top, unit - 4, 33, str(job + 1), shade, size=20, bold=True, radius=4)
            else:
                c.box(x, top, unit - 4, 33, FREE, radius=4)
    return STAGES * slots - STAGES * jobs


def bubble() -> Canvas:
    """A pipeline of four stages: one request, then eight, and what stands idle."""
    unit = 94
    single = STAGES * (STAGES - 1) / (STAGES * STAGES)
    many = (STAGES - 1) / (REQUESTS + STAGES - 1)
    c = Canvas(
        420,
        f"A pipeline of {STAGES} stages. With one request three of four stages wait: {single:.0%} idle. With "
        f"{REQUESTS} "
        f"requests only the beginning and the end are idle: {many:.0%}.",
    )
    _pipe(c, 36, 1, unit, "one request")
    c.text(96 + 4 * unit + 30, 30 + 76, f"{single:.0%} idle", 40, bold=True, fill=VERMILLION)
    _pipe(c, 252, REQUESTS, unit, f"{REQUESTS} requests")
    c.text(96 + 4 * unit + 30, 30 + 112, "grey: a GPU waits", 21, fill=SOFT)
    return c.text(96 + 7 * unit + 60, 232, f"{many:.0%} idle", 34, bold=True)


def nodes() -> Canvas:
    """405B on two nodes of eight GPUs: TP 8 × PP 2."""
    m = load_model("llama-3.1-405b")
    stages = partition_layers(m.num_hidden_layers, 2)
    c = Canvas(
        400,
        f"Llama 3.1 405B, TP 8 × PP 2: node 1 holds layers {stages[0].start} to {stages[0].stop - 1}, "
        f"node 2 the rest; "
        "in a node every layer is cut over eight GPUs. Node 1 hands its result to node 2.",
    )
    for node, stage in enumerate(stages):
        y = 8 + node * 206
        c.box(0, y, WIDTH, 166, PALE, radius=14).text(20, y + 36, f"node {node + 1}", 23, bold=True)
        c.text(20, y + 66, "one pipeline stage", 20, fill=SOFT)
        c.text(20, y + 110, "layers", 20, fill=SOFT).text(
            20, y + 142, f"{stage.start} to {stage.stop - 1}", 26, bold=True
        )
        for gpu in range(8):
            x = 236 + gpu * 110
            c.box(x, y + 22, 98, 122, BLUE if node == 0 else GREEN, radius=8)
            c.text(
                x + 49,
                y + 90,
                f"GPU {node * 8 + gpu}",
                20,
                fill="#ffffff",
                anchor="middle",
                bold=True,
            )
        c.line([(240, y + 154), (1110, y + 154)], GREEN if node == 0 else BLUE, 4)
    c.arrow(330, 176, 330, 210, ORANGE, 5)
    return c.text(
        352,
        201,
        "one hand-over a token, over the network; all-reduces stay in the node, on NVLink",
        20,
    )


FIGURES = {
    "kinds": kinds,
    "experts_context": experts_context,
    "megatron": megatron,
    "heads_split": heads_split,
    "bubble": bubble,
    "nodes": nodes,
}

"""Part 1: links between GPUs and nodes, what they cost, and how engines start on several nodes."""

from __future__ import annotations

from inference_planner.catalog import load_gpu, load_model
from inference_planner.split.communication import LINKS, compare_splits

from drawings.canvas import (
    BLUE,
    GREEN,
    HAIR,
    INK,
    ORANGE,
    PALE,
    SMALL,
    SOFT,
    VERMILLION,
    Canvas,
)
from drawings.charts import Chart, chart
from workshop.course.drawing.figure import draw
from workshop.engine.planning import plan

STAGES, REQUESTS = 4, 8
NETWORKS = ("infiniband-ndr", "ethernet-100g", "ethernet-25g")


def links() -> Canvas:
    """Two nodes of four GPUs: every two of a node linked, every GPU on the network."""
    pair = LINKS["nvlink"].gb_s / 3  # without a switch: a third of its links to each neighbour
    net = LINKS["infiniband-ndr"].gb_s
    c = Canvas(
        430,
        f"Two nodes of four GPUs. Within a node every two GPUs share a link of {pair:g} GB/s each way; "
        f"between nodes "
        f"each GPU has {net:g} GB/s.",
    )
    for node in range(2):
        x0 = node * 716
        c.box(x0 + 2, 8, 416, 396, "none", stroke=HAIR, radius=16, line=3).text(
            x0 + 22, 42, f"node {node + 1}", 22, bold=True
        )
        at = [(x0 + 110 + 200 * i, 120 + 206 * j) for j in range(2) for i in range(2)]
        for i, (xa, ya) in enumerate(at):
            for xb, yb in at[i + 1 :]:
                c.line([(xa, ya), (xb, yb)], GREEN, 7)
        for i, (x, y) in enumerate(at):
            c.label(x - 52, y - 34, 104, 68, f"GPU {node * 4 + i}", BLUE, bold=True)
    for n in range(4):
        c.line([(420, 128 + n * 64), (716, 128 + n * 64)], ORANGE, 5, dash="12 8")
    c.text(568, 56, "InfiniBand NDR", 22, anchor="middle", bold=True)
    c.text(568, 90, f"{net:g} GB/s a GPU", 22, anchor="middle", fill=SOFT)
    c.text(568, 372, "NVLink", 22, anchor="middle", bold=True)
    return c.text(568, 402, f"{pair:g} GB/s a pair, each way", 22, anchor="middle", fill=SOFT)


def link_bars() -> Chart:
    """What one GPU can send, by link, to scale."""
    links = [
        LINKS[name]
        for name in ("nvlink", "pcie", "infiniband-ndr", "ethernet-100g", "ethernet-25g")
    ]
    rates = ", ".join(f"{link.name} {link.gb_s:g}" for link in links)
    with chart(330, f"What one GPU can send, in GB/s: {rates}.") as c:
        draw(c.axes, {link.name: link.gb_s for link in links}, "barh")
        for bar, label, link in zip(c.axes.patches, c.axes.texts, links, strict=True):
            bar.set_facecolor(GREEN if link is LINKS["nvlink"] else ORANGE)
            label.set_text(f"{link.gb_s:g}")
        c.axes.set_xlabel("GB/s")
    return c


PROMPT_TOKENS = 8192
SPLITS = {"TP 8 × PP 2": (8, 2), "TP 16": (16, 1)}


def stream_tokens_per_s(network: str) -> dict[str, float]:
    """Return tokens/s of one stream of 405B on 2 × 8 H100, for both splits, as the plan predicts it."""
    plans = {
        split: plan(
            "llama-3.1-405b",
            "h100",
            gpus_per_node=8,
            nodes=2,
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            max_model_len=PROMPT_TOKENS,
            network=network,
        )
        for split, (tp, pp) in SPLITS.items()
    }
    return {split: p.single_stream_tokens_per_s for split, p in plans.items()}


def prompt_s(network: str) -> dict[str, float]:
    """Return the seconds that communication takes for one long prompt, for both splits."""
    m, h100 = load_model("llama-3.1-405b"), load_gpu("h100")
    return {
        split: sum(t.ms for t in sent) / 1e3
        for split, sent in compare_splits(m, h100, 8, 2, PROMPT_TOKENS, network=network).items()
    }


def networks() -> Chart:
    """One stream's speed, and a prompt's communication, of 405B on 2 × 8 H100: both splits, three networks."""
    panels = (
        ("one stream", "tokens/s, predicted: more is better", stream_tokens_per_s, " tokens/s"),
        (
            f"a prompt of {PROMPT_TOKENS:,} tokens",
            "seconds of communication: less is better",
            prompt_s,
            " s",
        ),
    )
    names = dict(zip(SPLITS, ("TP 8 × PP 2", "TP 16, over both nodes"), strict=True))
    descriptions = []
    with chart(410, panels=2) as c:
        for axes, (title, under, of, unit) in zip(c.panels, panels, strict=True):
            rows = {LINKS[network].name: of(network) for network in NETWORKS}
            table = {
                names[split]: {network: row[split] for network, row in rows.items()}
                for split in SPLITS
            }
            draw(
                axes,
                table,
                "barh",
                dict(zip(table, (GREEN, VERMILLION), strict=True)),
                legend=axes is c.axes,
            )
            axes.set(xlabel=under)
            axes.set_title(title)
            if axes is not c.axes:
                axes.set_yticks([])
            descriptions += [f"{title}, {network}, {split}: {value:.3g}{unit}" for network, row in rows.items()
                     for split, value in row.items()]  # fmt: skip
        c.words = f"405B on two nodes of eight H100. {'; '.join(descriptions)}."
    return c


def launch_ways() -> Canvas:
    """Ray's start beside vLLM's own: what must run before the engine can."""
    c = Canvas(
        360,
        "With Ray: a Ray head starts, workers join it, and vLLM asks Ray to place its processes. With "
        "vLLM's own start: the "
        "same command runs on every node, and the nodes meet at the master address.",
    )
    for side, (title, rows) in enumerate(
        (
            (
                "with Ray",
                (("ray start --head", "vllm serve"), ("ray start", "worker, placed by Ray")),
            ),
            (
                "vLLM's own",
                (
                    ("vllm serve --node-rank 0", "API and workers"),
                    ("… --node-rank 1 --headless", "workers"),
                ),
            ),
        )
    ):
        x0 = side * 590
        c.text(x0, 28, title, 25, bold=True)
        for n, (above, below) in enumerate(rows):
            y = 50 + n * 164
            c.box(x0, y, 546, 136, PALE, radius=12).text(
                x0 + 18, y + 34, f"node {n + 1}", 20, bold=True
            )
            if side == 0:
                c.label(x0 + 18, y + 52, 240, 62, above, ORANGE, size=20, mono=True, ink=INK)
                c.label(x0 + 286, y + 52, 244, 62, below, BLUE, size=20)
                c.line([(x0 + 260, y + 83), (x0 + 284, y + 83)], SOFT, 3)
            else:
                c.label(x0 + 18, y + 52, 340, 62, above, BLUE, size=20, mono=True)
                c.text(x0 + 374, y + 90, below, 20)
        if side == 0:
            c.arrow(x0 + 138, 212, x0 + 138, 168, ORANGE, 4)
            c.text(x0 + 156, 202, "joins, when the head is up", SMALL, fill=SOFT)
        else:
            c.line([(x0 + 188, 166), (x0 + 188, 262)], BLUE, 4)
            c.text(x0 + 206, 202, "both meet at --master-addr", SMALL, fill=SOFT)
    return c


FIGURES = {
    "links": links,
    "link_bars": link_bars,
    "networks": networks,
    "launch_ways": launch_ways,
}

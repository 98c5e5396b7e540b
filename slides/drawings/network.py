"""Part 1: links between GPUs and nodes, what they cost, and how engines start on several nodes."""

from __future__ import annotations

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
from workshop.plan.catalog import load_gpu, load_model
from workshop.plan.communication import LINKS, compare_splits
from workshop.plan.parallelism import plan

STAGES, REQUESTS = 4, 8
NETWORKS = ("infiniband-ndr", "ethernet-100g", "ethernet-25g")


def links() -> Canvas:
    """Two nodes of four GPUs: every two of a node linked, every GPU on the network."""
    pair = LINKS["nvlink"].gb_s / 6
    net = LINKS["infiniband-ndr"].gb_s
    c = Canvas(430, f"Two nodes of four GPUs. Within a node every two GPUs share a link of {pair:g} GB/s each way; "
                    f"between nodes "
                    f"each GPU has {net:g} GB/s.")
    for node in range(2):
        x0 = node * 716
        c.box(x0 + 2, 8, 416, 396, "none", stroke=HAIR, radius=16, line=3).text(x0 + 22, 42, f"node {node + 1}", 22,
                                                                                bold=True)
        at = [(x0 + 110 + 200 * i, 120 + 206 * j) for j in range(2) for i in range(2)]
        for i, (xa, ya) in enumerate(at):
            for xb, yb in at[i + 1:]:
                c.line([(xa, ya), (xb, yb)], GREEN, 7)
        for i, (x, y) in enumerate(at):
            c.label(x - 52, y - 34, 104, 68, f"GPU {node * 4 + i}", BLUE, bold=True)
    for n in range(4):
        c.line([(420, 128 + n * 64), (716, 128 + n * 64)], ORANGE, 5, dash="12 8")
    c.text(568, 56, "InfiniBand NDR", 22, anchor="middle", bold=True)
    c.text(568, 90, f"{net:g} GB/s a GPU", 22, anchor="middle", fill=SOFT)
    c.text(568, 372, "NVLink", 22, anchor="middle", bold=True)
    return c.text(568, 402, f"{pair:g} GB/s a pair, each way", 22, anchor="middle", fill=SOFT)


def link_bars() -> Canvas:
    """What one GPU can send, by link, to scale."""
    names = ("nvlink", "pcie", "infiniband-ndr", "ethernet-100g", "ethernet-25g")
    rates = ", ".join(f"{LINKS[n].name} {LINKS[n].gb_s:g}" for n in names)
    c = Canvas(330, f"What one GPU can send, in GB/s: {rates}.")
    for row, name in enumerate(names):
        link, y = LINKS[name], row * 66
        width = max(4, link.gb_s / 450 * 660)
        c.text(0, y + 36, link.name, 22).box(310, y + 8, width, 44, GREEN if name == "nvlink" else ORANGE, radius=4)
        c.text(320 + width, y + 38, f"{link.gb_s:g} GB/s", 23, bold=True)
    return c


PROMPT_TOKENS = 8192
SPLITS = {"TP 8 × PP 2": (8, 2), "TP 16": (16, 1)}


def stream_tokens_per_s(network: str) -> dict[str, float]:
    """Return tokens/s of one stream of 405B on 2 × 8 H100, for both splits, as the plan predicts it."""
    plans = {split: plan("llama-3.1-405b", "h100", gpus_per_node=8, nodes=2, tensor_parallel_size=tp,
                         pipeline_parallel_size=pp, max_model_len=PROMPT_TOKENS, network=network)
             for split, (tp, pp) in SPLITS.items()}
    return {split: p.single_stream_tokens_per_s for split, p in plans.items()}


def prompt_s(network: str) -> dict[str, float]:
    """Return the seconds that communication takes for one long prompt, for both splits."""
    m, h100 = load_model("llama-3.1-405b"), load_gpu("h100")
    return {split: sum(t.ms for t in sent) / 1e3
            for split, sent in compare_splits(m, h100, 8, 2, PROMPT_TOKENS, network).items()}


def networks() -> Canvas:
    """One stream's speed, and a prompt's communication, of 405B on 2 × 8 H100: both splits, three networks."""
    c, words = Canvas(410), []
    for side, (title, under, of, unit) in enumerate((
            ("one stream", "tokens/s, predicted: more is better", stream_tokens_per_s, "{:.0f}"),
            (f"a prompt of {PROMPT_TOKENS:,} tokens", "communication: less is better", prompt_s, "{:.1f} s"))):
        x0, found = side * 590, {network: of(network) for network in NETWORKS}
        most = max(v for row in found.values() for v in row.values())
        c.text(x0, 24, title, 25, bold=True).text(x0, 54, under, 20, fill=SOFT)
        for row, (network, splits) in enumerate(found.items()):
            y = 66 + row * 106
            c.text(x0, y + 24, LINKS[network].name, 20)
            for n, (split, value) in enumerate(splits.items()):
                width = max(3, value / most * 380)
                c.box(x0, y + 34 + n * 31, width, 26, (GREEN, VERMILLION)[n], radius=3)
                c.text(x0 + width + 10, y + 54 + n * 31, unit.format(value), 20, bold=True)
                words.append(f"{title}, {LINKS[network].name}, {split}: {unit.format(value)}")
    c.legend(0, 406, [(GREEN, "TP 8 × PP 2"), (VERMILLION, "TP 16, over both nodes")])
    c.words = "405B on two nodes of eight H100. " + "; ".join(words) + "."
    return c


def launch_ways() -> Canvas:
    """Ray's start beside vLLM's own: what must run before the engine can."""
    c = Canvas(360, "With Ray: a Ray head starts, workers join it, and vLLM asks Ray to place its processes. With "
                    "vLLM's own start: the "
                    "same command runs on every node, and the nodes meet at the master address.")
    for side, (title, rows) in enumerate((
            ("with Ray", (("ray start --head", "vllm serve"), ("ray start", "worker, placed by Ray"))),
            ("vLLM's own", (("vllm serve --node-rank 0", "API and workers"), ("… --node-rank 1 --headless",
                                                                              "workers"))))):
        x0 = side * 590
        c.text(x0, 28, title, 25, bold=True)
        for n, (above, below) in enumerate(rows):
            y = 50 + n * 164
            c.box(x0, y, 546, 136, PALE, radius=12).text(x0 + 18, y + 34, f"node {n + 1}", 20, bold=True)
            if side == 0:
                c.label(x0 + 18, y + 52, 240, 62, above, ORANGE, size=19, mono=True, ink=INK)
                c.label(x0 + 286, y + 52, 244, 62, below, BLUE, size=20)
                c.line([(x0 + 260, y + 83), (x0 + 284, y + 83)], SOFT, 3)
            else:
                c.label(x0 + 18, y + 52, 340, 62, above, BLUE, size=18, mono=True)
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

"""vLLM and speed: paged blocks, batching, FlashAttention, what latency is made of, limits and measurements."""

from __future__ import annotations

from inference_planner.catalog import load_gpu
from inference_planner.model.kv_cache import BLOCK_SIZE

from drawings.canvas import (
    BLUE,
    FREE,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    SMALL,
    SOFT,
    VERMILLION,
    WIDTH,
    Canvas,
)
from drawings.charts import Chart, chart
from workshop.course.drawing.figure import draw
from workshop.engine import measured_runs as recorded

SPEEDS = {
    "8b": ("Llama 3.1 8B", "1 × H200"),
    "70b-tp4": ("Llama 3.1 70B", "4 × H200"),
    "405b-fp8-tp4": ("Llama 3.1 405B FP8", "4 × H200"),
}
LIMITS = {"h100_llama-3.1-8b_0.32": ("Llama 3.1 8B", "1 × H100"), **SPEEDS}
BATCHES = (1, 16, 64, 256)


def run(name: str) -> dict:
    """Return the recorded run of that name."""
    return recorded.measured(name)


def limit_tokens_per_s(name: str) -> float:
    """Tokens/s of one stream if reading all weights once a token at full bandwidth were all that takes time."""
    return recorded.limit_tokens_per_s(run(name))


def rates(name: str) -> list[float]:
    """Tokens/s with 1, 16, 64 and 256 requests at once."""
    r = run(name)
    return [r["single_tok_s"], *(r[f"batch{n}_tok_s"] for n in BATCHES[1:])]


def paged() -> Canvas:
    """Two requests' tables of blocks, and the pool where the blocks lie anywhere; a shared prefix lies there once."""
    c = Canvas(
        420,
        f"Two requests. Each has a table of blocks of {BLOCK_SIZE} tokens; the table says where in the "
        f"pool a block lies. "
        "The first two blocks hold the same prompt and are shared. Free blocks can lie anywhere.",
    )
    tables = (
        ("request A", (("prompt", 5), ("prompt", 2), ("answer", 9), ("answer", 12)), BLUE),
        ("request B", (("prompt", 5), ("prompt", 2), ("answer", 7)), GREEN),
    )
    pool_x, cell, gap = 640, 112, 12

    def place(n: int) -> tuple[float, float]:
        return pool_x + n % 4 * (cell + gap), 52 + n // 4 * 92

    c.text(0, 24, "what each request sees", 23, bold=True).text(
        pool_x, 24, "the pool in GPU memory", 23, bold=True
    )
    owner = {5: KV_CACHE, 2: KV_CACHE, 9: BLUE, 12: BLUE, 7: GREEN}
    for n in range(16):
        x, y = place(n)
        fill = owner.get(n, FREE)
        c.label(x, y, cell, 78, str(n), fill, size=24, bold=n in owner)
    for row, (name, blocks, colour) in enumerate(tables):
        x, y = 0, 52 + row * 190
        c.text(x, y + 18, name, 21, bold=True)
        for n, (label, at) in enumerate(blocks):
            fill = KV_CACHE if label == "prompt" else colour
            c.label(x + n * 130, y + 32, 122, 56, label, fill, size=20)
            c.label(
                x + n * 130,
                y + 92,
                122,
                42,
                f"→ block {at}",
                "#ffffff",
                size=20,
                stroke=fill,
                ink=INK,
            )
    return c.text(
        0,
        412,
        f"a block: {BLOCK_SIZE} tokens; at most {BLOCK_SIZE - 1} places a request are wasted",
        21,
        fill=SOFT,
    )


LENGTHS = (9, 3, 6, 4, 5, 3, 4, 2)


def _slots(continuous: bool) -> tuple[list[list[tuple[int, int, int]]], int]:
    """Return, for each of four slots, (request, start, end), and when all is done."""
    slots: list[list[tuple[int, int, int]]] = [[] for _ in range(4)]
    free = [0, 0, 0, 0]
    for n, length in enumerate(LENGTHS):
        if not continuous and n % 4 == 0:
            free = [max(free)] * 4
        slot = min(range(4), key=lambda k: (free[k], k)) if continuous else n % 4
        slots[slot].append((n + 1, free[slot], free[slot] + length))
        free[slot] += length
    return slots, max(free)


def batching() -> Canvas:
    """Eight requests in four places: with a barrier, and continuously."""
    c = Canvas(424, "")
    ends = []
    unit = (WIDTH - 100) / 15
    for side, (name, continuous) in enumerate(
        (
            ("static batches: wait for the slowest", False),
            ("continuous batching: a free place is taken at once", True),
        )
    ):
        y = 34 + side * 216
        slots, end = _slots(continuous)
        ends.append(end)
        c.text(0, y - 8, name, 23, bold=True)
        for row, jobs in enumerate(slots):
            top = y + 8 + row * 38
            c.box(0, top, end * unit, 33, FREE, radius=4)
            for job, start, stop in jobs:
                c.label(
                    start * unit,
                    top,
                    (stop - start) * unit - 3,
                    33,
                    str(job),
                    BLUE if job <= 4 else ORANGE,
                    size=20,
                    bold=True,
                    radius=4,
                )
        c.line([(end * unit, y + 2), (end * unit, y + 164)], INK, 3)
        c.text(end * unit + 12, y + 92, f"{end} steps", 24, bold=True)
    c.words = (
        f"{len(LENGTHS)} requests of different length in four places. With a barrier they take {ends[0]} "
        f"steps, with "
        f"continuous batching {ends[1]}: a place that is free is taken at once."
    )
    return c


def flash() -> Canvas:
    """Attention computed tile by tile, so that the matrix of scores is never written to the GPU's large memory."""
    gpu = load_gpu("h100")
    c = Canvas(
        400,
        "Left: plain attention writes the whole matrix of scores to the GPU's memory and reads it again. "
        "Right: "
        "FlashAttention computes one tile after the other in the small fast memory and keeps a running "
        "sum.",
    )
    for side, title in enumerate(("plain attention", "FlashAttention")):
        x0 = side * 600
        c.text(x0, 28, title, 25, bold=True)
        c.box(x0, 50, 536, 150, PALE, radius=12)
        c.text(
            x0 + 16, 82, f"GPU memory: {gpu.marketing_gb} GB, {gpu.bandwidth_gb_s / 1e3:g} TB/s", 20
        )
        c.box(x0, 262, 536, 128, "#E4F3EE", radius=12)
        c.text(x0 + 16, 296, "on the chip: small, many times faster", 20)
        for n, name in enumerate("QKV"):
            c.label(x0 + 20 + n * 74, 104, 64, 76, name, KV_CACHE, bold=True, size=24, ink=INK)
        if side == 0:
            c.label(x0 + 280, 104, 232, 76, "scores: n × n", VERMILLION, bold=True)
            c.arrow(x0 + 326, 258, x0 + 326, 186, VERMILLION, 5).arrow(
                x0 + 466, 186, x0 + 466, 258, VERMILLION, 5
            )
            c.text(x0 + 396, 240, "out, in", 20, anchor="middle")
            c.label(x0 + 280, 312, 232, 60, "softmax", FREE)
        else:
            c.label(x0 + 376, 104, 136, 76, "output", GREEN, bold=True)
            for k in range(3):
                c.box(x0 + 20 + k * 70, 314, 60, 58, SKY if k else BLUE, stroke=BLUE)
            c.text(x0 + 240, 351, "tile by tile, + a running sum", 20)
            c.arrow(x0 + 52, 186, x0 + 52, 258, GREEN, 4).arrow(
                x0 + 444, 258, x0 + 444, 186, GREEN, 4
            )
    return c


def latency() -> Canvas:
    """One request on a time axis: ttft, itl, tpot, e2el."""
    c = Canvas(
        380,
        "A request on a time axis. ttft: from sending to the first token. itl: between two tokens. tpot: "
        "the mean of these. "
        "e2el: from sending to the last token.",
    )
    y, x0, first, step, n = 150, 30, 300, 78, 10
    c.line([(x0, y), (WIDTH - 10, y)], HAIR, 3)
    c.box(x0, y - 30, first, 60, ORANGE, radius=6)
    c.text(x0 + first / 2, y + 7, "reads the prompt", 21, anchor="middle")
    for k in range(n):
        c.box(x0 + first + k * step + 3, y - 30, step - 6, 60, BLUE, radius=6)
    last = x0 + first + n * step
    c.text(x0 + first + 1.5 * step, y + 7, "token", 20, fill="#ffffff", anchor="middle")
    c.text(x0 + first + 2.5 * step, y + 7, "token", 20, fill="#ffffff", anchor="middle")
    c.text(x0 + first + 3.5 * step, y + 7, "…", 20, fill="#ffffff", anchor="middle")

    def span(a: float, b: float, at: float, name: str, text: str, above: bool) -> None:
        tick = 12 if above else -12
        c.line([(a, at + tick), (a, at), (b, at), (b, at + tick)], INK, 2.5)
        c.text(a, at + (-42 if above else 32), name, 26, bold=True)
        c.text(a, at + (-14 if above else 58), text, 20, fill=SOFT)

    span(x0, x0 + first + step, 96, "ttft", "time to first token", True)
    span(
        x0 + first + 4 * step,
        x0 + first + 5 * step,
        96,
        "itl",
        "inter-token latency; its mean is tpot",
        True,
    )
    span(x0, last, 222, "e2el", "end to end: ttft + (tokens − 1) × tpot", False)
    c.text(
        x0,
        354,
        "Latency is what one person waits. Throughput is what all together get.",
        26,
        bold=True,
    )
    return c


def limits() -> Chart:
    """Single stream: the limit by bandwidth, and what was measured."""
    rows = {f"{model}\n{gpus}": (limit_tokens_per_s(name), run(name)["single_tok_s"])
            for name, (model, gpus) in LIMITS.items()}  # fmt: skip
    description = "; ".join(
        f"{row}: limit {limit:.0f}, measured {speed:.0f}" for row, (limit, speed) in rows.items()
    )
    with chart(400, description.replace("\n", " on ") + " tokens a second.") as c:
        limit, measured = "limit: bandwidth ÷ bytes of the weights", "measured"
        table = {limit: {row: both[0] for row, both in rows.items()},
                 measured: {row: both[1] for row, both in rows.items()}}  # fmt: skip
        draw(c.axes, table, "barh", {limit: FREE, measured: BLUE})
        for label in c.axes.texts:
            label.set_text(f"{float(label.get_text()):.0f}")
        c.axes.set_xlabel("tokens/s, one stream")
    return c


def throughput() -> Chart:
    """Tokens/s of all requests against requests at once, recorded."""
    description = "; ".join(
        f"{model} {', '.join(f'{v:,.0f}' for v in rates(name))}"
        for name, (model, _) in SPEEDS.items()
    )
    with chart(
        420, f"Tokens a second of all requests, with 1, 16, 64 and 256 at once: {description}."
    ) as c:
        lines = {
            f"{rates(name)[-1]:,.0f}: {model.replace('Llama 3.1 ', '')}\non {gpus}": dict(
                zip(map(str, BATCHES), rates(name), strict=True)
            )
            for name, (model, gpus) in SPEEDS.items()
        }
        draw(c.axes, lines, "line", dict(zip(lines, (GREEN, BLUE, VERMILLION), strict=True)))
        c.axes.set(xlabel="requests at once", ylabel="tokens/s of all")
    return c


def vllm() -> Canvas:
    """What vLLM is made of: API, scheduler, KV blocks, workers."""
    c = Canvas(
        400,
        "vLLM's parts: an API server that speaks OpenAI's protocol; a scheduler that decides before every "
        "step who takes "
        "part; the block table of the KV cache; and a worker for each GPU, over tensor and pipeline parallel "
        "ranks.",
    )
    c.label(0, 130, 236, 120, "API server", PALE, stroke=HAIR, size=25, bold=True)
    c.text(118, 282, "OpenAI's protocol", 20, anchor="middle", fill=SOFT)
    c.arrow(242, 190, 316, 190, INK, 3)
    c.box(322, 30, 356, 330, "none", stroke=HAIR, radius=14, line=3).text(
        340, 62, "engine", 20, fill=SOFT
    )
    c.label(346, 84, 308, 112, "scheduler", BLUE, size=25, bold=True)
    c.text(500, 222, "before every step: who takes part?", SMALL, anchor="middle", fill=SOFT)
    for n in range(6):
        c.box(346 + n * 52, 246, 46, 50, KV_CACHE if n in (0, 1, 3) else FREE, radius=5)
    c.text(500, 332, "block table", 20, anchor="middle", fill=SOFT)
    c.text(838, 30, "workers, one a GPU", 20, fill=SOFT)
    for n in range(4):
        x, y = 830 + n % 2 * 156, 50 + n // 2 * 156
        c.label(x, y, 142, 142, f"GPU {n}", (BLUE, ORANGE, GREEN, PURPLE)[n], size=25, bold=True)
    c.arrow(684, 140, 822, 140, INK, 3)
    c.arrow(684, 260, 822, 260, INK, 3)
    return c.text(974, 392, "each has a part of every layer", 20, anchor="middle", fill=SOFT)


def prefill_decode() -> Canvas:
    """The two halves of a request: reading all at once, writing one by one."""
    c = Canvas(
        330,
        "Prefill reads all tokens of the prompt in one pass and is limited by arithmetic. Decode writes "
        "one token a pass and "
        "is limited by memory bandwidth, as every pass reads all weights.",
    )
    c.text(0, 28, "prefill", 27, bold=True).text(420, 28, "decode", 27, bold=True)
    for k in range(4):
        c.label(
            0, 52 + k * 46, 340, 40, ("San", "Francisco", "is", "a")[k], ORANGE, size=21, ink=INK
        )
    for k, word in enumerate(("port", "in", "western", "California", "…")):
        c.label(420 + k * 144, 98, 134, 94, word, BLUE, size=21, bold=True)
        if k:
            c.arrow(420 + k * 144 - 16, 145, 420 + k * 144 - 1, 145, INK, 2)
    c.text(0, 272, "one pass for all tokens", 23).text(420, 272, "one pass for each token", 23)
    c.text(0, 306, "waits for arithmetic", 21, fill=SOFT)
    return c.text(420, 306, "waits for memory: each pass reads every weight", 21, fill=SOFT)


FIGURES = {
    "paged": paged,
    "batching": batching,
    "flash": flash,
    "latency": latency,
    "limits": limits,
    "throughput": throughput,
    "vllm": vllm,
    "prefill_decode": prefill_decode,
}

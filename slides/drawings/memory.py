"""Part 1: what inference is, how large weights are, why there is a KV cache, and what fills a GPU."""

from __future__ import annotations

import math

from drawings.canvas import (
    BLUE,
    FREE,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    LARGE,
    NORMAL,
    OVERHEAD,
    PALE,
    SMALL,
    SOFT,
    VERMILLION,
    WEIGHTS,
    WIDTH,
    Canvas,
)
from workshop.plan import rules
from workshop.plan.catalog import load_model
from workshop.plan.parallelism import plan

TOKENS = ("San", "Francisco", "is", "a", "port", "in")
PROMPT = 4


def chain() -> Canvas:
    """The course: five steps, and back to the first."""
    steps = (("plan", "will it fit,\nhow fast?"), ("launch", "one machine\nor many nodes"), ("use",
                                                                                             "one prompt\nor a "
                                                                                             "million"),
             ("reconcile", "what does the\nlog say?"), ("learn", "check your\nanswer"))
    c = Canvas(210, "The course as a chain of five steps: plan, launch, use, reconcile with the log, learn; then plan "
                    "again.")
    width, gap = 188, 49
    for n, (name, under) in enumerate(steps):
        x = n * (width + gap)
        c.label(x, 10, width, 70, name, BLUE, size=LARGE, bold=True, radius=12)
        for k, line in enumerate(under.split("\n")):
            c.text(x + width / 2, 114 + 27 * k, line, 20, fill=SOFT, anchor="middle")
        if n:
            c.arrow(x - gap + 6, 45, x - 8, 45, INK, 3)
    end, start = 4 * (width + gap) + width / 2, width / 2
    return c.line([(end, 158), (end, 190), (start, 190), (start, 160)], HAIR, 3, head=True)


def training_inference() -> Canvas:
    """Two columns: what runs, what changes, what must be in memory."""
    c = Canvas(430, "Training runs forward and backward and changes the weights; it keeps weights, gradients, "
                    "optimizer state and "
                    "activations. Inference runs forward only; weights stay fixed, and a KV cache lies beside them.")
    for side, (name, colour) in enumerate((("Training", VERMILLION), ("Inference", BLUE))):
        x = side * 588
        c.text(x, 30, name, 32, bold=True, fill=INK).box(x, 44, 548, 5, colour, radius=2)
        c.label(x, 82, 120, 84, "text", PALE, stroke=HAIR)
        c.arrow(x + 126, 124, x + 172, 124)
        c.label(x + 178, 72, 172, 104, "weights", WEIGHTS, bold=True)
        c.arrow(x + 356, 124, x + 402, 124)
        c.label(x + 408, 82, 140, 84, "error" if side == 0 else "next token", PALE, stroke=HAIR)
        if side == 0:
            c.line([(x + 478, 172), (x + 478, 222), (x + 264, 222), (x + 264, 184)], VERMILLION, 3, head=True)
            c.text(x + 290, 212, "change the weights", SMALL, fill=SOFT)
        else:
            c.line([(x + 478, 172), (x + 478, 222), (x + 60, 222), (x + 60, 174)], GREEN, 3, head=True)
            c.text(x + 130, 212, "append, go on", SMALL, fill=SOFT)
        c.text(x, 278, "in memory", SMALL, fill=SOFT)
        held = ((("weights", WEIGHTS, 100), ("gradients", OVERHEAD, 112), ("optimizer state", "#E7B9D3", 200),
                 ("activations", FREE, 130)) if side == 0 else
                (("weights", WEIGHTS, 130), ("KV cache", KV_CACHE, 130)))
        at = x
        for words, fill, width in held:
            c.label(at, 292, width, 58, words, fill, size=19)
            at += width + 2
        for n, line in enumerate(("weeks, once" if side == 0 else "milliseconds a token, for as long as it is used",
                                  "next-token prediction over trillions of tokens" if side == 0
                                  else "prompts in, tokens out; weights never change")):
            c.text(x, 388 + 30 * n, line, 20, fill=INK if n == 0 else SOFT)
    return c


def gpu_grid() -> Canvas:
    """The weights of 405B poured into GPUs of 80 and of 40 GB, one column each."""
    total = rules.weights_gb(405, "Float16")
    h100, a100 = math.ceil(total / rules.H100_GB), math.ceil(total / 40)
    c = Canvas(330, f"{total:.0f} GB of weights fill {h100} H100 of {rules.H100_GB} GB, the last one only a little, "
                    f"or {a100} A100 "
                    "of 40 GB.")
    for row, (name, gb, count, tall) in enumerate((("H100, 80 GB each", rules.H100_GB, h100, 120),
                                                  ("A100, 40 GB each", 40, a100, 60))):
        y = 40 + row * 180
        c.text(0, y - 14, name, NORMAL, bold=True)
        step = 900 / 21 if row else 900 / 21 * 21 / 11
        for n in range(count):
            fill = min(gb, total - n * gb) / gb
            x, w = n * step, step - 8
            c.box(x, y, w, tall, FREE).box(x, y + tall * (1 - fill), w, tall * fill, WEIGHTS)
        c.text(WIDTH, y + tall * 0.5 + 18, str(count), 60, anchor="end", bold=True, fill=BLUE)
    return c


def weight_bars() -> Canvas:
    """Weights by precision, as bars on a scale of H100s."""
    c = Canvas(440, "Bars of the weights' size: " + "; ".join(
        f"{size} {', '.join(f'{p} {gb}' for p, gb in row.items())}" for size, row in rules.weights_table().items())
        + f". Lines mark every {rules.H100_GB} GB, one H100.")
    left, per = 78, (WIDTH - 78 - 100) / 810
    for n in range(1, 11):
        x = left + n * rules.H100_GB * per
        c.line([(x, 4), (x, 402)], HAIR, 1.5, dash="3 5")
        c.text(x, 428, str(n), SMALL, fill=SOFT, anchor="middle")
    c.text(left, 428, "H100s", SMALL, fill=SOFT)
    fills = {"Float16": WEIGHTS, "Float8": "#56B4E9", "INT4": "#B5DDF3"}
    for row, (size, (billions, _)) in enumerate(rules.SIZES.items()):
        y = 12 + row * 136
        c.text(0, y + 66, size, LARGE, bold=True)
        for n, p in enumerate(rules.BYTES):
            gb = rules.weights_gb(billions, p)
            c.box(left, y + n * 38, max(3, gb * per), 32, fills[p], radius=3)
            shown = rules.weights_table()[size][p]
            inside = gb * per > 250
            c.text(left + gb * per + (-12 if inside else 10), y + n * 38 + 23, f"{p}  {shown}", 19,
                   anchor="end" if inside else "start", fill="#ffffff" if inside and n == 0 else INK)
    return c


def gib_table() -> Canvas:
    """One request of 128,000 tokens to 405B: what the table says, and what its config.json says now."""
    m = load_model("llama-3.1-405b")
    then, now = rules.kv_request_gib(m, kv_heads=rules.TABLE_KV_HEADS["405B"]), rules.kv_request_gib(m)
    gb = then * 2**30 / 1e9
    rows = ((f"{then:.2f} “GB”", f"as published: {rules.TABLE_KV_HEADS['405B']} KV heads, GiB called GB", then, FREE),
            (f"{gb:.1f} GB", "the same bytes, in units of 10⁹", gb, "#F4D9A0"),
            (f"{now:.1f} GiB", f"today: {m.num_key_value_heads} KV heads in config.json", now, KV_CACHE))
    c = Canvas(350, "; ".join(f"{value}: {words}" for value, words, _, _ in rows) + ".")
    per = 640 / gb
    for n, (value, words, size, fill) in enumerate(rows):
        y = 10 + n * 116
        c.box(250, y, size * per, 70, fill).text(230, y + 47, value, 34, bold=True, anchor="end")
        c.text(256, y + 98, words, 20, fill=SOFT)
    return c


def gpu_fill() -> Canvas:
    """What lies in an H100 that serves 8B: the plan's parts, to scale."""
    p = plan("llama-3.1-8b", "h100", max_model_len=8192)
    unused = p.gpu_memory_gib - p.requested_gib_per_gpu
    over = sum(o.bytes for o in p.overheads) / 2**30
    parts = (("weights", p.weights_gib_per_gpu, WEIGHTS), ("overhead", over, OVERHEAD),
             ("KV cache", p.available_kv_gib_per_gpu, KV_CACHE), ("not taken", unused, FREE))
    c = Canvas(270, "An H100 that serves Llama 3.1 8B, in GiB: " + ", ".join(f"{n} {v:.1f}" for n, v, _ in parts) + ".")
    x, per = 0.0, WIDTH / p.gpu_memory_gib
    for name, gib, fill in parts:
        w = gib * per
        c.box(x, 60, w - 3, 110, fill)
        if w > 130:
            ink = "#ffffff" if fill == WEIGHTS else INK
            c.text(x + w / 2, 108, name, 23, anchor="middle", bold=True, fill=ink)
            c.text(x + w / 2, 142, f"{gib:.1f} GiB", 23, anchor="middle", fill=ink)
        else:
            c.line([(x + w / 2, 174), (x + w / 2, 200)], SOFT, 2)
            at_end = x + w > WIDTH - 40
            c.text(WIDTH if at_end else x + w / 2, 226, f"{name} {gib:.1f} GiB", 20,
                   anchor="end" if at_end else "middle")
        x += w
    end = p.requested_gib_per_gpu * per
    c.line([(0, 44), (0, 34), (end, 34), (end, 44)], SOFT, 2)
    share = p.settings.gpu_memory_utilization
    return c.text(end / 2, 24, f"gpu_memory_utilization {share:g}: {p.requested_gib_per_gpu:.1f} of "
                               f"{p.gpu_memory_gib:.1f} GiB", 20, anchor="middle", fill=SOFT)


def table_bars() -> Canvas:
    """Weights and KV cache of the large table, as bars on a scale of H100s."""
    c = Canvas(300, "Weights and KV cache of one long request, in H100s of 80 GB: " + ", ".join(
        f"{size} {rules.h100s_for_both(size):.2f}" for size in rules.SIZES) + ".")
    left, per = 88, (WIDTH - 104) / 12
    for n in range(1, 13):
        x = left + n * per
        c.line([(x, 0), (x, 262)], HAIR, 1.5, dash="3 5").text(x, 290, str(n), SMALL, fill=SOFT, anchor="middle")
    c.text(left, 290, "H100s", SMALL, fill=SOFT)
    for row, (size, (billions, _)) in enumerate(rules.SIZES.items()):
        weights = rules.weights_gb(billions, "Float16") / rules.H100_GB * per
        both = rules.h100s_for_both(size) * per
        y = 12 + row * 84
        c.text(0, y + 42, size, LARGE, bold=True).box(left, y, weights - 2, 60, WEIGHTS, radius=3)
        c.box(left + weights, y, both - weights, 60, KV_CACHE, radius=3)
    return c.legend(700, 128, [(WEIGHTS, "weights"), (KV_CACHE, "KV cache, one request")])


FIGURES = {
    "chain": chain,
    "training_inference": training_inference,
    "gpu_grid": gpu_grid,
    "weight_bars": weight_bars,
    "gib_table": gib_table,
    "gpu_fill": gpu_fill,
    "table_bars": table_bars,
}

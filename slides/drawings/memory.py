"""Part 1: what inference is, how large weights are, why there is a KV cache, and what fills a GPU."""

from __future__ import annotations

import math

from inference_planner.answer.parallelism import Plan
from inference_planner.tables import rules

from drawings.canvas import (
    BLUE,
    FREE,
    GREEN,
    HAIR,
    INK,
    KV_CACHE,
    KV_CACHE_LIGHT,
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
from drawings.charts import Chart, chart
from workshop.course.drawing.figure import draw
from workshop.course.exercises.sets.e01_memory import TIGHT
from workshop.course.widgets.gpu_field.case import Frame, cells_of_a_square, gib, story
from workshop.course.widgets.gpu_field.picture import Box, boxes, is_over, requests, work_space
from workshop.engine.planning import plan

TOKENS = ("San", "Francisco", "is", "a", "port", "in")
PROMPT = 4
SPARE = "#b8bec4"  # what vLLM leaves alone; darker than FREE
THESIS_TOKENS = 128_000
FILLED = {"model": "llama-3.1-8b", "gpu": "h100", "max_model_len": 8192}
WAITING = "#F2C9AC"  # a request that has no room


def chain() -> Canvas:
    """The course: five steps, and back to the first."""
    steps = (
        ("plan", "will it fit,\nhow fast?"),
        ("launch", "one machine\nor many nodes"),
        ("use", "one prompt\nor a million"),
        ("reconcile", "what does the\nlog say?"),
        ("learn", "check your\nanswer"),
    )
    c = Canvas(
        210,
        "The course as a chain of five steps: plan, launch, use, reconcile with the log, learn; then plan again.",
    )
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
    c = Canvas(
        430,
        "Training runs forward and backward and changes the weights; it keeps weights, gradients, "
        "optimizer state and "
        "activations. Inference runs forward only; weights stay fixed, and a KV cache lies beside them.",
    )
    for side, (name, colour) in enumerate((("Training", VERMILLION), ("Inference", BLUE))):
        x = side * 588
        c.text(x, 30, name, 32, bold=True, fill=INK).box(x, 44, 548, 5, colour, radius=2)
        c.label(x, 82, 120, 84, "text", PALE, stroke=HAIR)
        c.arrow(x + 126, 124, x + 172, 124)
        c.label(x + 178, 72, 172, 104, "weights", WEIGHTS, bold=True)
        c.arrow(x + 356, 124, x + 402, 124)
        c.label(x + 408, 82, 140, 84, "error" if side == 0 else "next token", PALE, stroke=HAIR)
        if side == 0:
            c.line(
                [(x + 478, 172), (x + 478, 222), (x + 264, 222), (x + 264, 184)],
                VERMILLION,
                3,
                head=True,
            )
            c.text(x + 278, 212, "change the weights", SMALL, fill=SOFT)
        else:
            c.line(
                [(x + 478, 172), (x + 478, 222), (x + 60, 222), (x + 60, 174)], GREEN, 3, head=True
            )
            c.text(x + 130, 212, "append, go on", SMALL, fill=SOFT)
        c.text(x, 278, "in memory", SMALL, fill=SOFT)
        memory_parts = (
            (
                ("weights", WEIGHTS, 100),
                ("gradients", OVERHEAD, 112),
                ("optimizer state", "#E7B9D3", 200),
                ("activations", FREE, 130),
            )
            if side == 0
            else (("weights", WEIGHTS, 130), ("KV cache", KV_CACHE, 130))
        )
        at = x
        for label, fill, width in memory_parts:
            c.label(at, 292, width, 58, label, fill, size=20)
            at += width + 2
        for n, line in enumerate(
            (
                "weeks, once" if side == 0 else "milliseconds a token, for as long as it is used",
                "next-token prediction over trillions of tokens"
                if side == 0
                else "prompts in, tokens out; weights never change",
            )
        ):
            c.text(x, 388 + 30 * n, line, 20, fill=INK if n == 0 else SOFT)
    return c


def gpu_grid() -> Canvas:
    """The weights of 405B poured into GPUs of 80 and of 40 GB, one column each."""
    total = rules.weights_gb(405, "Float16")
    h100, a100 = math.ceil(total / rules.H100_GB), math.ceil(total / 40)
    c = Canvas(
        330,
        f"{total:.0f} GB of weights fill {h100} H100 of {rules.H100_GB} GB, the last one only a little, "
        f"or {a100} A100 "
        "of 40 GB.",
    )
    for row, (name, gb, count, tall) in enumerate(
        (("H100, 80 GB each", rules.H100_GB, h100, 120), ("A100, 40 GB each", 40, a100, 60))
    ):
        y = 40 + row * 180
        c.text(0, y - 14, name, NORMAL, bold=True)
        step = 900 / 21 if row else 900 / 21 * 21 / 11
        for n in range(count):
            fill = min(gb, total - n * gb) / gb
            x, w = n * step, step - 8
            c.box(x, y, w, tall, FREE).box(x, y + tall * (1 - fill), w, tall * fill, WEIGHTS)
        c.text(WIDTH, y + tall * 0.5 + 18, str(count), 60, anchor="end", bold=True, fill=BLUE)
    return c


def weight_bars() -> Chart:
    """Weights by precision, as bars on a scale of H100s."""
    table = rules.weights_table()
    description = "; ".join(
        f"{size} {', '.join(f'{p} {gb}' for p, gb in row.items())}" for size, row in table.items()
    )
    with chart(
        440,
        f"Bars of the weights' size: {description}. Lines mark every {rules.H100_GB} GB, one H100.",
    ) as c:
        gb = {p: {size: rules.weights_gb(billions, p) for size, (billions, _) in rules.SIZES.items()}
              for p in rules.BYTES}  # fmt: skip
        draw(c.axes, gb, "barh")
        for label in c.axes.texts:
            label.set_text(f"{label.get_text()} GB")
        in_h100s(c, 10, rules.H100_GB)
    return c


def in_h100s(c: Chart, count: int, gb: float) -> None:
    """Let the axis count H100s."""
    c.axes.set_xticks([n * gb for n in range(count + 1)], [f"{n}" for n in range(count + 1)])
    c.axes.set_xlabel(f"H100s of {rules.H100_GB} GB")


def filled_h100() -> Plan:
    """Return the plan of notebook 1, "What else fills a GPU"."""
    return plan(FILLED["model"], FILLED["gpu"], max_model_len=FILLED["max_model_len"])


def gpu_field() -> Canvas:
    """Draw four frames of notebook 1's field: an H100 that Llama 3.1 8B and its requests fill."""
    frames = story(FILLED["model"], FILLED["gpu"], max_model_len=FILLED["max_model_len"])
    weights, work_space, full = frames[1], frames[2], frames[-1]
    some = next(frame for frame in frames if frame.requests == 256)
    split = full.split
    captions = (
        (weights, f"weights: {gib(split.weights)}"),
        (work_space, f"work space: {gib(split.work_space)}"),
        (some, f"{some.requests} abstracts: {gib(some.requests * split.request)}"),
        (full, f"full with {split.room}: abstract {split.room + 1} waits"),
    )
    c = Canvas(336, " ".join(frame.text for frame, _ in captions))
    for number, (frame, caption) in enumerate(captions):
        line, column = divmod(number, 2)
        x, y = column * 590, 38 + line * 160
        field(c, frame, x, y, 27)
        c.text(x, y - 14, caption, NORMAL, bold=True)
    entries = [
        (WEIGHTS, "weights"),
        (OVERHEAD, "work space"),
        (KV_CACHE, "KV cache: a cell an abstract"),
    ]
    return c.legend(0, 330, [*entries, (SPARE, "not for vLLM")])


def gpu_field_70b() -> Canvas:
    """Draw the same field for 70B and a thesis: it overflows one H100, and is cut over four."""
    frames = story("llama-3.1-70b", FILLED["gpu"], tokens=THESIS_TOKENS)
    last = {frame.split.gpus: frame for frame in frames}
    single, four = (last[gpus].split for gpus in (1, 4))
    c = Canvas(356, f"{last[1].text} {last[4].text}")
    side, floor, line = 18, 160, 136  # a line has rows of squares above it for what has no room
    wide = 20 * side + 24
    c.text(0, 20, f"1 H100: {gib(single.weights - single.usable)} too much", NORMAL, bold=True)
    c.text(wide, 20, f"4 H100s: room for {four.room} theses, one waits", NORMAL, bold=True)
    field(c, last[1], 0, floor, side)
    for gpu in range(4):
        row, column = divmod(gpu, 2)
        field(c, last[4], wide + column * wide, floor - 92 + row * line, side)
    entries = [(WEIGHTS, "weights"), (OVERHEAD, "work space"), (KV_CACHE, "KV cache of a thesis")]
    entries += [(WAITING, "it waits"), (VERMILLION, "no room")]
    return c.legend(0, 348, [*entries, (SPARE, "not for vLLM")])


def field(c: Canvas, frame: Frame, x: float, y: float, side: float) -> None:
    """Draw the squares of one GPU, as the widget places them."""
    split = frame.split
    squares = [boxes(square, square + 1, split)[0] for square in range(split.squares)]
    _squares(c, squares, x, y, side, FREE)
    _squares(c, boxes(0, split.reserve, split), x, y, side, SPARE)
    filled = split.reserve + split.weights
    weights = boxes(split.reserve, filled, split)
    _squares(c, [box for box in weights if not is_over(box, split)], x, y, side, WEIGHTS)
    _squares(c, [box for box in weights if is_over(box, split)], x, y, side, VERMILLION)
    if frame.has_work_space:
        _squares(c, work_space(split), x, y, side, OVERHEAD)
    for number, drawn in enumerate(requests(frame, range(frame.requests))):
        second = number % 2 and not cells_of_a_square(split)
        _squares(c, drawn, x, y, side, KV_CACHE_LIGHT if second else KV_CACHE)
    if frame.is_waiting:
        _squares(c, requests(frame, [frame.requests])[0], x, y, side, WAITING, VERMILLION)
    c.line([(x, y), (x + 20 * side, y)], INK, 2.5)


def _squares(
    c: Canvas, drawn: list[Box], x: float, y: float, side: float, fill: str, stroke: str = "none"
) -> None:
    d = ""
    for box in drawn:
        width = box.width * side
        d += f"M{x + box.x * side:.1f} {y + box.y * side:.1f}h{width:.1f}v{box.height * side:.1f}h-{width:.1f}z"
    c.raw(f'<path d="{d}" fill="{fill}" stroke="{stroke}"/>')


def one_change() -> Canvas:
    """The exercise of notebook 1: what 16 long requests need on four H200, and what vLLM may use."""
    case = TIGHT
    p = plan(case["model"], case["gpu"], gpus_per_node=case["gpus"], max_model_len=case["context"])
    over = sum(o.bytes for o in p.overheads) / 2**30
    request = p.kv_bytes_per_token * case["context"] / p.gpus / 2**30
    needed = case["requests"] * request
    end = p.weights_gib_per_gpu + over + needed
    c = Canvas(
        176,
        f"Each of {p.gpus} GPUs, in GiB: weights {p.weights_gib_per_gpu:.1f}, work space {over:.1f}, KV cache "
        f"{p.available_kv_gib_per_gpu:.1f} up to what vLLM may use, {p.requested_gib_per_gpu:.0f}. "
        f"{case['requests']} requests need {needed:.0f}: what is too much is hatched.",
    )
    per = (WIDTH - 90) / end
    c.raw(
        '<defs><pattern id="too-much" width="12" height="12" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="12" fill="{VERMILLION}"/></pattern></defs>'
    )
    limit = 90 + p.requested_gib_per_gpu * per
    c.text(limit, 20, f"vLLM may use {p.requested_gib_per_gpu:.0f} GiB", 20, anchor="middle")
    for gpu in range(p.gpus):
        x, y = 90.0, 32 + gpu * 36
        c.text(0, y + 21, f"GPU {gpu}", 20, fill=SOFT)
        for size, colour in ((p.weights_gib_per_gpu, WEIGHTS), (over, OVERHEAD)):
            c.box(x, y, size * per - 2, 30, colour, radius=3)
            x += size * per
        c.label(
            x,
            y,
            limit - x - 2,
            30,
            f"KV cache {p.available_kv_gib_per_gpu:.1f} GiB",
            KV_CACHE,
            size=20,
        )
        c.box(limit, y, WIDTH - limit, 30, "url(#too-much)", stroke=VERMILLION, radius=3)
    c.label(
        limit + 130,
        84,
        WIDTH - limit - 180,
        34,
        f"{needed - p.available_kv_gib_per_gpu:.0f} GiB too much",
        "#ffffff",
        size=20,
        bold=True,
    )
    return c.line([(limit, 28), (limit, 174)], INK, 3)


FIGURES = {
    "chain": chain,
    "training_inference": training_inference,
    "gpu_grid": gpu_grid,
    "weight_bars": weight_bars,
    "gpu_field": gpu_field,
    "gpu_field_70b": gpu_field_70b,
    "one_change": one_change,
}

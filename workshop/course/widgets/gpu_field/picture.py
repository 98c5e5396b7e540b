"""Draw one frame of a GPU that fills: a field of squares, what lies in them, and the numbers.

The functions are pure: a frame in, HTML out. What is new since the frame before falls into its
place, and weights that are cut over more GPUs glide there; style.css moves them, unless the reader
wants no motion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor

from workshop.course.drawing.chart import svg, text
from workshop.course.drawing.html import Html, div, legend, panel
from workshop.course.drawing.html import verdict as at_the_edge
from workshop.course.widgets import style
from workshop.course.widgets.gpu_field.case import FieldSplit, Frame, cells_of_a_square, gib

COLUMNS = 20
WIDTH = 668  # of the drawing, in its own units
ONE, SEVERAL = 33, 16  # a square's side where there is one GPU, and where there are several
NAME = 20  # the line below a field
BETWEEN = 24  # fields that stand side by side
FINE = 100  # a square has so many units in a field's own scale
INSET = 0.04  # of a square, between it and its neighbour, on each side
HAIR = 0.001  # of a square's side: what is thinner is not drawn
POUR_MS = 700  # until the last square of a frame sets out
SINGLY = 16  # more new requests than these come square by square


@dataclass(frozen=True)
class Box:
    """A rectangle, in squares: x from the left of the field, y from its top; what overflows is above 0."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class FieldStage:
    """The room of a whole story, so that nothing jumps from one frame to the next."""

    height: float
    gap: float  # between two lines of fields, for what waits above the lower

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> FieldStage:
        """Return the stage on which each frame has room."""
        gap = max((_over(frame) for frame in frames if frame.split.gpus > 2), default=0)
        height = max(_over(frame) + _fields(frame.split, gap) for frame in frames)
        return cls(height + 4, gap)

    def corner(self, split: FieldSplit, gpu: int) -> tuple[float, float]:
        """Return where the field of a GPU begins, in units of the drawing; all stand on its floor."""
        line, column = divmod(gpu, 2)
        x = 2 + column * (COLUMNS * side(split) + BETWEEN)
        y = self.height - _fields(split, self.gap) + line * (_line(split) + self.gap)
        return x, y


def _over(frame: Frame) -> int:
    """Return how high a frame overflows its fields, in units of the drawing."""
    return side(frame.split) * max(0, ceil(frame.top / COLUMNS) - rows(frame.split))


def _line(split: FieldSplit) -> int:
    """Return how high a line of fields is, with the names below them."""
    return rows(split) * side(split) + NAME


def _fields(split: FieldSplit, gap: float) -> float:
    """Return how high all lines of fields are, without what overflows the first."""
    lines = ceil(split.gpus / 2)
    return lines * _line(split) + (lines - 1) * gap


def side(split: FieldSplit) -> int:
    """Return how long a square's side is, in units of the drawing."""
    if split.gpus == 1:
        return ONE
    return SEVERAL


def rows(split: FieldSplit) -> int:
    return ceil(split.squares / COLUMNS)


def boxes(begin: float, end: float, split: FieldSplit, strips: int = 1) -> list[Box]:
    """Return the rectangles of what lies between two heights, in squares from the bottom.

    A whole square is one rectangle. A part of one is filled from the left; with several strips the
    lowest comes first.
    """
    inner = 1 - 2 * INSET
    drawn: list[Box] = []
    for square in range(floor(begin), ceil(end)):
        low, high = max(begin - square, 0.0), min(end - square, 1.0)
        x, y = _place(square, split)
        if (low, high) == (0.0, 1.0):
            drawn.append(Box(x, y, inner, inner))
            continue
        for strip in range(floor(low * strips), ceil(high * strips)):
            left = max(low * strips - strip, 0.0)
            width = min(high * strips - strip, 1.0) - left
            if width > HAIR * strips:
                top = y + inner * (1 - (strip + 1) / strips)
                drawn.append(Box(x + inner * left, top, inner * width, inner / strips))
    return drawn


def requests(frame: Frame, numbers: Iterable[int]) -> list[list[Box]]:
    """Return the rectangles of some requests of a frame, counted from 0."""
    split = frame.split
    cells = cells_of_a_square(split)
    drawn = []
    for number in numbers:
        begin = frame.first_request + number * split.request
        parts = boxes(begin, begin + split.request, split, _strips(split))
        if cells:
            parts = [_shrunk(box) for box in parts]
        drawn.append(parts)
    return drawn


def _strips(split: FieldSplit) -> int:
    """Return in how many strips of cells small requests fill a square; 1 for others."""
    return max(1, round(cells_of_a_square(split) ** 0.5))


def _shrunk(box: Box) -> Box:
    """Return a cell with a line of the field around it."""
    return Box(
        box.x + box.width * 0.08, box.y + box.height * 0.08, box.width * 0.84, box.height * 0.84
    )


def _place(square: int, split: FieldSplit) -> tuple[float, float]:
    """Return the corner of a square, counted from the bottom left."""
    return square % COLUMNS + INSET, rows(split) - 1 - square // COLUMNS + INSET


def picture(frame: Frame, before: Frame | None, stage: FieldStage) -> Html:
    """Return one frame; what it has and `before` has not comes in motion."""
    fields = ""
    for gpu in range(frame.split.gpus):
        fields += _field(frame, before, stage, gpu)
    drawn = svg(fields, WIDTH, round(stage.height), max_width=860)
    sign, kind = _sign(frame)
    return panel(
        at_the_edge(sign, f"{kind} tall", frame.text),
        div(drawn, cls="field"),
        legend([*_where(frame.split), *_keys(frame)]),
        label=spoken(frame),
    )


def spoken(frame: Frame) -> str:
    """Return the picture in words, for a screen reader."""
    where = "In it"
    if frame.split.gpus > 1:
        where = "On each GPU"
    parts = [meaning for _, meaning in _keys(frame)]
    return f"{frame.text} {where}: {', '.join(parts)}."


def _sign(frame: Frame) -> tuple[str, str]:
    split = frame.split
    if (frame.has_weights and split.weights > split.usable) or (
        frame.is_waiting and not split.room
    ):
        return "✗", "bad"
    if frame.is_waiting:
        return "!", "warn"
    if frame.requests or (frame.has_weights and split.bits):
        return "✓", "good"
    return "…", "open"


def _keys(frame: Frame) -> list[tuple[str, str]]:
    """Return the colours with what each is and how much of it lies in one GPU."""
    split = frame.split
    weights = split.weights * frame.has_weights
    parts = [("bg-weights edge", "weights", weights)]
    used = weights
    if split.tokens:
        work_space = split.work_space * frame.has_work_space
        kv_cache = split.request * frame.requests
        parts.append(("bg-overhead edge", "work space", work_space))
        parts.append(("bg-kv edge", "KV cache", kv_cache))
        if frame.requests > 1 and not cells_of_a_square(split):
            parts.append(("second edge", "of every second request", 0.0))
        used += work_space + kv_cache
    parts.append(("bg-empty edge", "free", max(0.0, split.usable - used)))
    if split.reserve:
        parts.append(("reserve edge", "not for vLLM", split.reserve))
    if used > split.usable:
        parts.append(("too-much edge", "too much", used - split.usable))
    if frame.is_waiting:
        parts.append(("waits edge", "a request that waits", 0.0))
    keys = []
    for look, name, size in parts:
        amount = ""
        if size:
            amount = f" {gib(size)}"
        keys.append((look, f"{name}{amount}"))
    return keys


def _where(split: FieldSplit) -> list[tuple[str, str]]:
    """Return what stands before the colours of several GPUs."""
    if split.gpus > 1:
        return [("clear", "on each GPU:")]
    return []


def _field(frame: Frame, before: Frame | None, stage: FieldStage, gpu: int) -> str:
    """Return the field of one GPU."""
    split = frame.split
    x, y = stage.corner(split, gpu)
    scale = side(split) / FINE
    free = [
        Box(*_place(square, split), 1 - 2 * INSET, 1 - 2 * INSET) for square in range(split.squares)
    ]
    parts = [_path(free, "free")]
    parts += _squares(boxes(0.0, split.reserve, split), "reserve", split)
    if frame.has_weights:
        parts += _weights(frame, before, stage, gpu)
    if frame.has_work_space:
        is_new = before is None or not (before.has_work_space and before.split == split)
        parts += _squares(work_space(split), "work", split, is_new)
    parts += _requests(frame, before)
    if frame.is_waiting:
        waiting = requests(frame, [frame.requests])[0]
        parts.append(_path(waiting, "waits drops"))
    edge = f'<path class="rim" d="{rim(split, FINE)}"/>'
    field = f'<g transform="translate({x:g} {y:g}) scale({scale:g})">{"".join(parts)}{edge}</g>'
    beside = _names(split, gpu, x, y + rows(split) * side(split) + 15)
    if frame.is_waiting and cells_of_a_square(split):  # small, so it is said
        cell = requests(frame, [frame.requests])[0][0]
        right, low = (floor(cell.x) + 1) * side(split), (floor(cell.y) + 1) * side(split)
        beside += text(x + right, y + low - 4, f"request {frame.requests + 1:,} waits")
    return field + beside


def rim(split: FieldSplit, side: float) -> str:
    """Return the line at which the card is full, as the path of an SVG; with a step, where a row is short."""
    short = split.squares % COLUMNS
    if not short:
        return f"M0 0h{COLUMNS * side:g}"
    return f"M0 0h{short * side:g}v{side:g}h{(COLUMNS - short) * side:g}"


def is_over(box: Box, split: FieldSplit) -> bool:
    """Return whether a rectangle lies above the card's last square."""
    return _height(box, split) >= split.squares


def _names(split: FieldSplit, gpu: int, x: float, y: float) -> str:
    """Return what stands below a field: whose it is, and what the line above it means."""
    if split.gpus > 1:
        return text(x, y, f"GPU {gpu}", fill=style.MUTED)
    end = x + COLUMNS * side(split)
    line = text(end, y, f"the line: {split.squares} GiB", anchor="end", fill=style.MUTED)
    return text(x, y, split.card, fill=style.MUTED) + line


def work_space(split: FieldSplit) -> list[Box]:
    """Return the rectangles of the work space.

    It shares its last square with the first requests, so it fills that in their strips.
    """
    begin = split.reserve + split.weights
    end = begin + split.work_space
    whole = max(begin, float(floor(end)))
    return boxes(begin, whole, split) + boxes(whole, end, split, _strips(split))


def _squares(drawn: Sequence[Box], look: str, split: FieldSplit, is_new: bool = False) -> list[str]:
    """Return a part of the memory; what is new comes square by square, and what overflows is red."""
    inside = [box for box in drawn if not is_over(box, split)]
    above = [box for box in drawn if is_over(box, split)]
    if not is_new:
        return [_path(inside, look), _path(above, f"{look} over")]
    parts = []
    squares = list(_by_square(drawn).values())
    for number, square in enumerate(squares):
        kind = f"{look} drops"
        if is_over(square[0], split):
            kind = f"{look} over drops"
        parts.append(_path(square, kind, f"--d:{POUR_MS * number / len(squares):.0f}ms"))
    return parts


def _by_square(drawn: Iterable[Box]) -> dict[tuple[int, int], list[Box]]:
    """Return rectangles by the square in which they lie."""
    squares: dict[tuple[int, int], list[Box]] = {}
    for box in drawn:
        squares.setdefault((floor(box.x), floor(box.y)), []).append(box)
    return squares


def _weights(frame: Frame, before: Frame | None, stage: FieldStage, gpu: int) -> list[str]:
    """Return the weights of one GPU: as before, poured in, or gliding from where they were."""
    split = frame.split
    begin, end = split.reserve, split.reserve + split.weights
    if before is None or not before.has_weights:
        return _squares(boxes(begin, end, split), "weights", split, is_new=True)
    if before.split == split:
        return _squares(boxes(begin, end, split), "weights", split)
    parts = []
    for box in boxes(begin, end, split):
        look = "weights recut"
        if is_over(box, split):
            look = "weights over recut"
        parts.append(_path([box], look, _from(box, gpu, split, before.split, stage)))
    return parts


def _from(box: Box, gpu: int, split: FieldSplit, old: FieldSplit, stage: FieldStage) -> str:
    """Return where a square of the weights was in the split before, as CSS variables."""
    height = _height(box, split) - split.reserve
    share = (gpu + min(max(height / split.weights, 0.0), 1.0)) / split.gpus
    old_gpu = min(floor(share * old.gpus), old.gpus - 1)
    old_height = old.reserve + (share * old.gpus - old_gpu) * old.weights
    x, y = _place(floor(old_height), old)
    old_corner, corner = stage.corner(old, old_gpu), stage.corner(split, gpu)
    scale = side(old) / side(split)
    shift = []
    for place, start, begin, target in zip((x, y), old_corner, corner, (box.x, box.y), strict=True):
        local = (start + place * side(old) - begin) / side(split)
        shift.append(FINE * (local - scale * target))
    return f"--x:{shift[0]:.0f}px;--y:{shift[1]:.0f}px;--s:{scale:.3f}"


def _height(box: Box, split: FieldSplit) -> float:
    """Return which square a rectangle lies in, counted from the bottom."""
    return (rows(split) - 1 - floor(box.y)) * COLUMNS + floor(box.x)


def _requests(frame: Frame, before: Frame | None) -> list[str]:
    """Return the requests: those of the frame before at rest, new ones falling into their places."""
    split = frame.split
    old = 0
    if before is not None and before.split == split:
        old = before.requests
    parts = []
    resting = requests(frame, range(old))
    coming = requests(frame, range(old, frame.requests))
    for shade in (0, 1):
        look = _shade(split, shade)
        at_rest = [box for drawn in resting[shade::2] for box in drawn]
        parts.append(_path(at_rest, look))
    batches = _batches(frame, coming)
    for number, (shade, batch) in enumerate(batches):
        delay = f"--d:{POUR_MS * number / len(batches):.0f}ms"
        parts.append(_path(batch, f"{_shade(split, shade)} drops", delay))
    return parts


def _batches(frame: Frame, coming: Sequence[list[Box]]) -> list[tuple[int, list[Box]]]:
    """Return new requests in the groups in which they fall: singly, or many by the square."""
    if len(coming) <= SINGLY:
        first = frame.requests - len(coming)
        return [((first + number) % 2, drawn) for number, drawn in enumerate(coming)]
    squares = _by_square(box for drawn in coming for box in drawn)
    return [(0, batch) for batch in squares.values()]


def _shade(split: FieldSplit, number: int) -> str:
    """Return the look of a request: large neighbours differ, small ones are cells of their own."""
    if number and not cells_of_a_square(split):
        return "kv second"
    return "kv"


def _path(drawn: Iterable[Box], look: str, variables: str = "") -> str:
    """Return rectangles as one path; nothing where there are none."""
    d = ""
    for box in drawn:
        x, y, width, height = (round(FINE * size) for size in (box.x, box.y, box.width, box.height))
        if " over" in look:
            d += _hatched(x, y, width, height)
        else:
            d += f"M{x} {y}h{width}v{height}h-{width}z"
    if not d:
        return ""
    moved = ""
    if variables:
        moved = f' style="{variables}"'
    return f'<path class="{look}" d="{d}"{moved}/>'


def _hatched(x: int, y: int, width: int, height: int) -> str:
    """Return three stripes across a rectangle: what is too much is not told by its colour alone."""
    right, low = round(width / 3), round(height / 3)
    return (
        f"M{x} {y}h{right}l-{right} {low}z"
        f"M{x + 2 * right} {y}H{x + width}L{x} {y + height}v-{low}z"
        f"M{x + width} {y + low}v{low}L{x + 2 * right} {y + height}h-{right}z"
    )

"""Draw answers, a square each: which are on disk, which are wrong, which label each is. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from workshop.course.drawing import chart
from workshop.course.widgets import style

WIDTH = 640  # of each drawing, in its own units
COLUMNS = 40  # squares in a row of the field
SIDE = WIDTH / COLUMNS
SHOWN_COUNT = 3  # so many squares of one colour have their number written upon them
GAP = 0.16  # of a square's width, between it and the next


@dataclass(frozen=True)
class Label:
    """A label of the model, how sure it was, and our own."""

    confidence: float
    label: str
    ours: str

    @property
    def is_right(self) -> bool:
        return self.label == self.ours


def field(rows: Sequence[object], before: Collection, now: Collection) -> chart.Picture:
    """Draw a square for each row of a file: answered by an earlier run, by this one, or not yet.

    Args:
        rows: the ids of all rows, in the file's order.
        before: ids that had an answer when this run began.
        now: ids that have one now.
    """
    looks: dict[str, list[tuple[float, float]]] = {style.SKY: [], style.GREEN: [], style.FREE: []}
    for number, row in enumerate(rows):
        colour = style.FREE
        if row in now:
            colour = style.SKY if row in before else style.GREEN
        line, column = divmod(number, COLUMNS)
        looks[colour].append((column * SIDE, 28 + line * SIDE))
    names = {style.GREEN: "answered by this run", style.FREE: "no answer on disk yet"}
    if before:
        names = {style.SKY: "on disk before this run", **names}
    body, x, sentences = "", 0.0, []
    for colour, name in names.items():
        sentence = f"{len(looks[colour])} {name}"
        body += chart.box(x, 5, 12, 12, colour) + chart.text(x + 18, 15, sentence)
        sentences.append(sentence)
        x += 205
    for colour, places in looks.items():
        body += _squares(places, SIDE, SIDE, colour)
    height = 28 + SIDE * -(-len(rows) // COLUMNS)
    description = f"{len(rows)} rows: {', '.join(sentences)}."
    return chart.Picture(body, WIDTH, round(height), description)


def rehearsals(tables: Mapping[str, Sequence[Label]]) -> chart.Picture:
    """Draw a line of squares for each table, from the least sure label to the surest; mistakes are orange."""
    body, y, sentences = "", 0, []
    for name, labels in tables.items():
        right = sum(label.is_right for label in labels)
        mean = sum(label.confidence for label in labels) / len(labels)
        sentence = f"{right} of {len(labels)} labels are right; mean confidence {mean:.2f}"
        body += chart.text(0, y + 18, f"{name}: {sentence}", size=13, bold=True)
        width = WIDTH / len(labels)
        for number, label in enumerate(labels):
            colour, title = _look(label)
            square = chart.box(number * width, y + 28, width * (1 - GAP), 22, colour)
            body += f"<g><title>{escape(title)}</title>{square}</g>"
        y += 64
        sentences.append(f"{name}: {sentence}.")
    body += chart.text(0, y + 4, "← least sure", fill=style.MUTED)
    body += _legend(WIDTH / 2 - 80, y - 6)
    body += chart.text(WIDTH, y + 4, "surest →", anchor="end", fill=style.MUTED)
    return chart.Picture(body, WIDTH, y + 10, " ".join(sentences))


def tenths(labels: Sequence[Label]) -> chart.Picture:
    """Draw all labels in ten lines, the least sure above; mistakes are orange, and are counted beside."""
    bounds = [round(len(labels) * tenth / 10) for tenth in range(11)]
    longest = max(bounds[1], len(labels) - bounds[9])
    left, right = 78, WIDTH - 70
    width = (right - left) / max(longest, 1)
    names = ("least sure", *[""] * 8, "surest")
    body, places, counts = _legend(left, 4), {style.GREY: [], style.ORANGE: []}, []
    for line, name in enumerate(names):
        part = labels[bounds[line] : bounds[line + 1]]
        y = 28 + line * 18
        for number, label in enumerate(part):
            colour, _ = _look(label)
            places[colour].append((left + number * width, y))
        wrong = sum(not label.is_right for label in part)
        counts.append(str(wrong))
        body += chart.text(left - 10, y + 11, name, anchor="end")
        body += chart.text(WIDTH, y + 11, f"{wrong} wrong", anchor="end", bold=line == 0)
    for colour, corners in places.items():
        body += _squares(corners, width, 14, colour)
    description = (
        f"Wrong labels in each tenth, from the least sure to the surest: {', '.join(counts)}."
    )
    return chart.Picture(body, WIDTH, 28 + 10 * 18, description)


def draws(counts: Mapping[str, Mapping[str, int]]) -> chart.Picture:
    """Draw a line of squares for each setting, a square for each answer, in the colour of its label.

    counts: of each setting label → how often it came, with the same labels in the same order.
    """
    labels = list(next(iter(counts.values())))
    colours = dict(zip(labels, style.CYCLE, strict=False))
    left = 104
    body, y, sentences = "", 4, []
    for name, of_one in counts.items():
        width = (WIDTH - left) / sum(of_one.values())
        body += chart.text(0, y + 16, name)
        number = 0
        for label, count in of_one.items():
            places = [(left + place * width, y) for place in range(number, number + count)]
            body += _squares(places, width, 24, colours.get(label, style.FREE))
            if count >= SHOWN_COUNT:
                middle = left + (number + (count - GAP) / 2) * width
                ink = "#fff" if colours.get(label) == style.BLUE else "#000"
                body += chart.text(middle, y + 14, str(count), anchor="middle", fill=ink, bold=True)
            number += count
        y += 28
        came = ", ".join(f"{label} {count}" for label, count in of_one.items() if count)
        sentences.append(f"{name}: {came}.")
    for number, label in enumerate(labels):
        line, column = divmod(number, 5)
        x = left + column * (WIDTH - left) / 5
        body += chart.box(x, y + 8 + 20 * line, 12, 12, colours.get(label, style.FREE))
        body += chart.text(x + 18, y + 18 + 20 * line, label)
    height = y + 8 + 20 * (1 + (len(labels) - 1) // 5)
    return chart.Picture(body, WIDTH, height, " ".join(sentences))


def _look(label: Label) -> tuple[str, str]:
    """Return a label's colour, and its words for the mouse."""
    if label.is_right:
        return style.GREY, f"{label.confidence:.2f} {label.label}"
    return style.ORANGE, f"{label.confidence:.2f} {label.label} (ours: {label.ours})"


def _legend(x: float, y: float) -> str:
    mistake = chart.box(x, y, 12, 12, style.ORANGE) + chart.text(x + 18, y + 10, "a mistake")
    x += 100
    return mistake + chart.box(x, y, 12, 12, style.GREY) + chart.text(x + 18, y + 10, "right")


def _squares(
    corners: Iterable[tuple[float, float]], width: float, height: float, colour: str
) -> str:
    """Return equal rectangles as one path: thousands stay small."""
    w, h = width * (1 - GAP), height * (1 - GAP)
    d = "".join(f"M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z" for x, y in corners)
    return f'<path d="{d}" fill="{colour}"/>'

"""Watch a server load: a recorded log, played line by line, with the stages of a start and the figures so far."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import ipywidgets as widgets

from workshop.course import recordings
from workshop.course.html import Html, bar, between, bold, div, muted, panel, tag, tiles
from workshop.course.widgets.controls import Explorer, choice, in_a_row, whole
from workshop.engine.log import STAGES, Reader
from workshop.errors import BadInput

STEP_MS = 250
RECORDED = {
    "70b": "llama-3.1-70b_tp4_h200.log",
    "405b-fp8": "llama-3.1-405b-fp8_tp4_h200.log",
    "teaching-model": "tiny_cpu_server.log",
}
STEPS = 60  # positions of the slider
LINES_SHOWN = 5


@dataclass(frozen=True)
class Moment:
    """What is known after so many lines of a log."""

    clock: str
    stage: str
    fraction: float
    message: str
    shards: tuple[int, int]
    weights_gib: float | None
    available_kv_gib: float | None
    kv_cache_tokens: int | None
    words: tuple[str, ...]


@lru_cache(maxsize=8)
def recorded_text(name: str) -> str:
    """Return a recorded log of the course (70b, 405b-fp8 or teaching-model) up to where its engine is ready."""
    if name not in RECORDED:
        raise BadInput(
            f"There is no recorded start of {name!r}.", f"There are: {', '.join(RECORDED)}."
        )
    reader, kept = Reader(), []
    for line in (
        (recordings.DATA / "logs" / RECORDED[name]).read_text(encoding="utf-8").splitlines()
    ):
        kept.append(line)
        reader.feed(line + "\n")
        if reader.running:
            break
    return "\n".join(kept)


@lru_cache(maxsize=8)
def moments(text: str, steps: int = STEPS) -> tuple[Moment, ...]:
    """Return what is known at `steps` + 1 places of a log, from its first line to its last; BadInput if it is empty."""
    lines = text.splitlines()
    if not lines:
        raise BadInput("The log is empty.", "Give the text of a vLLM log.")
    reader, found = Reader(), []
    ends = [round(len(lines) * step / steps) for step in range(steps + 1)]
    for at, until in pairwise([0, *ends]):
        if until > at:
            reader.feed("\n".join(lines[at:until]) + "\n")
        log, now = reader.log, (reader.stage, reader.fraction, reader.message)
        # an offline engine opens no port: its start ends here
        if log.engine_ready and not log.server:
            now = ("ready", 1.0, "the engine is ready")
        shards, clock = (log.shards_loaded, log.shards_total), (log.last or "").split(" ")[-1]
        sizes = (log.weights_gib, log.available_kv_gib, log.kv_cache_tokens)
        words = tuple(line[:150] for line in lines[max(0, until - LINES_SHOWN) : until])
        found.append(Moment(clock, *now, shards, *sizes, words))
    return tuple(found)


def picture(moment: Moment) -> Html:
    """Return the bar with the stages of a start, the figures so far, and the last lines, one row each."""
    percent = round(100 * moment.fraction)
    marks = [
        tag("i", cls="at", title=name, style=f"left:{100 * at:.0f}%")
        for name, at in STAGES.items()
        if 0 < at < 1
    ]
    filled = bar(
        [("good" if percent == 100 else "blue", percent)], *marks, label=moment.stage, now=percent
    )
    stages = [tag("b", name, cls="ink-text") if name == moment.stage else name for name in STAGES]
    head = (
        bold(f"{percent} %"),
        f" {moment.message[:110]}",
        filled,
        muted(*between(" → ", stages)),
    )
    shown = moment.words or ("Press ▶ to play the log, or move the slider.",)
    # what is too long for a row is in its title
    lines = (div(line, cls="cut", title=line) for line in shown)
    done, total = moment.shards
    figures = (
        (moment.clock or "–", "clock"),
        (f"{done} of {total}" if total else "–", "shards"),
        (f"{moment.weights_gib:.2f} GiB" if moment.weights_gib else "–", "weights a GPU"),
        (
            f"{moment.available_kv_gib:.2f} GiB" if moment.available_kv_gib else "–",
            "left for KV cache a GPU",
        ),
        (f"{moment.kv_cache_tokens:,} tokens" if moment.kv_cache_tokens else "–", "KV cache"),
    )
    return panel(*head, tiles(figures, columns=5), div(*lines, cls="log fixed"))


class LoadingView(Explorer[Moment]):
    """A recorded start of `vllm serve`, to play or to drag through; what is known at each moment is `moments`."""

    def __init__(self, name: str = "70b"):
        self.model = choice("recorded start of", RECORDED, name)
        self.play = widgets.Play(value=0, max=STEPS, interval=STEP_MS, tooltip="Play the log")
        self.place = whole("place in the log", 0, 0, STEPS, readout=False, width="420px")
        widgets.link((self.play, "value"), (self.place, "value"))
        super().__init__({"model": self.model, "place": self.place}, max_width=None)

    def arranged(self) -> tuple[widgets.Widget, ...]:
        return in_a_row(self.model, self.play, self.place), self.picture

    def compute(self) -> Moment:
        return moments(recorded_text(self.model.value))[self.place.value]

    def picture_of(self, result: Moment) -> Html:
        return picture(result)

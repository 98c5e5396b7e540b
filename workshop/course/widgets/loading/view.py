"""Watch a server load: a recorded log, played line by line, with the stages of a start.

The figures that the log has given so far stand beside it, and the memory of the GPU fills with them.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import ipywidgets as widgets
from inference_planner import load_gpu

from workshop.course.drawing.html import (
    Html,
    bar,
    between,
    bold,
    div,
    legend,
    muted,
    panel,
    tag,
    tiles,
)
from workshop.course.topics import recorded_data
from workshop.course.widgets.controls import Explorer, choice, in_a_row, whole
from workshop.engine.log import STAGES, Reader
from workshop.errors import BadInput

STEP_MS = 250
RECORDED = {
    "8b": "llama-3.1-8b_vllm-0.32.0_h100.log",
    "70b": "llama-3.1-70b_tp4_h200.log",
    "405b-fp8": "llama-3.1-405b-fp8_tp4_h200.log",
    "teaching-model": "tiny_cpu_server.log",
}
STEPS = 60  # positions of the slider
LINES_SHOWN = 5
PROCESS = re.compile(r"^\(\w+ pid=\d+\) INFO \d\d-\d\d ")  # which process wrote a line, and the day
# A line of a progress bar, which a terminal writes over the one before.
PROGRESS = re.compile(r"\d+%\|")
PROGRESS_LINES_A_STEP = 10


@dataclass(frozen=True)
class Moment:
    """The state of a start after so many lines of its log."""

    clock: str
    stage: str
    fraction: float
    message: str
    shards: tuple[int, int]
    weights_gib: float | None
    available_kv_gib: float | None
    kv_cache_tokens: int | None
    lines: tuple[str, ...]  # the last ones


@lru_cache(maxsize=8)
def recorded_text(name: str) -> str:
    """Return a recorded log of the course up to the line where its engine is ready.

    `name` is 8b, 70b, 405b-fp8 or teaching-model.
    """
    if name not in RECORDED:
        offered = f"There are: {', '.join(RECORDED)}."
        raise BadInput(f"There is no recorded start of {name!r}.", offered)
    text = (recorded_data.DATA / "logs" / RECORDED[name]).read_text(encoding="utf-8")
    reader = Reader()
    lines = []
    for line in text.splitlines():
        lines.append(line)
        reader.feed(line + "\n")
        if reader.running:
            break
    return "\n".join(lines)


@lru_cache(maxsize=8)
def moments(text: str, steps: int = STEPS) -> tuple[Moment, ...]:
    """Return what is known at `steps` + 1 places of a log, from its first line to its last.

    Raises:
        BadInput: the log is empty.
    """
    lines = text.splitlines()
    if not lines:
        raise BadInput("The log is empty.", "Give the text of a vLLM log.")
    reader = Reader()
    moments = []
    read = 0  # lines so far
    stops = _stops(lines)
    for step in range(steps + 1):
        until = stops[round((len(stops) - 1) * step / steps)]
        if until > read:
            reader.feed("\n".join(lines[read:until]) + "\n")
            read = until
        last_lines = lines[max(0, until - LINES_SHOWN) : until]
        moments.append(_moment(reader, last_lines))
    return tuple(moments)


def _stops(lines: list[str]) -> list[int]:
    """Return the numbers of lines at which the player may stop: few of a progress bar, all others."""
    stops = [0]
    for number, line in enumerate(lines, 1):
        is_skipped = PROGRESS.search(line) and number % PROGRESS_LINES_A_STEP
        if not is_skipped or number == len(lines):
            stops.append(number)
    return stops


@lru_cache(maxsize=8)
def gpu_of(name: str) -> tuple[str, float] | None:
    """Return the GPU of a recorded start: its title and its memory in GiB; None for a CPU."""
    gpu = recorded_data.read("logs/index.json")["logs"][RECORDED[name]]["gpu"]
    if gpu is None:
        return None
    card = load_gpu(gpu)
    return card.title, card.engine_gib


def _moment(reader: Reader, last_lines: list[str]) -> Moment:
    """Return what a reader of a log knows now."""
    log = reader.log
    message = reader.message
    if log.engine_ready and not log.server:
        message = (
            "the engine is ready; a server would now begin to answer (this recording had none)"
        )
    return Moment(
        clock=(log.last or "").split(" ")[-1],
        stage=reader.stage,
        fraction=reader.fraction,
        message=message,
        shards=(log.shards_loaded, log.shards_total),
        weights_gib=log.weights_gib,
        available_kv_gib=log.available_kv_gib,
        kv_cache_tokens=log.kv_cache_tokens,
        lines=tuple(PROCESS.sub("", line)[:150] for line in last_lines),
    )


def picture(moment: Moment, gpu: tuple[str, float] | None = None) -> Html:
    """Return the bar with the stages of a start, the figures so far, and the log's last lines.

    With a GPU (its title and its GiB) its memory is a second bar, which fills as the log says.
    """
    percent = round(100 * moment.fraction)
    marks, stages = [], []
    for name, at in STAGES.items():
        stage: object = name
        if name == moment.stage:
            stage = tag("b", name, cls="ink-text")
        stages.append(stage)
        if 0 < at < 1:
            marks.append(tag("i", cls="at", title=name, style=f"left:{100 * at:.0f}%"))
    colour = "blue"
    if percent == 100:
        colour = "good"
    filled = bar([(colour, percent)], *marks, label=moment.stage, now=percent)
    lines = []
    for line in moment.lines or ("Press ▶ to play the log, or move the slider.",):
        lines.append(div(line, cls="cut", title=line))  # the title has what is too long for a row
    return panel(
        bold(f"{percent} %"),
        f" {moment.message[:110]}",
        filled,
        muted(*between(" → ", stages)),
        _memory(moment, gpu),
        tiles(_figures(moment), columns=5),
        div(*lines, cls="log fixed"),
    )


def _memory(moment: Moment, gpu: tuple[str, float] | None) -> Html:
    """Return one GPU's memory as a bar, with what the log has reported so far."""
    if gpu is None:
        return Html("")
    title, size_gib = gpu
    weights, kv_cache = moment.weights_gib or 0.0, moment.available_kv_gib or 0.0
    parts = [("weights", "weights", weights), ("kv", "KV cache", kv_cache)]
    rest = "free"
    if kv_cache:
        rest = "work space, and what is not for vLLM"
    parts.append(("empty", rest, size_gib - weights - kv_cache))
    filled = bar(
        [(colour, 100 * size / size_gib) for colour, _, size in parts],
        label=f"memory of one {title}",
    )
    keys = [(f"bg-{colour} edge", f"{name} {size:.1f} GiB") for colour, name, size in parts if size]
    return div(muted(f"memory of one {title}"), filled, legend(keys), cls="gap")


def _figures(moment: Moment) -> tuple[tuple[str, str], ...]:
    """Return the figures that the log has said so far, each with its meaning."""
    weights, kv_cache, tokens = "–", "–", "–"
    done, total = moment.shards
    if moment.weights_gib:
        weights = f"{moment.weights_gib:.2f} GiB"
    if moment.available_kv_gib:
        kv_cache = f"{moment.available_kv_gib:.2f} GiB"
    if moment.kv_cache_tokens:
        tokens = f"{moment.kv_cache_tokens:,}"
    shards = ()
    if total:
        shards = ((f"{done} of {total}", "shards"),)
    return (
        (moment.clock or "–", "clock"),
        *shards,
        (weights, "weights per GPU"),
        (kv_cache, "left for KV cache per GPU"),
        (tokens, "tokens of KV cache"),
    )


class LoadingView(Explorer[Moment]):
    """A recorded start of `vllm serve`, to play or to drag through.

    What is known at each moment is `moments`.
    """

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
        return picture(result, gpu_of(self.model.value))

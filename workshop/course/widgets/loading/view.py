"""Watch a server load: a recorded log, played line by line, with the stages of a start.

The figures that the log has given so far stand beside it, and the memory of the GPU fills with them.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
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
from workshop.engine.log import Reader
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
DATE = re.compile(r"(\d\d-\d\d \d\d:\d\d:\d\d) \[\S+\] ")
STAGE_ENDS = (  # the line that ends a stage of a start, its name, and what it puts into memory
    (r"(?:Model loading|Loading weights) took", "weights", "weights"),
    (r"torch\.compile took", "compiling", ""),
    (r"KV cache size:", "profiling", "KV cache"),
    (r"init engine .* took", "warming up and graphs", ""),
)
READY = "ready"


@dataclass(frozen=True)
class LogStage:
    """A stage of a start: the number of the line that ends it, and its seconds in the log."""

    name: str
    line: int
    begin_s: float
    end_s: float
    filled_with: str  # what is in memory when it ends


@dataclass(frozen=True)
class Moment:
    """The state of a start after so many lines of its log."""

    clock: str
    seconds: float  # since the first dated line
    stage: str
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
def stages(text: str) -> tuple[LogStage, ...]:
    """Return the stages of a start by its log, in their order; those that the log has not are left out.

    Raises:
        BadInput: no line has a date.
    """
    lines = text.splitlines()
    seconds = _seconds(lines)
    ends: list[LogStage] = []
    begin = 0.0
    for pattern, name, filled_with in STAGE_ENDS:
        for number, line in enumerate(lines, 1):
            if re.search(pattern, line):
                ends.append(LogStage(name, number, begin, seconds[number - 1], filled_with))
                begin = seconds[number - 1]
                break
    return tuple(ends)


def _seconds(lines: Sequence[str]) -> list[float]:
    """Return for each line the seconds from the first dated line to the last one so far."""
    first, now, seconds = None, 0.0, []
    for line in lines:
        if match := DATE.search(line):
            # A log has no year. 2028 has a 29 February, so every date exists in it.
            time = datetime.strptime(f"2028-{match[1]}", "%Y-%m-%d %H:%M:%S")
            first = first or time
            now = (time - first).total_seconds()
        seconds.append(now)
    if first is None:
        raise BadInput("No line of the log has a date.", "Give the log of vLLM itself.")
    return seconds


@lru_cache(maxsize=8)
def moments(text: str, steps: int = STEPS) -> tuple[Moment, ...]:
    """Return what is known at `steps` + 1 places of a log, from its first line to its last.

    Raises:
        BadInput: no line has a date.
    """
    lines = text.splitlines()
    seconds, ends = _seconds(lines), stages(text)
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
        stage = next((stage.name for stage in ends if stage.line > until), READY)
        moments.append(_moment(reader, seconds[until - 1] if until else 0.0, stage, last_lines))
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


def _moment(reader: Reader, seconds: float, stage: str, last_lines: list[str]) -> Moment:
    """Return what a reader of a log knows now."""
    log = reader.log
    message = reader.message
    if log.engine_ready and not log.server:
        message = (
            "the engine is ready; a server would now begin to answer (this recording had none)"
        )
    return Moment(
        clock=(log.last or "").split(" ")[-1],
        seconds=seconds,
        stage=stage,
        message=message,
        shards=(log.shards_loaded, log.shards_total),
        weights_gib=log.weights_gib,
        available_kv_gib=log.available_kv_gib,
        kv_cache_tokens=log.kv_cache_tokens,
        lines=tuple(PROCESS.sub("", line)[:150] for line in last_lines),
    )


def picture(
    moment: Moment, ends: Sequence[LogStage] = (), gpu: tuple[str, float] | None = None
) -> Html:
    """Return the seconds of a start as a bar with its stages, the figures so far, the last lines.

    With a GPU (its title and its GiB) its memory is a second bar, which fills as the log says.
    """
    total = ends[-1].end_s if ends else moment.seconds
    percent = 100 * min(1.0, moment.seconds / total) if total else 100.0 * (moment.stage == READY)
    marks, names = [], []
    for stage in ends:
        name = stage.name
        names.append(tag("b", name, cls="ink-text") if name == moment.stage else name)
        if stage.end_s < total:
            left = 100 * stage.end_s / total
            title = f"the end of: {name}"
            marks.append(tag("i", cls="at", title=title, style=f"left:{left:.1f}%"))
    colour = "blue"
    if moment.stage == READY:
        colour = "good"
    filled = bar([(colour, percent)], *marks, label=moment.stage, now=percent)
    lines = []
    for line in moment.lines or ("Press ▶ to play the log, or move the slider.",):
        lines.append(div(line, cls="cut", title=line))  # the title has what is too long for a row
    return panel(
        bold(f"{moment.seconds:.0f} of {total:.0f} s"),
        f" {moment.message[:110]}",
        filled,
        muted(*between(" → ", names)),
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
        name = self.model.value
        return picture(result, stages(recorded_text(name)), gpu_of(name))

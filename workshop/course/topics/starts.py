"""Draw a start of vLLM from its log: its seconds, its memory beside the plan, where it failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workshop.course.drawing import chart
from workshop.course.widgets import style

WIDTH = 640  # of each drawing, in its own units
LEFT = 62  # names and numbers stand to the left of this


@dataclass(frozen=True)
class StartStage:
    """A stage of a start, and what it has put into the GPU's memory when it ends."""

    name: str
    seconds: float
    filled_with: str = ""  # the name of what fills memory
    gib: float = 0.0


@dataclass(frozen=True)
class StartMemory:
    """The parts of one GPU's memory in GiB, and how many tokens its KV cache holds."""

    weights: float
    work_space: float
    kv_cache: float
    tokens: float


@dataclass(frozen=True)
class FailedLog:
    """A log of a failed start: how many lines it has, and which of them names the cause."""

    lines: int
    cause: int


def timeline(stages: Sequence[StartStage], gpu_gib: float) -> chart.Picture:
    """Draw the stages of a start on one axis of seconds, and below it the memory that fills."""
    total = sum(stage.seconds for stage in stages)
    longest = max(stages, key=lambda stage: stage.seconds)
    axes = chart.Axes(LEFT, 82, WIDTH - 8, 202, x_end=total, y_end=gpu_gib)
    body = chart.text(0, 18, f"{total:.0f} seconds, stage by stage", size=13, bold=True)
    body += chart.box(axes.left, axes.top, axes.right - axes.left, 120, style.EMPTY)
    colours = iter((style.WEIGHTS, style.KV_CACHE))
    begin, filled_gib, ends, sentences = 0.0, 0.0, [0.0], []
    for stage in stages:
        end = begin + stage.seconds
        left, width = axes.x(begin), axes.x(end) - axes.x(begin)
        middle, is_longest = left + width / 2, stage is longest
        body += chart.text(middle, 40, stage.name, anchor="middle", bold=is_longest)
        fill = style.SKY if is_longest else style.FREE
        body += chart.box(left + 1, 46, width - 2, 22, fill)
        ink = "#000" if is_longest else style.TEXT
        body += chart.text(middle, 61, f"{stage.seconds:.0f} s", anchor="middle", fill=ink)
        if stage.gib:
            colour = next(colours)
            below, above = axes.y(filled_gib), axes.y(filled_gib + stage.gib)
            x = axes.x(end)
            body += chart.box(x, above, axes.right - x, below - above, colour, radius=0)
            ink = "#fff" if colour == style.WEIGHTS else "#000"
            name = f"{stage.filled_with} {stage.gib:.2f} GiB"
            body += chart.text(x + 10, (above + below) / 2 + 4, name, fill=ink)
            filled_gib += stage.gib
        sentences.append(f"{stage.name} {stage.seconds:.0f} s")
        ends.append(end)
        begin = end
    body += chart.text(axes.left + 10, axes.top + 20, "memory of the GPU", fill=style.MUTED)
    rest = f"work space, and what is not for vLLM {gpu_gib - filled_gib:.1f} GiB"
    body += chart.text(axes.right - 8, axes.top + 12, rest, anchor="end", size=11, fill=style.MUTED)
    body += axes.y_ticks([0, gpu_gib], lambda gib: f"{gib:.0f} GiB")
    body += axes.x_ticks(ends, lambda seconds: f"{seconds:.0f} s", inside=True)
    return chart.Picture(body, WIDTH, 224, f"{total:.0f} seconds: {', '.join(sentences)}.")


def beside(memories: Mapping[str, StartMemory], gpu_gib: float) -> chart.Picture:
    """Draw what fills one GPU, a bar for each source of the figures, on one scale."""
    axes = chart.Axes(LEFT + 22, 0, WIDTH - 8, 0, x_end=gpu_gib)
    body, y, sentences = "", 30, []
    for source, memory in memories.items():
        body += chart.text(axes.left - 8, y + 21, source, anchor="end", bold=True)
        parts = (
            (style.WEIGHTS, "#fff", f"weights {memory.weights:.1f}", memory.weights),
            (style.OVERHEAD, "#000", f"{memory.work_space:.1f}", memory.work_space),
            (style.KV_CACHE, "#000", f"KV cache {memory.kv_cache:.2f} GiB", memory.kv_cache),
        )
        begin = 0.0
        for colour, ink, name, gib in parts:
            left, right = axes.x(begin), axes.x(begin + gib)
            body += chart.box(left, y, right - left, 34, colour, radius=0)
            if colour == style.KV_CACHE:
                body += chart.text(left + 10, y + 21, name, fill=ink)
                tokens = f"{memory.tokens:,.0f} tokens"
                body += chart.text(right - 10, y + 21, tokens, anchor="end", fill=ink, bold=True)
            else:
                body += chart.text((left + right) / 2, y + 21, name, anchor="middle", fill=ink)
            begin += gib
        body += chart.box(axes.x(begin), y, axes.right - axes.x(begin), 34, style.FREE, radius=0)
        sentences.append(f"{source}: {', '.join(name for *_, name, _ in parts)}, {tokens}")
        y += 44
    body += chart.text(axes.x(memory.weights), 20, "work space", fill=style.MUTED)
    body += chart.text(axes.right, 20, "not for vLLM", anchor="end", fill=style.MUTED)
    return chart.Picture(body, WIDTH, y, f"GiB of one GPU. {'. '.join(sentences)}.")


def causes(logs: Mapping[str, FailedLog]) -> chart.Picture:
    """Draw failed logs as strips of one scale: the line that names the cause, and the last two."""
    longest = max(log.lines for log in logs.values())
    axes = chart.Axes(LEFT, 0, WIDTH - 150, 0, x_end=longest)
    body = chart.box(axes.left, 8, 5, 12, style.VERMILLION)
    body += chart.text(axes.left + 15, 18, "the line with the cause")
    body += chart.box(axes.left + 172, 8, 13, 12, style.GREY)
    body += chart.text(axes.left + 190, 18, "the last two lines, which you saw")
    y, sentences = 34, []
    for letter, log in logs.items():
        end = axes.x(log.lines)
        body += chart.text(axes.left - 10, y + 15, f"log {letter}", anchor="end", bold=True)
        body += chart.box(axes.left, y, end - axes.left, 20, style.EMPTY)
        body += chart.box(end - 13, y, 13, 20, style.GREY)
        body += chart.box(axes.x(log.cause) - 6, y - 2, 5, 24, style.VERMILLION)
        sentence = f"line {log.cause} of {log.lines}"
        body += chart.text(end + 8, y + 15, sentence)
        sentences.append(f"log {letter}: {sentence}")
        y += 29
    return chart.Picture(body, WIDTH, y, f"Where the cause stands. {', '.join(sentences)}.")

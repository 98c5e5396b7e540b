"""Watch a server load: a recorded log, played line by line, as `workshop slurm logs --follow` shows a live one."""

from __future__ import annotations

import html
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import ipywidgets as widgets

from workshop.engine.log import STAGES, Reader
from workshop.errors import BadInput
from workshop.learn.widgets import style

RECORDED = {"70b": "llama-3.1-70b_tp4_h200.log", "405b-fp8": "llama-3.1-405b-fp8_tp4_h200.log",
            "teaching-model": "tiny_cpu_server.log"}
STEPS = 60               # positions of the slider
LINES_SHOWN = 5
STEP_MS = 250


@dataclass(frozen=True)
class Moment:
    """What is known after so many lines of a log."""

    line: int
    lines: int
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
    """Return a recorded log of the course: 70b, 405b-fp8 or teaching-model."""
    if name not in RECORDED:
        raise BadInput(f"There is no recorded start of {name!r}.", f"There are: {', '.join(RECORDED)}.")
    return _start_of((files("workshop") / "data" / "logs" / RECORDED[name]).read_text(encoding="utf-8"))


def _start_of(text: str) -> str:
    """Return a log up to the moment when the engine is ready: what comes after is another story."""
    reader, kept = Reader(), []
    for line in text.splitlines():
        kept.append(line)
        reader.feed(line + "\n")
        if reader.ready or (reader.log.engine_ready and not reader.log.server):
            break
    return "\n".join(kept)


@lru_cache(maxsize=8)
def moments(text: str, steps: int = STEPS) -> tuple[Moment, ...]:
    """Return what is known at `steps` + 1 places of a log, from its first line to its last.

    Raises:
        BadInput: the text is empty.
    """
    lines = text.splitlines()
    if not lines:
        raise BadInput("The log is empty.", "Give the text of a vLLM log.")
    reader, found, at = Reader(), [], 0
    for step in range(steps + 1):
        until = round(len(lines) * step / steps)
        if until > at:
            reader.feed("\n".join(lines[at:until]) + "\n")
            at = until
        found.append(_moment(reader, at, lines))
    return tuple(found)


def _moment(reader: Reader, at: int, lines: list[str]) -> Moment:
    log = reader.log
    available = [rank.available_kv_gib for rank in log.ranks.values() if rank.available_kv_gib is not None]
    done = log.engine_ready and not log.server        # an offline engine opens no port: its start ends here
    return Moment(at, len(lines), (log.last or "").split(" ")[-1],
                  "ready" if done else reader.stage, 1.0 if done else reader.fraction,
                  "the engine is ready" if done else reader.message, (log.shards_loaded, log.shards_total),
                  log.weights_gib, min(available) if available else None, log.kv_cache_tokens,
                  tuple(line[:150] for line in lines[max(0, at - LINES_SHOWN):at]))


def picture(moment: Moment) -> str:
    """Return the HTML of one moment: the bar with the stages of a start, the figures so far, the last lines."""
    percent = round(100 * moment.fraction)
    names = list(STAGES)
    marks = "".join(
        f'<div title="{name}" style="position:absolute;left:{100 * begin:.0f}%;top:0;bottom:0;width:1px;'
        f'background:{style.PANEL}"></div>' for name, begin in STAGES.items() if 0 < begin < 1)
    bar = (f'<div role="progressbar" aria-valuenow="{percent}" aria-valuemin="0" aria-valuemax="100" '
           f'aria-label="{html.escape(moment.stage)}" style="position:relative;background:{style.FREE};height:16px;'
           f'border-radius:6px;overflow:hidden;margin:6px 0"><div style="height:100%;width:{percent}%;'
           f'background:{style.GOOD if percent == 100 else style.BLUE}"></div>{marks}</div>')
    steps = " → ".join(
        f'<b style="color:{style.TEXT}">{name}</b>' if name == moment.stage else name for name in names)
    return style.panel(
        f'<b>{percent} %</b> {html.escape(moment.message[:110])}{bar}'
        f'<div style="font-size:12px;color:{style.MUTED}">{steps}</div>{_figures(moment)}'
        f"{_words(moment)}")


def _words(moment: Moment) -> str:
    """The last lines, one row each; what is too long for a row is in its title."""
    shown = moment.words or ("Press ▶ to play the log, or move the slider.",)
    rows = "".join(f'<div title="{html.escape(line, quote=True)}" style="overflow:hidden;text-overflow:ellipsis;'
                   f'white-space:pre">{html.escape(line)}</div>' for line in shown)
    return (f'<div style="font-family:{style.MONO};font-size:11px;line-height:16px;height:{16 * LINES_SHOWN}px;'
            f'color:{style.MUTED};margin:8px 0 0;padding:6px 8px;border:1px solid {style.LINE};border-radius:6px">'
            f"{rows}</div>")


def _figures(moment: Moment) -> str:
    done, total = moment.shards
    cells = (("clock", moment.clock or "–"), ("shards", f"{done} of {total}" if total else "–"),
             ("weights a GPU", f"{moment.weights_gib:.2f} GiB" if moment.weights_gib else "–"),
             ("left for KV cache a GPU", f"{moment.available_kv_gib:.2f} GiB" if moment.available_kv_gib else "–"),
             ("KV cache", f"{moment.kv_cache_tokens:,} tokens" if moment.kv_cache_tokens else "–"))
    return '<div style="display:flex;flex-wrap:wrap;gap:4px 24px;margin:8px 0 0">' + "".join(
        f'<div><div style="font-size:11px;color:{style.MUTED}">{name}</div><b>{html.escape(value)}</b></div>'
        for name, value in cells) + "</div>"


class LoadingView(widgets.VBox):
    """View only; what is known at each moment is `moments`."""

    def __init__(self, name: str = "70b"):
        text = {"description_width": "initial"}
        self.model = widgets.Dropdown(options=list(RECORDED), value=name, description="recorded start of", style=text)
        self.play = widgets.Play(value=0, max=STEPS, interval=STEP_MS, tooltip="Play the log")
        self.place = widgets.IntSlider(value=0, max=STEPS, description="place in the log", style=text, readout=False,
                                       layout=widgets.Layout(width="420px"))
        widgets.link((self.play, "value"), (self.place, "value"))
        self.readout = widgets.HTML()
        self.model.observe(self._draw, "value")
        self.place.observe(self._draw, "value")
        super().__init__([widgets.HBox([self.model, self.play, self.place],
                                       layout=widgets.Layout(flex_flow="row wrap")), self.readout])
        self._draw()

    def _draw(self, _=None) -> None:
        self.readout.value = picture(moments(recorded_text(self.model.value))[self.place.value])

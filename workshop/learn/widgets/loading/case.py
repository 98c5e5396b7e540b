"""What is known at each moment of a start: a recorded log, read line by line, as a live one is followed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from workshop.engine.log import Reader
from workshop.errors import BadInput
from workshop.learn import recordings

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
        raise BadInput(f"There is no recorded start of {name!r}.", f"There are: {', '.join(RECORDED)}.")
    reader, kept = Reader(), []
    for line in (recordings.DATA / "logs" / RECORDED[name]).read_text(encoding="utf-8").splitlines():
        kept.append(line)
        reader.feed(line + "\n")
        if reader.ready or (reader.log.engine_ready and not reader.log.server):
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
        found.append(_moment(reader, lines[max(0, until - LINES_SHOWN) : until]))
    return tuple(found)


def _moment(reader: Reader, lines: list[str]) -> Moment:
    log, now = reader.log, (reader.stage, reader.fraction, reader.message)
    if log.engine_ready and not log.server:  # an offline engine opens no port: its start ends here
        now = ("ready", 1.0, "the engine is ready")
    available = [rank.available_kv_gib for rank in log.ranks.values() if rank.available_kv_gib is not None]
    shards, least = (log.shards_loaded, log.shards_total), min(available, default=None)
    words = tuple(line[:150] for line in lines)
    return Moment((log.last or "").split(" ")[-1], *now, shards, log.weights_gib, least, log.kv_cache_tokens, words)

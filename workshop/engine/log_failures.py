"""Known failures of vLLM: how the log says it, what it means in plain words, and the remedy. Pure.

The patterns are those of vLLM 0.6 to 0.32 and of torch, NCCL, Ray and the Hub's client below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# How much an error explains: a symptom ("engine core died") gives way to the error behind it.
SYMPTOM, UNEXPLAINED, KNOWN = 0, 1, 2


@dataclass(frozen=True)
class Failure:
    """The first real error of a log.

    what: one plain sentence; remedy: one sentence; line: vLLM's own words; key: the failure's short name;
    rank: SYMPTOM, UNEXPLAINED or KNOWN.
    """

    what: str
    remedy: str
    line: str
    key: str = ""
    rank: int = KNOWN


@dataclass(frozen=True)
class Known:
    """A row of the table; what and remedy may name the pattern's groups as {name}."""

    key: str
    pattern: re.Pattern[str]
    what: str | Callable[[re.Match[str]], str]
    remedy: str | Callable[[re.Match[str]], str]
    rank: int = KNOWN

    def explain(self, match: re.Match[str], line: str) -> Failure:
        groups = {name: value or "?" for name, value in match.groupdict().items()}
        what, remedy = (
            part(match) if callable(part) else part.format(**groups) for part in (self.what, self.remedy)
        )
        return Failure(what, remedy, line.strip()[:500], self.key, self.rank)


def _known(key: str, pattern: str, what, remedy, rank: int = KNOWN) -> Known:
    return Known(key, re.compile(pattern, re.IGNORECASE), what, remedy, rank)


TABLE: tuple[Known, ...] = (
    _known(
        "gpu-out-of-memory",
        r"CUDA out of memory|OutOfMemoryError|HIP out of memory|CUDA error: out of memory",
        "A GPU ran out of memory.",
        "Lower --gpu-memory-utilization or --max-num-seqs, add --enforce-eager, or spread the model over more "
        "GPUs with --tensor-parallel-size; `nvidia-smi` shows whether another process holds the memory.",
    ),
    _known(
        "engine-core-died",
        r"Engine core initialization failed|EngineDeadError|EngineCore encountered an issue|"
        r"Engine core proc \S+ died unexpectedly",
        "The engine process ended, and the API server with it.",
        "Look further up in the log for the first error; if there is none, the process was killed, most often "
        "because the host ran out of memory.",
        SYMPTOM,
    ),
)


def diagnose(text: str) -> Failure | None:
    """Return what a line means, if it is one of the known failures."""
    for known in TABLE:
        if match := known.pattern.search(text):
            return known.explain(match, text)
    return None

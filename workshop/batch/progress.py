"""The progress of a batch and its summary, for the terminal's bar, the widget and scripts."""

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from workshop.servers.host.energy import Energy

COMPLETE, INTERRUPTED, FAILED = "complete", "interrupted", "failed"
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: run it again
WINDOW_S = 10.0


@dataclass(frozen=True)
class Progress:
    """One look at a running batch; rates over the last 10 s, usage of the fullest KV cache."""

    rows: int
    done: int  # answered, in this run or before
    errors: int
    new: int  # answered in this run
    seconds: float
    rows_per_s: float
    generation_tokens_per_s: float
    in_flight: int
    limit: int
    running: int | None = None
    waiting: int | None = None
    kv_cache_usage: float | None = None
    message: str = ""

    @property
    def fraction(self) -> float:
        """The part of the rows that are answered or have failed, from 0 to 1."""
        if not self.rows:
            return 1.0
        return min(1.0, (self.done + self.errors) / self.rows)


@dataclass(frozen=True)
class Summary:
    """The result of a batch: its state and its counts."""

    # complete (every row has an answer, or a reason in the file of errors), interrupted, or failed
    state: str
    rows: int = 0  # of the input
    answered: int = 0  # of them, in the output
    new: int = 0  # of these, from this run
    errors: int = 0  # rows without an answer, with their reason in `errors_file`
    bad: int = 0  # rows that --skip-bad left out
    # answers in the output to rows that the input no longer has, or that read differently now
    superseded: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    output: Path = Path()
    errors_file: Path | None = None
    reason: str = ""
    # of all answers in the output that count, from earlier runs, too:
    finish_reasons: dict[str, int] = field(default_factory=dict)  # samples by how they ended
    retried: int = 0  # rows that this run answered again, because their answer was cut
    full: int = 0  # rows whose answer was cut, and whose context has no room for more tokens
    # of this machine's GPUs in this run; None if the model runs elsewhere
    energy: Energy | None = None

    @property
    def exit_code(self) -> int:
        """The command's exit code: 0 all answered, 1 not all, 75 interrupted, to be run again."""
        if self.state == INTERRUPTED:
            return EXIT_INTERRUPTED
        if self.state == COMPLETE and self.answered == self.rows - self.bad and not self.errors:
            return 0
        return 1

    def to_dict(self) -> dict:
        """Return the summary as JSON can hold it: paths are text."""
        values = asdict(self)
        values["output"] = str(self.output)
        values["errors_file"] = str(self.errors_file) if self.errors_file else None
        values["energy"] = self.energy.to_dict() if self.energy else None
        return values

    def __str__(self) -> str:
        now = f"{self.new:,} now, in {duration(self.seconds)}"
        if self.seconds and self.new:
            now += f", {self.completion_tokens / self.seconds:,.0f} tokens/s"
        parts = [f"{self.answered:,} of {self.rows:,} rows answered ({now})"]
        if self.errors:
            parts.append(f"{self.errors:,} without an answer: see {self.errors_file}")
        if self.bad:
            noun = "rows" if self.bad > 1 else "row"
            parts.append(f"{self.bad:,} bad {noun} left out: see {self.errors_file}")
        if self.superseded:
            parts.append(f"{self.superseded:,} answers to rows that read otherwise now")
        if self.retried:
            parts.append(f"{self.retried:,} rows answered again with more tokens")
        if self.full:
            parts.append(
                f"{self.full:,} rows fill the model's context, and cannot have more tokens"
            )
        if self.finish_reasons:
            counts = [f"{count:,} {reason}" for reason, count in self.finish_reasons.items()]
            parts.append(f"finish reasons: {', '.join(counts)}")
        if self.energy:
            parts.append(str(self.energy))
        if self.reason:
            parts.append(self.reason)
        return "; ".join(parts)


class Rate:
    """Rows and tokens per second over the last WINDOW_S."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])

    def at(self, rows: int, tokens: int) -> tuple[float, float]:
        """Add the present counts; return (rows per second, tokens per second)."""
        now = time.monotonic()
        self._seen.append((now, rows, tokens))
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW_S:
            self._seen.popleft()
        then, rows_then, tokens_then = self._seen[0]
        seconds = max(now - then, 1e-9)
        return (rows - rows_then) / seconds, (tokens - tokens_then) / seconds


def duration(seconds: float) -> str:
    """Return a duration as people write it: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    hours = int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s"


def summary_line(progress: Progress) -> str:
    """Return one line on the progress: rates, rows in flight, KV cache, time left."""
    rates = (
        f"{progress.rows_per_s:,.1f} rows/s",
        f"{progress.generation_tokens_per_s:,.0f} tokens/s",
    )
    parts = [*rates, f"{progress.in_flight} in flight"]
    if progress.kv_cache_usage is not None:
        parts.append(f"KV cache {progress.kv_cache_usage:.0%}")
    if progress.errors:
        parts.append(f"{progress.errors:,} errors")
    if progress.rows_per_s > 0 and progress.done < progress.rows:
        remaining_rows = progress.rows - progress.done - progress.errors
        parts.append(f"{duration(remaining_rows / progress.rows_per_s)} left")
    return " · ".join(filter(None, [*parts, progress.message]))

"""What a simulated load comes to: percentiles, goodput under an SLO, and what happened over time."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from workshop.errors import BadInput

MEASURES = {
    "ttft": "to the first token",
    "tpot": "a token, after the first",
    "itl": "between two tokens",
    "e2el": "to the end of the answer",
}
PERCENTILES = (50, 95, 99)
# that `--json` prints as they are
PLANNED = ("model", "gpu", "tensor_parallel_size", "pipeline_parallel_size", "basis", "command")
SERVERS = ("gpus", "replicas", "prefill_replicas", "slo", "over_time", "wall_s", "seconds", "steps")
FOUND = ("tokens_per_s", "goodput_per_s", "keeps_up", "kv_cache_usage_max")


def parse_slo(text: str | None) -> dict[str, float]:
    """Return the limits in ms: "ttft=500ms,tpot=0.05s" gives {"ttft": 500.0, "tpot": 50.0}."""
    limits = {}
    for part in text.replace(" ", "").split(",") if text else ():
        found = re.fullmatch(r"(ttft|tpot|e2el)=(\d+(?:\.\d+)?)(ms|s)", part)
        if not found or float(found[2]) <= 0 or found[1] in limits:
            remedy = "Write --slo ttft=500ms,tpot=50ms: of ttft, tpot and e2el, in ms or s."
            raise BadInput(f"{part!r} is not a limit.", remedy)
        limits[found[1]] = float(found[2]) * (1000 if found[3] == "s" else 1)
    return limits


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return p50, p95, p99 and mean; None where there are no values."""
    if len(values) < 2:
        only = values[0] if values else None
        return {**{f"p{p}": only for p in PERCENTILES}, "mean": only}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {**{f"p{p}": cuts[p - 1] for p in PERCENTILES}, "mean": statistics.fmean(values)}


@dataclass(slots=True)
class Outcome:
    """What became of one request; times as the client sees them. hit_tokens: of its prompt, in the prefix cache."""

    arrival_s: float
    prompt_tokens: int
    first_s: float = 0.0
    last_s: float = 0.0
    output_tokens: int = 0
    hit_tokens: int = 0
    preempted: int = 0

    @property
    def ttft_ms(self) -> float:
        return (self.first_s - self.arrival_s) * 1e3

    @property
    def tpot_ms(self) -> float | None:
        return (
            (self.last_s - self.first_s) / (self.output_tokens - 1) * 1e3
            if self.output_tokens > 1
            else None
        )

    @property
    def e2el_ms(self) -> float:
        return (self.last_s - self.arrival_s) * 1e3

    def meets(self, slo: dict[str, float]) -> bool:
        """True where no limit (ms) is exceeded."""
        return all((getattr(self, f"{name}_ms") or 0.0) <= limit for name, limit in slo.items())


@dataclass(frozen=True)
class Simulation:
    """The outcome of one load."""

    model: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpus: int
    replicas: int
    prefill_replicas: int
    basis: str  # of the plan: measured, exact, recorded or estimate
    command: str
    slo: dict[str, float]
    requests: list[Outcome] = field(repr=False)  # in order of arrival
    gaps_s: Sequence[float] = field(repr=False)
    steps: int
    kv_cache_usage_max: float
    wall_s: float
    over_time: dict[str, list] = field(repr=False)  # t_s, running, waiting, kv_cache_usage
    # Steps in a row that hold the most tokens, where somebody watches: begin, end (s), tokens of prompts, of answers
    busiest: list[Sequence[float]] = field(repr=False)

    @cached_property
    def seconds(self) -> float:
        return max(one.last_s for one in self.requests)

    @cached_property
    def tokens_per_s(self) -> float:
        return sum(one.output_tokens for one in self.requests) / self.seconds

    @cached_property
    def goodput_per_s(self) -> float | None:
        """Requests that met the SLO, a second; None without an SLO."""
        return self.slo_share * len(self.requests) / self.seconds if self.slo else None

    @cached_property
    def slo_share(self) -> float | None:
        """Share of the requests that met the SLO, from 0 to 1; None without an SLO."""
        return (
            sum(one.meets(self.slo) for one in self.requests) / len(self.requests)
            if self.slo
            else None
        )

    @cached_property
    def keeps_up(self) -> bool:
        """False where requests pile up: in the last quarter of the arrivals many more are unfinished than in the second."""
        last = max(one.arrival_s for one in self.requests)
        return (
            last == 0
            or self._unfinished(0.75 * last, last)
            <= 1.5 * self._unfinished(0.25 * last, 0.5 * last) + 5
        )

    def _unfinished(self, begin_s: float, end_s: float) -> float:
        """Return how many requests are waiting or running, in the mean over this time."""
        spans = (min(one.last_s, end_s) - max(one.arrival_s, begin_s) for one in self.requests)
        return sum(max(0.0, span) for span in spans) / (end_s - begin_s)

    def of(self, measure: str) -> dict[str, float | None]:
        """Return p50, p95, p99 and mean of ttft, tpot, itl or e2el, in ms."""
        if measure == "itl":
            return percentiles([gap * 1e3 for gap in self.gaps_s])
        values = (getattr(one, f"{measure}_ms") for one in self.requests)
        return percentiles([value for value in values if value is not None])

    def to_dict(self) -> dict:
        """Return plain data, as `workshop simulate --json` prints it."""
        sums = {
            name: sum(getattr(one, name) for one in self.requests)
            for name in ("prompt_tokens", "hit_tokens")
        }
        return {
            **{name: getattr(self, name) for name in (*PLANNED, *SERVERS, *FOUND)},
            **{f"{measure}_ms": self.of(measure) for measure in MEASURES},
            "requests": len(self.requests),
            "preempted": sum(one.preempted for one in self.requests),
            "prefix_hit_rate": sums["hit_tokens"] / sums["prompt_tokens"],
        }

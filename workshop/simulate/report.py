"""The result of a simulated load: percentiles, goodput under an SLO, and the state over time."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from inference_planner.ground.intervals import Interval

from workshop.errors import BadInput
from workshop.simulate.intervals import of_percentiles, of_rate

MEASURES = {
    "ttft": "to the first token",
    "tpot": "a token, after the first",
    "itl": "between two tokens",
    "e2el": "to the end of the answer",
}
PERCENTILES = (50, 95, 99)
# The fields that `--json` prints: of the plan, of the servers, of the results
PLANNED = ("model", "gpu", "tensor_parallel_size", "pipeline_parallel_size", "basis", "command")
SERVERS = ("gpus", "replicas", "prefill_replicas", "slo", "over_time", "wall_s", "seconds", "steps")
RESULTS = ("tokens_per_s", "goodput_per_s", "keeps_up", "kv_cache_usage_max")


def parse_slo(text: str | None) -> dict[str, float]:
    """Return the limits in ms: "ttft=500ms,tpot=0.05s" gives {"ttft": 500.0, "tpot": 50.0}.

    Raises BadInput: a part is no limit.
    """
    if not text:
        return {}
    limits = {}
    for part in text.replace(" ", "").split(","):
        match = re.fullmatch(r"(ttft|tpot|e2el)=(\d+(?:\.\d+)?)(ms|s)", part)
        if not match or float(match[2]) <= 0 or match[1] in limits:
            remedy = "Write --slo ttft=500ms,tpot=50ms: of ttft, tpot and e2el, in ms or s."
            raise BadInput(f"{part!r} is not a limit.", remedy)
        limit = float(match[2])
        if match[3] == "s":
            limit *= 1000
        limits[match[1]] = limit
    return limits


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Return p50, p95, p99 and mean; None where there are no values."""
    result: dict[str, float | None] = {}
    if len(values) < 2:
        only = values[0] if values else None
        for p in PERCENTILES:
            result[f"p{p}"] = only
        result["mean"] = only
        return result
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for p in PERCENTILES:
        result[f"p{p}"] = cuts[p - 1]
    result["mean"] = statistics.fmean(values)
    return result


@dataclass(slots=True)
class Outcome:
    """One served request as the client saw it; `hit_tokens` came from the prefix cache."""

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
        if self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1) * 1e3

    @property
    def e2el_ms(self) -> float:
        return (self.last_s - self.arrival_s) * 1e3

    def meets(self, slo: Mapping[str, float]) -> bool:
        """Return True if no limit (ms) is exceeded."""
        return all((getattr(self, f"{name}_ms") or 0.0) <= limit for name, limit in slo.items())


def percentiles_of_measure(outcomes: Sequence[Outcome], measure: str) -> dict[str, float | None]:
    """Return p50, p95, p99 and mean of ttft, tpot or e2el, in ms."""
    times_ms: list[float] = []
    for outcome in outcomes:
        time_ms = getattr(outcome, f"{measure}_ms")
        if time_ms is not None:  # an answer of one token has no tpot
            times_ms.append(time_ms)
    return percentiles(times_ms)


@dataclass(frozen=True)
class Simulation:
    """The result of one simulated load."""

    model: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpus: int
    replicas: int
    prefill_replicas: int
    basis: str  # of the plan: how far the case is from what was measured
    time_share: float  # share by which a step may take longer or shorter than its time in the plan
    prefill_share: float  # what a first token is less certain than a step
    command: str
    slo: dict[str, float]
    requests: list[Outcome] = field(repr=False)  # in order of arrival
    gaps_s: Sequence[float] = field(repr=False)
    steps: int
    kv_cache_usage_max: float
    wall_s: float
    over_time: dict[str, list] = field(repr=False)  # t_s, running, waiting, kv_cache_usage

    @cached_property
    def seconds(self) -> float:
        return max(request.last_s for request in self.requests)

    @cached_property
    def tokens_per_s(self) -> float:
        output_tokens = sum(request.output_tokens for request in self.requests)
        return output_tokens / self.seconds

    @property
    def tokens_per_s_interval(self) -> Interval:
        """The low and the high value of tokens_per_s."""
        return of_rate(self.tokens_per_s, self.seconds, self._last_arrival_s, self.time_share)

    @cached_property
    def _last_arrival_s(self) -> float:
        return max(request.arrival_s for request in self.requests)

    @cached_property
    def goodput_per_s(self) -> float | None:
        """The requests a second that met the SLO; None without an SLO."""
        if self.slo_share is None:
            return None
        return self.slo_share * len(self.requests) / self.seconds

    @cached_property
    def slo_share(self) -> float | None:
        """The share of the requests that met the SLO, from 0 to 1; None without an SLO."""
        if not self.slo:
            return None
        met = sum(request.meets(self.slo) for request in self.requests)
        return met / len(self.requests)

    @cached_property
    def keeps_up(self) -> bool:
        """Return False if many more requests are unfinished in the last quarter than the second."""
        last_s = self._last_arrival_s
        if last_s == 0:
            return True
        second_quarter = self._unfinished(0.25 * last_s, 0.5 * last_s)
        last_quarter = self._unfinished(0.75 * last_s, last_s)
        return last_quarter <= 1.5 * second_quarter + 5

    def _unfinished(self, begin_s: float, end_s: float) -> float:
        """Return how many requests wait or run, averaged over this time."""
        total_s = 0.0
        for request in self.requests:
            span_s = min(request.last_s, end_s) - max(request.arrival_s, begin_s)
            total_s += max(0.0, span_s)
        return total_s / (end_s - begin_s)

    def of(self, measure: str) -> dict[str, float | None]:
        """Return p50, p95, p99 and mean of ttft, tpot, itl or e2el, in ms."""
        if measure == "itl":
            return percentiles([gap * 1e3 for gap in self.gaps_s])
        return percentiles_of_measure(self.requests, measure)

    def figures(self, measure: str) -> dict[str, dict[str, float | None]]:
        """Return a measure's p50, p95, p99 and mean, by names such as "ttft_ms", "ttft_ms_low"."""
        values = self.of(measure)
        low, high = of_percentiles(measure, values, self.time_share, self.prefill_share)
        return {f"{measure}_ms": values, f"{measure}_ms_low": low, f"{measure}_ms_high": high}

    def to_dict(self) -> dict:
        """Return plain data, as `workshop simulate --json` prints it."""
        prompt_tokens = 0
        hit_tokens = 0
        preempted = 0
        for request in self.requests:
            prompt_tokens += request.prompt_tokens
            hit_tokens += request.hit_tokens
            preempted += request.preempted
        result: dict = {}
        for name in (*PLANNED, *SERVERS, *RESULTS):
            result[name] = getattr(self, name)
        tokens = self.tokens_per_s_interval
        result["tokens_per_s_low"] = tokens.low
        result["tokens_per_s_high"] = tokens.high
        for measure in MEASURES:
            result.update(self.figures(measure))
        result["requests"] = len(self.requests)
        result["preempted"] = preempted
        result["prefix_hit_rate"] = hit_tokens / prompt_tokens
        return result

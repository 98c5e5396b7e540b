"""Will a server hold a class? What was measured → figures, a verdict by stated criteria, advice.

Pure.

Names as `vllm bench serve` has them: ttft (time to first token), tpot (time per output token after
the first), itl (inter-token latency), e2el (end-to-end latency); percentiles interpolate linearly,
as there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field

from workshop.simulate.report import MEASURES, percentiles

PEAKS = ("most_running", "most_waiting", "most_kv_cache_usage")
# of a report, as they are in its JSON
SHOWN = (
    "learners",
    "model",
    "url",
    "errors",
    *PEAKS,
    "preemptions",
    "late",
    "not_reached",
    "stopped",
)
KV_CACHE_FULL = 0.9
BUSY_LAG_S = 0.5
MORE_MEMORY = (
    "give it more memory (--gpu-memory-utilization, --kv-cache-dtype fp8, more GPUs), "
    "or lower --max-model-len so that one learner can take less of it."
)
SECOND_SERVER = (
    "Start a second server (`workshop serve --name second`, or `workshop slurm submit`) "
    "and share one with each half of the class."
)


@dataclass(frozen=True)
class Criteria:
    """The longest times that a class accepts for 95 of 100 requests; no request may fail."""

    p95_ttft_s: float = 5.0
    p95_e2el_s: float = 30.0

    def __str__(self) -> str:
        return f"no error, p95 ttft ≤ {self.p95_ttft_s:g} s, p95 e2el ≤ {self.p95_e2el_s:g} s"


@dataclass(slots=True)
class Request:
    cell: str  # notebook and name of the cell
    sent_s: float  # since the class began
    e2el_s: float = 0.0
    # None: the answer came whole and had several tokens, so nobody could see its first
    ttft_s: float | None = None
    itl_s: list[float] = field(default_factory=list)  # between the tokens of one sequence
    prompt_tokens: int = 0
    completion_tokens: int = 0  # of all `n` sequences together
    n: int = 1
    error: str = ""  # why there is no answer

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first.

        None for an answer of fewer than two tokens, or where the time of the first token is
        unknown.
        """
        after_first = self.completion_tokens / self.n - 1
        if self.ttft_s is None or after_first <= 0:
            return None
        return (self.e2el_s - self.ttft_s) / after_first


@dataclass
class Report:
    learners: int
    seconds: float
    model: str
    url: str
    requests: list[Request] = field(default_factory=list)
    criteria: Criteria = field(default_factory=Criteria)
    every_s: float = 0.0
    left_out: Sequence[str] = ()  # cells that this server does not take
    late: int = 0  # cells that began late, because the one before had not ended
    not_reached: int = 0  # cells for which a learner had no time left
    untried: Sequence[str] = ()  # those for which nobody had
    client_lag_s: float = 0.0  # longest time for which the simulation itself had no turn
    stopped: str = ""  # why it ended before its time
    # what /metrics showed; None where the server has none
    most_running: int | None = None
    most_waiting: int | None = None
    most_kv_cache_usage: float | None = None
    preemptions: int | None = None

    @property
    def answered(self) -> list[Request]:
        return _answered(self.requests)

    @property
    def errors(self) -> dict[str, int]:
        """Reason → how often, most frequent first."""
        reasons: Counter[str] = Counter()
        for request in self.requests:
            if request.error:
                reasons[request.error] += 1
        return dict(reasons.most_common())

    def values_s(self, measure: str, requests: Iterable[Request] | None = None) -> list[float]:
        """Return all values of ttft, tpot, itl or e2el, in seconds."""
        values: list[float] = []
        if requests is None:
            requests = self.answered
        for request in requests:
            value = getattr(request, f"{measure}_s")
            if measure == "itl":
                values += value
            elif value is not None:
                values.append(value)
        return values

    def p95_s(self, measure: str, requests: Iterable[Request] | None = None) -> float | None:
        """Return the 95th percentile of ttft, tpot, itl or e2el in seconds; None without values."""
        return percentiles(self.values_s(measure, requests))["p95"]

    @property
    def output_tokens_per_s(self) -> float:
        if not self.seconds:
            return 0.0
        return sum(request.completion_tokens for request in self.answered) / self.seconds

    def failures(self) -> list[str]:
        """Return which criteria are not met; [] if the server holds."""
        if not self.requests:
            return ["nothing was asked"]
        failures = []
        failed = len(self.requests) - len(self.answered)
        if failed:
            failures.append(f"{failed:,} of {len(self.requests):,} requests failed")
        limits = {"ttft": self.criteria.p95_ttft_s, "e2el": self.criteria.p95_e2el_s}
        for measure, limit in limits.items():
            p95 = self.p95_s(measure)
            if p95 is not None and p95 > limit:
                failures.append(f"p95 {measure} is {p95:.1f} s, more than {limit:g} s")
        return failures

    @property
    def holds(self) -> bool:
        return not (self.failures() or self.stopped or self.untried)

    def __str__(self) -> str:
        learners = "1 learner"
        if self.learners != 1:
            learners = f"{self.learners} learners"
        load = f"{learners} asked {len(self.requests):,} times"
        if self.stopped:
            answers = f"{len(self.answered):,} answers came"
            return f"No verdict: {self.stopped}; until then {load}, {answers}."
        failures = self.failures()
        if failures:
            return f"It will not hold: {'; '.join(failures)} ({load})."
        if self.untried:
            nobody = f"in {self.seconds:.0f} s nobody came to {', '.join(self.untried)}"
            return f"No verdict: {nobody}; the rest holds ({load}). Give more --seconds."
        sentence = f"It will hold: {load}, no error; {self._times()}"
        slow = []
        for cell, p95 in self.slow_cells():
            slow.append(f"“{cell}” (first token within {p95:.0f} s)")
        if slow:
            sentence += f"; slow is {', '.join(slow)}"
        if self.not_reached:
            missed = "cells were too late for their learners: see with more --seconds"
            sentence += f"; {self.not_reached} {missed}"
        return sentence + "."

    def _times(self) -> str:
        """Return the 95th percentiles of a server that holds, in words."""
        ttft = self.p95_s("ttft")
        whole = f"their whole answer within {self.p95_s('e2el'):.1f} s"
        if ttft is None:
            return f"95 of 100 had {whole}"
        return f"95 of 100 saw their first token within {ttft:.1f} s and {whole}"

    def slow_cells(self) -> list[tuple[str, float]]:
        """Return the cells whose own p95 ttft is beyond the limit, in seconds.

        The class as a whole may still be within the limit.
        """
        slow = []
        for cell, _, _, _, p95_ttft, _ in self.rows():
            if p95_ttft and p95_ttft > self.criteria.p95_ttft_s:
                slow.append((cell, p95_ttft))
        return slow

    def rows(self) -> list[tuple[str, int, int, float | None, float | None, float | None]]:
        """Return a row for each kind of cell, in order.

        A row is (cell, requests, errors, p50 ttft, p95 ttft, p95 e2el), times in seconds.
        """
        by_cell: dict[str, list[Request]] = {}
        for request in self.requests:
            by_cell.setdefault(request.cell, []).append(request)
        rows = []
        for cell, requests in by_cell.items():
            answered = _answered(requests)
            ttft = percentiles(self.values_s("ttft", answered))
            p95_e2el = self.p95_s("e2el", answered)
            errors = len(requests) - len(answered)
            rows.append((cell, len(requests), errors, ttft["p50"], ttft["p95"], p95_e2el))
        return rows

    def advice(self) -> list[str]:
        """Return what to change where it does not hold, the most promising first."""
        if not self.requests or (self.stopped and not self.errors):
            return []
        errors = " ".join(self.errors)
        advice = []
        for symptom, remedy in _FOR_ERRORS:
            if symptom in errors:
                advice.append(remedy)
        too_slow = any(failure.startswith("p95") for failure in self.failures())
        if too_slow or self.slow_cells() or "no answer in" in errors:
            advice += self._for_slowness()
        if advice and self.client_lag_s > BUSY_LAG_S:
            advice.append(
                f"This machine itself was too busy for up to {self.client_lag_s:.1f} s: run the "
                "simulation on another machine than the server's, or trust the figures less."
            )
        return advice

    def _for_slowness(self) -> list[str]:
        advice = [SECOND_SERVER]
        usage = self.most_kv_cache_usage or 0
        if self.preemptions or usage >= KV_CACHE_FULL:
            peak = f"up to {usage or 1:.0%}, {self.preemptions or 0} preemptions"
            advice.insert(0, f"The KV cache was full ({peak}): {MORE_MEMORY}")
        elif self.most_waiting and self.most_running and self.most_waiting > self.most_running / 4:
            queue = f"Up to {self.most_waiting} sequences waited while {self.most_running} ran"
            queue += f" and the KV cache was at most {usage:.0%} full"
            advice.insert(0, f"{queue}: start the server with a higher --max-num-seqs.")
        slowest, *_ = max(self.rows(), key=lambda row: row[5] or 0)
        first = f"The slowest cell is {slowest}: let half of the class run it first"
        if "20 completions" in slowest:
            first += ", or with n=5 instead of 20 samples"
        advice.append(f"{first}.")
        return advice

    def to_dict(self) -> dict:
        """Return everything as plain data, with times in ms.

        The names are those of `vllm bench serve --save-result`.
        """
        result: dict[str, object] = {
            "holds": self.holds,
            "verdict": str(self),
            "criteria": asdict(self.criteria),
            "advice": self.advice(),
        }
        for name in SHOWN:
            result[name] = getattr(self, name)
        input_tokens, output_tokens = 0, 0
        for request in self.answered:
            input_tokens += request.prompt_tokens
            output_tokens += request.completion_tokens
        request_throughput = 0.0
        if self.seconds:
            request_throughput = round(len(self.answered) / self.seconds, 2)
        result |= {
            "duration": round(self.seconds, 2),
            "every_s": round(self.every_s, 2),
            "completed": len(self.answered),
            "total_input_tokens": input_tokens,
            "total_output_tokens": output_tokens,
            "output_throughput": round(self.output_tokens_per_s, 1),
            "request_throughput": request_throughput,
        }
        for measure in MEASURES:
            values = percentiles(self.values_s(measure))
            for q in ("p50", "p95"):
                seconds = values[q]
                time_ms = None
                if seconds is not None:
                    time_ms = round(1000 * seconds, 1)
                result[f"{q}_{measure}_ms"] = time_ms
        names = ("cell", "requests", "errors", "p50_ttft_s", "p95_ttft_s", "p95_e2el_s")
        cells = []
        for row in self.rows():
            cells.append(dict(zip(names, map(_rounded, row), strict=True)))
        result["cells"] = cells
        result["left_out"] = list(self.left_out)
        result["client_lag_s"] = round(self.client_lag_s, 3)
        return result


def _answered(requests: Iterable[Request]) -> list[Request]:
    """Return the requests that got an answer."""
    return [request for request in requests if not request.error]


# A part of an error → what to do about it.
_FOR_ERRORS = (
    (
        "no answer in",
        "Some requests took too long: fewer tokens an answer (--max-model-len caps them), "
        "fewer samples.",
    ),
    (
        "connection",
        "The server broke connections: `workshop servers` says whether it still runs, "
        "its log why not.",
    ),
    (
        "429",
        "The server refuses more requests: raise WORKSHOP_PER_LEARNER, "
        "or let learners send fewer at once.",
    ),
    (
        "500",
        "The engine failed: the last lines of the server's log say why "
        "(`workshop servers` names it).",
    ),
)


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return value

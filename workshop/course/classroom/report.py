"""Will a server hold a class? What was measured → figures, a verdict by stated criteria, advice. Pure.

Names as `vllm bench serve` has them: ttft (time to first token), tpot (time per output token after the first), itl
(inter-token latency), e2el (end-to-end latency); percentiles interpolate linearly, as there.
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
MORE_MEMORY = "give it more memory (--gpu-memory-utilization, --kv-cache-dtype fp8, more GPUs), or lower --max-model-len so that one learner can take less of it."
SECOND_SERVER = "Start a second server (`workshop serve --name second`, or `workshop slurm submit`) and share one with each half of the class."


@dataclass(frozen=True)
class Criteria:
    """What a class puts up with, in seconds, for 95 of 100 requests; no request may fail."""

    p95_ttft_s: float = 5.0
    p95_e2el_s: float = 30.0

    def __str__(self) -> str:
        return f"no error, p95 ttft ≤ {self.p95_ttft_s:g} s, p95 e2el ≤ {self.p95_e2el_s:g} s"


@dataclass(slots=True)
class Request:
    cell: str  # notebook and name of the cell
    sent_s: float  # since the class began
    e2el_s: float = 0.0
    ttft_s: float | None = (
        None  # None: the answer came whole and had several tokens, so nobody could see its first
    )
    itl_s: list[float] = field(default_factory=list)  # between the tokens of one sequence
    prompt_tokens: int = 0
    completion_tokens: int = 0  # of all `n` sequences together
    n: int = 1
    error: str = ""  # why there is no answer

    @property
    def tpot_s(self) -> float | None:
        """Seconds per token after the first; None with fewer than two, or where the first was not seen."""
        after_first = self.completion_tokens / self.n - 1
        return (
            None
            if self.ttft_s is None or after_first <= 0
            else (self.e2el_s - self.ttft_s) / after_first
        )


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
        return [one for one in self.requests if not one.error]

    @property
    def errors(self) -> dict[str, int]:
        """Reason → how often, most frequent first."""
        return dict(Counter(one.error for one in self.requests if one.error).most_common())

    def values_s(self, measure: str, requests: Iterable[Request] | None = None) -> list[float]:
        """Return all values of ttft, tpot, itl or e2el, in seconds."""
        found = [
            getattr(one, f"{measure}_s")
            for one in (self.answered if requests is None else requests)
        ]
        if measure == "itl":
            return [value for values in found for value in values]
        return [value for value in found if value is not None]

    @property
    def output_tokens_per_s(self) -> float:
        return (
            sum(one.completion_tokens for one in self.answered) / self.seconds
            if self.seconds
            else 0.0
        )

    def failures(self) -> list[str]:
        """Return which criteria are not met; [] if the server holds."""
        if not self.requests:
            return ["nothing was asked"]
        failed = len(self.requests) - len(self.answered)
        found = [f"{failed:,} of {len(self.requests):,} requests failed"] if failed else []
        for measure, allowed in (
            ("ttft", self.criteria.p95_ttft_s),
            ("e2el", self.criteria.p95_e2el_s),
        ):
            p95 = percentiles(self.values_s(measure))["p95"]
            if p95 is not None and p95 > allowed:
                found.append(f"p95 {measure} is {p95:.1f} s, more than {allowed:g} s")
        return found

    @property
    def holds(self) -> bool:
        return not (self.failures() or self.stopped or self.untried)

    def __str__(self) -> str:
        asked = f"{self.learners} learner{'s' * (self.learners != 1)} asked {len(self.requests):,} times"
        if self.stopped:
            return f"No verdict: {self.stopped}; until then {asked}, {len(self.answered):,} answers came."
        if failures := self.failures():
            return f"It will not hold: {'; '.join(failures)} ({asked})."
        if self.untried:
            return f"No verdict: in {self.seconds:.0f} s nobody came to {', '.join(self.untried)}; the rest holds ({asked}). Give more --seconds."
        ttft, e2el = (percentiles(self.values_s(measure))["p95"] for measure in ("ttft", "e2el"))
        seen = (
            f"95 of 100 saw their first token within {ttft:.1f} s and"
            if ttft is not None
            else "95 of 100 had"
        )
        slow = ", ".join(
            f"“{cell}” (first token within {p95:.0f} s)" for cell, p95 in self.slow_cells()
        )
        slow = f"; slow is {slow}" if slow else ""
        missed = "cells were too late for their learners: see with more --seconds"
        late = f"; {self.not_reached} {missed}" if self.not_reached else ""
        return f"It will hold: {asked}, no error; {seen} their whole answer within {e2el:.1f} s{slow}{late}."

    def slow_cells(self) -> list[tuple[str, float]]:
        """Return the cells whose own p95 ttft is beyond the limit, in seconds: a class may hold all the same."""
        return [
            (cell, p95)
            for cell, _, _, _, p95, _ in self.rows()
            if p95 and p95 > self.criteria.p95_ttft_s
        ]

    def rows(self) -> list[tuple[str, int, int, float | None, float | None, float | None]]:
        """Return (cell, requests, errors, p50 and p95 ttft, p95 e2el) for each kind of cell, in order."""
        found = []
        for cell in dict.fromkeys(one.cell for one in self.requests):
            all_of_it = [one for one in self.requests if one.cell == cell]
            good = [one for one in all_of_it if not one.error]
            ttft, e2el = (percentiles(self.values_s(measure, good)) for measure in ("ttft", "e2el"))
            shown = ttft["p50"], ttft["p95"], e2el["p95"]
            found.append((cell, len(all_of_it), len(all_of_it) - len(good), *shown))
        return found

    def advice(self) -> list[str]:
        """Return what to change where it does not hold, the most promising first."""
        if not self.requests or (self.stopped and not self.errors):
            return []
        found = [
            text for match, text in _FOR_ERRORS if any(match in error for error in self.errors)
        ]
        too_slow = [text for text in self.failures() if text.startswith("p95")]
        if too_slow or self.slow_cells() or any("no answer in" in error for error in self.errors):
            found += self._for_slowness()
        if found and self.client_lag_s > BUSY_LAG_S:
            lag = f"This machine itself was too busy for up to {self.client_lag_s:.1f} s"
            found.append(
                f"{lag}: run the simulation on another machine than the server's, or trust the figures less."
            )
        return found

    def _for_slowness(self) -> list[str]:
        found, usage = [SECOND_SERVER], self.most_kv_cache_usage or 0
        if self.preemptions or usage >= KV_CACHE_FULL:
            was = f"up to {usage or 1:.0%}, {self.preemptions or 0} preemptions"
            found.insert(0, f"The KV cache was full ({was}): {MORE_MEMORY}")
        elif self.most_waiting and self.most_running and self.most_waiting > self.most_running / 4:
            waited = f"Up to {self.most_waiting} sequences waited while {self.most_running} ran"
            waited += f" and the KV cache was at most {usage:.0%} full"
            found.insert(0, f"{waited}: start the server with a higher --max-num-seqs.")
        slowest = max(self.rows(), key=lambda row: row[5] or 0)
        fewer = " with n=5 instead of 20 samples" if "20 completions" in slowest[0] else ""
        found.append(
            f"The slowest cell is {slowest[0]}: let half of the class run it first{fewer and ', or' + fewer}."
        )
        return found

    def to_dict(self) -> dict:
        """Return everything as plain data; times in ms, named as `vllm bench serve --save-result` names them."""
        times = {measure: percentiles(self.values_s(measure)) for measure in MEASURES}
        figures: dict[str, float | None] = {}
        for measure, values in times.items():
            for q in ("p50", "p95"):
                seconds = values[q]
                figures[f"{q}_{measure}_ms"] = None if seconds is None else round(1000 * seconds, 1)
        names = ("cell", "requests", "errors", "p50_ttft_s", "p95_ttft_s", "p95_e2el_s")
        return {
            "holds": self.holds,
            "verdict": str(self),
            "criteria": asdict(self.criteria),
            "advice": self.advice(),
            **{name: getattr(self, name) for name in SHOWN},
            "duration": round(self.seconds, 2),
            "every_s": round(self.every_s, 2),
            "completed": len(self.answered),
            "total_input_tokens": sum(one.prompt_tokens for one in self.answered),
            "total_output_tokens": sum(one.completion_tokens for one in self.answered),
            "output_throughput": round(self.output_tokens_per_s, 1),
            "request_throughput": round(len(self.answered) / self.seconds, 2)
            if self.seconds
            else 0.0,
            **figures,
            "cells": [dict(zip(names, map(_rounded, row), strict=True)) for row in self.rows()],
            "left_out": list(self.left_out),
            "client_lag_s": round(self.client_lag_s, 3),
        }


_FOR_ERRORS = (
    (
        "no answer in",
        "Some requests took too long: fewer tokens an answer (--max-model-len caps them), fewer samples.",
    ),
    (
        "connection",
        "The server broke connections: `workshop servers` says whether it still runs, its log why not.",
    ),
    (
        "429",
        "The server refuses more requests: raise WORKSHOP_PER_LEARNER, or let learners send fewer at once.",
    ),
    (
        "500",
        "The engine failed: the last lines of the server's log say why (`workshop servers` names it).",
    ),
)


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value

"""Decide how many requests a server is sent at once."""

from dataclasses import dataclass, field

FIRST_LIMIT, LARGEST_LIMIT, SMALLEST_LIMIT = 32, 1024, 4  # requests at once
# A server that refuses up to this share of the requests is asked as fast as before: what it refuses
# is asked again soon.
TOLERATED_SHARE = 0.05
FEWEST_REFUSALS = 6  # … and so few refusals tell no share
ROUND = 100  # answers and refusals over which the share is taken, at least
RECOVERY_LOOKS = 8  # looks in which the pace comes back to what it was before a refusal


@dataclass
class Pace:
    """The number of requests that are sent at once, adjusted to the server's own metrics.

    It doubles while the server takes in all that it is sent, then grows slowly. It keeps a short
    queue waiting, so that the engine never lacks work, and no more. Preempted requests are
    computed twice: then it backs off.

    It is cut to three quarters, once a round trip, while the server refuses requests (429), and
    comes back step by step, as TCP does, when the refusals have ended.
    """

    limit: int = FIRST_LIMIT
    fixed: bool = False
    doubling: bool = True
    best_rows_per_s: float = 0.0
    recover_to: int = 0  # the limit before the refusals began; 0: nothing to recover
    _round: "Round" = field(default_factory=lambda: Round())

    def by_metrics(
        self, in_flight: int, running: int, waiting: int, kv_cache_usage: float, preempted: float
    ) -> None:
        """Adjust after one look at /metrics; `preempted` counts since the look before."""
        if self.fixed:
            return
        queue = max(4, running // 8)
        if preempted and kv_cache_usage > 0.5:
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 4 // 5), False
        elif waiting > 2 * queue:
            self.limit, self.doubling = (
                max(SMALLEST_LIMIT, min(self.limit, in_flight) - (waiting - queue)),
                False,
            )
        elif waiting <= queue and in_flight >= self.limit * 0.9 and kv_cache_usage < 0.95:
            self._grow()

    def by_rate(self, in_flight: int, rows_per_s: float) -> None:
        """Adjust where there are no metrics: more, as long as more comes back."""
        if self.fixed or in_flight < self.limit * 0.9:
            return
        if self.limit < self.recover_to:
            self.limit = min(
                self.recover_to, self.limit + max(1, self.recover_to // RECOVERY_LOOKS)
            )
            return
        self.recover_to = 0
        if rows_per_s > 1.1 * self.best_rows_per_s:
            self.best_rows_per_s = rows_per_s
            self._grow(slowly=1 / 4)  # so much more must show in the rate

    def answered(self) -> None:
        """Take note of an answer."""
        if not self.fixed:
            self._round.answers += 1
            self._end_round()

    def refused(self) -> None:
        """Take note that the server refused a request because it is busy."""
        if not self.fixed:
            self._round.refusals += 1
            self._end_round()

    def _end_round(self) -> None:
        now = self._round
        if now.wants_less and now.outcomes >= now.sent_before_cut:
            self.recover_to = max(self.recover_to, self.limit)
            # What is in flight was sent at the old pace; only what comes after it tells about the
            # new one.
            self._round = Round(sent_before_cut=self.limit)
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 3 // 4), False
            self.best_rows_per_s = 0.0
        elif now.outcomes >= max(self.limit, ROUND):
            self._round = Round()

    def _grow(self, slowly: float = 1 / 16) -> None:
        share = 1 if self.doubling else slowly
        self.limit = min(LARGEST_LIMIT, self.limit + max(1, int(self.limit * share)))


@dataclass
class Round:
    """The answers and refusals since the last decision."""

    answers: int = 0
    refusals: int = 0
    sent_before_cut: int = 0

    @property
    def outcomes(self) -> int:
        return self.answers + self.refusals

    @property
    def wants_less(self) -> bool:
        return self.refusals >= FEWEST_REFUSALS and self.refusals > TOLERATED_SHARE * self.outcomes

"""How many requests a server may have at once."""

from dataclasses import dataclass

FIRST_LIMIT, LARGEST_LIMIT, SMALLEST_LIMIT = 32, 1024, 4


@dataclass
class Pace:
    """How many requests at once, found by what the server says of itself.

    Doubles while the server takes in all that it is sent, then grows slowly; keeps a short queue waiting, so that the
    engine never lacks work, and no more. Preempted requests are computed twice: then it backs off.
    """

    limit: int = FIRST_LIMIT
    fixed: bool = False
    doubling: bool = True
    best_rows_per_s: float = 0.0

    def by_metrics(self, in_flight: int, running: int, waiting: int, kv_cache_usage: float, preempted: float) -> None:
        """Adjust after one look at /metrics; `preempted` counts since the look before."""
        if self.fixed:
            return
        queue = max(4, running // 8)
        if preempted and kv_cache_usage > 0.5:
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 4 // 5), False
        elif waiting > 2 * queue:
            self.limit, self.doubling = max(SMALLEST_LIMIT, min(self.limit, in_flight) - (waiting - queue)), False
        elif waiting <= queue and in_flight >= self.limit * 0.9 and kv_cache_usage < 0.95:
            self._grow()

    def by_rate(self, in_flight: int, rows_per_s: float) -> None:
        """Adjust where there are no metrics: more, as long as more comes back."""
        if self.fixed or in_flight < self.limit * 0.9:
            return
        if rows_per_s > 1.1 * self.best_rows_per_s:
            self.best_rows_per_s = rows_per_s
            self._grow()

    def refused(self) -> None:
        """The server said 429: it wants less."""
        if not self.fixed:
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 3 // 4), False

    def _grow(self) -> None:
        self.limit = min(LARGEST_LIMIT, self.limit * 2 if self.doubling else self.limit + max(1, self.limit // 16))

"""Notice that a proxy answers in the place of a server, or that a server wants no requests now."""

from dataclasses import dataclass

from workshop.batch.send.clock import clock

OUTAGE = 8  # so many answers of a proxy without one of the server: the server itself is away


@dataclass
class Outage:
    """The answers that came in place of the server's own, counted since it answered last.

    A proxy or a tunnel whose server is away gives them, and a server that wants no requests now
    (429). After some of them the server gets nothing for a while, then a row now and then, to see
    whether it is back.
    """

    since: float | None = None
    answers: int = 0
    rests: int = 0
    rests_until: float = 0.0
    last: str = ""  # what it said
    status: int = 0  # … and its status of HTTP
    answered_what_was_sent_at: float = 0.0  # the newest request that the server itself answered

    def goes_on(
        self, status: int, message: str, retry_after_s: float, rest_s: float, longest_rest_s: float
    ) -> None:
        """Record one more answer that was not the server's own; `message` is what it said.

        After OUTAGE of them the server gets nothing for `rest_s`, which doubles each time up to
        `longest_rest_s`, and at least for `retry_after_s`, which it asked for.
        """
        now = clock.now()
        self.since = self.since or now
        self.answers += 1
        self.last = message
        self.status = status
        if self.answers >= OUTAGE and now >= self.rests_until:
            rest_s = min(longest_rest_s, rest_s * 2 ** min(self.rests, 10))
            self.rests_until = now + max(rest_s, retry_after_s)
            self.rests += 1

    def is_over(self, sent_at: float) -> None:
        """Record that the server itself answered the request that was sent at `sent_at`."""
        self.answered_what_was_sent_at = max(self.answered_what_was_sent_at, sent_at)
        self.since = None
        self.answers = 0
        self.rests = 0
        self.rests_until = 0.0

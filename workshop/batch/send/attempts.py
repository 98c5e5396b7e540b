"""The rows of a batch that are still to be sent, and how often and how long each is tried."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from workshop.batch.read.rows import InputRow
from workshop.batch.send.servers import Server
from workshop.client.answer_ids import MARK


@dataclass(frozen=True)
class Limits:
    """The limits of the sender's attempts; the defaults suit a server on a cluster."""

    attempts: int = 6  # of a row that the server answers with an error
    deaths: int = 10  # of servers while they worked on a row
    backoff_s: float = 0.5  # before the second attempt; doubles, up to longest_backoff_s
    longest_backoff_s: float = 30.0
    patience_s: float = 120.0  # for a server that is away, hangs, or refuses every request
    read_timeout_s: float = 3600.0  # for one answer
    grace_s: float = 5.0  # for what is in flight when the run is told to stop

    @property
    def longest_rest_s(self) -> float:
        """The longest pause of a server that does not answer itself: several in a patience."""
        return min(self.longest_backoff_s, self.patience_s / 4)

    def pause_s(self, attempt: "Attempt") -> float:
        """Return the pause before the next attempt: doubled each time, up to half of it random."""
        doubled = self.backoff_s * 2 ** min(10, attempt.requests_sent - 1)
        return min(self.longest_backoff_s, doubled) * random.uniform(0.5, 1.0)


@dataclass(slots=True)
class Attempt:
    """A row that is being sent, with the counts of what went wrong so far."""

    row: InputRow
    errors: int = 0
    deaths: int = 0
    requests_sent: int = 0
    fresh: bool = False  # over a new connection, so that nothing but its own answer can come
    sent_at: float = 0.0
    failed_first_at: float | None = None  # in an outage

    def request_id(self) -> str:
        """Return the id of one request: the row's key, and which request of the row it is.

        Some versions of vLLM refuse an id that another request has.
        """
        self.requests_sent += 1
        return f"{self.row.key.hex()}{MARK}-{self.requests_sent}"


class Queue:
    """The rows to send: first those that came back, then new ones from the input."""

    def __init__(self, rows: Iterator[InputRow | None], fleet: list[Server]):
        self._rows = rows
        self._fleet = fleet
        self._exhausted = False
        self._returned: deque[Attempt] = deque()  # to be sent again now
        self._delayed = 0  # to be sent again later
        self.wake = asyncio.Event()  # set when there may be more to do

    @property
    def has_rows(self) -> bool:
        """Return True if a row can be sent now, as far as is known."""
        return bool(self._returned) or self._may_read()

    @property
    def is_done(self) -> bool:
        """Return True if no row is left here, now or later."""
        return self._exhausted and not self._returned and not self._delayed

    def _may_read(self) -> bool:
        """Return True if another row may be read: rows to send again must not fill the memory."""
        if self._exhausted:
            return False
        return self._delayed <= 4 * sum(server.pace.limit for server in self._fleet)

    async def next(self) -> Attempt | None:
        """Return the next row to send; None if there is none now."""
        if self._returned:
            return self._returned.popleft()
        if not self._may_read():
            return None
        for row in self._rows:
            if row is not None:
                return Attempt(row)
            await asyncio.sleep(0)
        self._exhausted = True
        return None

    def send_again(self, attempt: Attempt) -> None:
        """Put a row in front of those that were not read yet."""
        self._returned.append(attempt)

    def send_later(self, attempt: Attempt, pause_s: float) -> None:
        """Send the row again after a pause."""
        self._delayed += 1
        asyncio.get_running_loop().call_later(pause_s, self._end_pause, attempt)

    def _end_pause(self, attempt: Attempt) -> None:
        self._delayed -= 1
        self._returned.append(attempt)
        self.wake.set()

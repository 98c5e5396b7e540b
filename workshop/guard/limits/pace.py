"""Says how long a learner's requests wait while others are there, by their number.

Each request costs the API server some milliseconds, also one that is refused. Who sends a thousand
in a second would take all of them. So a learner's requests wait once they come faster than EVERY_S
each for longer than BURST of them.

A learner who is alone is not held up.

The standard library only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

EVERY_S = 0.05  # between two requests of one learner: 20 a second
BURST = 40  # requests that may come at once
REFUSED = 8  # a refused request counts as so many
OBJECTS = 100  # so many objects and lists count as a request more: each is checked several times
TEXT_BYTES = 128 * 1024  # so much text counts as a request more
# The same of prompts for several sequences, which the engine reads all at once.
SEVERAL_BYTES = 1024
MOST_SEVERAL_BYTES = 32 * 1024  # the rest is pictures (request_limits.MAX_READ_BYTES)
PRESENT_S = 5.0  # how long after their last request somebody is there
MAX_WAIT_S = 10.0  # nobody waits longer, whatever they have sent before
MAX_REMEMBERED = 1000  # learners


def weight(body: bytes, sequences: int = 1) -> int:
    """Return as how many requests a body for so many sequences counts, beside itself."""
    objects = body.count(b"{") + body.count(b"[")
    text = len(body) // TEXT_BYTES
    if sequences > 1:
        text = min(len(body), MOST_SEVERAL_BYTES) // SEVERAL_BYTES
    return objects // OBJECTS + text


class Pace:
    """Says how long a request has to wait: a generic cell rate algorithm, one cell a learner."""

    def __init__(self):
        # When a learner's next request would come at the right pace.
        self._due: dict[bytes, float] = {}
        self._newest: tuple[bytes, float] | None = None
        # The newest request of somebody else than the newest.
        self._other: tuple[bytes, float] | None = None

    def arrive(self, learner: bytes, now: float) -> float:
        """Note a request; return the seconds that it has to wait."""
        if self._newest and self._newest[0] != learner:
            self._other = self._newest
        self._newest = (learner, now)
        return self.charge(learner, now, 1)

    def charge(self, learner: bytes, now: float, requests: int) -> float:
        """Count so many requests of a learner; return the seconds that the next has to wait."""
        allowance = BURST * EVERY_S
        due = max(self._due.get(learner, now), now) + requests * EVERY_S
        due = min(due, now + allowance + MAX_WAIT_S)
        if not self.others_are_there(learner, now):
            due = min(due, now + allowance)
        self._due[learner] = due
        if len(self._due) > MAX_REMEMBERED:
            for name in [name for name, when in self._due.items() if when <= now]:
                del self._due[name]
        return max(0.0, due - now - allowance)

    def others_are_there(self, learner: bytes, now: float) -> bool:
        """Return whether somebody else has asked for something a moment ago."""
        for entry in (self._newest, self._other):
            if entry and entry[0] != learner and now - entry[1] < PRESENT_S:
                return True
        return False


class Width:
    """Counts a learner's sequences in the engine and delays the next: first come, first served."""

    def __init__(self):
        self._running = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def take(self, sequences: int, most: int) -> AsyncIterator[None]:
        """Wait until no more than `most` sequences run with these; a wider request runs alone."""
        async with self._turn:
            while self._running and self._running + sequences > most:
                self._freed.clear()
                await self._freed.wait()
            self._running += sequences
        try:
            yield
        finally:
            self._running -= sequences
            self._freed.set()

"""Says how long a learner's requests wait while others are there, by their number and width.

Each request costs the API server some milliseconds, also one that is refused. Who sends a thousand
in a second would take all of them. So a learner's requests wait once they come faster than EVERY_S
each for longer than BURST of them.

A wide request has so many sequences that each step of a CPU takes more than twice as long while it
runs. So a learner who sends one after the other waits REST times as long as each took, once they
owe more than REST_LATER_S.

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
REST = 2  # after a wide request: so many times as long as it took
REST_LATER_S = 8.0  # so much rest may be owed: eighty drawings of one token never wait
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


class LearnerPace:
    """Says how long a request has to wait: a generic cell rate algorithm, two cells a learner."""

    def __init__(self):
        # When a learner's next request would come at the right pace, and when they have rested
        # enough.
        self._due: dict[bytes, float] = {}
        self._rested: dict[bytes, float] = {}
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
        return self._owe(self._due, learner, now, requests * EVERY_S, allowance)

    def rest(self, learner: bytes, now: float) -> float:
        """Return the seconds that a learner's next wide request has to wait."""
        return self._owe(self._rested, learner, now, 0.0, REST_LATER_S)

    def end_wide(self, learner: bytes, now: float, took_s: float) -> None:
        """Note that a wide request of a learner has ended, and how long it was in the engine."""
        began = now - took_s
        self._rested[learner] = max(self._rested.get(learner, began), began) + took_s
        self._owe(self._rested, learner, now, REST * took_s, REST_LATER_S)

    def others_are_there(self, learner: bytes, now: float) -> bool:
        """Return whether somebody else has asked for something a moment ago."""
        for entry in (self._newest, self._other):
            if entry and entry[0] != learner and now - entry[1] < PRESENT_S:
                return True
        return False

    def _owe(
        self, cells: dict[bytes, float], learner: bytes, now: float, more_s: float, allowance: float
    ) -> float:
        """Add seconds to a learner's cell; return by how many it is beyond the allowance."""
        due = max(cells.get(learner, now), now) + more_s
        due = min(due, now + allowance + MAX_WAIT_S)
        if not self.others_are_there(learner, now):
            due = min(due, now + allowance)
        cells[learner] = due
        if len(cells) > MAX_REMEMBERED:
            for name in [name for name, when in cells.items() if when <= now]:
                del cells[name]
        return max(0.0, due - now - allowance)


class EngineWidth:
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

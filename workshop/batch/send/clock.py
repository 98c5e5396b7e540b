"""A clock that stops with this process, so that patience with a server counts no such time.

SIGSTOP, a debugger or a virtual machine that is moved can hold a process for minutes. A server is
not to blame for that silence.
"""

import time
from collections.abc import Callable

# A run looks at its clock ten times a second; a longer gap means that it did not run.
LONGEST_STEP_S = 2.0


class RunningClock:
    """Seconds in which this process ran; look at it more often than every LONGEST_STEP_S."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic):
        self._monotonic = monotonic
        self._last = monotonic()
        self._seconds = self._last

    def now(self) -> float:
        """Return the seconds until now, of which only differences mean something."""
        real = self._monotonic()
        self._seconds += min(real - self._last, LONGEST_STEP_S)
        self._last = real
        return self._seconds


clock = RunningClock()  # one for all runs of this process

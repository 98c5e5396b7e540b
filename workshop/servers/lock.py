"""A lock on a file of its own, which ends however its holder ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workshop.servers.home import writing
from workshop.servers.marker import Marker

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# a reader's look at the lock, or the end of its last holder, passes in this time
TRIES, PAUSE_S = 20, 0.05


class Lock:
    """An exclusive lock by flock(2): on a shared home folder it holds across machines.

    Some file systems have no such locks, or say that they have and let everybody in. There a marker
    is the lock (see marker.py). descriptor: the open file, while it is held; a child that inherits
    it holds the lock as well.
    """

    def __init__(self, path: Path, descriptor: int | None = None):
        self.path = path
        self.descriptor = descriptor
        self._marker = Marker(path.with_name(f"{path.name}.holder"))
        if descriptor is not None:
            self._marker.adopt()

    def take(self, tries: int = TRIES) -> bool:
        """Return whether the lock could be taken.

        Raises:
            WorkshopError: the file of the lock cannot be made.
        """
        for attempt in range(tries):
            if attempt:
                import random

                # else two that wait could meet each time
                time.sleep(PAUSE_S * random.uniform(0.5, 1.5))
            with writing(self.path):
                descriptor = os.open(
                    self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600
                )
                try:
                    if self._alone(descriptor):
                        self.descriptor = descriptor
                        return True
                finally:
                    if self.descriptor is None:
                        os.close(descriptor)
        return False

    def is_held(self) -> bool:
        """Return whether somebody holds the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except OSError:
            return self._marker.is_held()
        try:
            return not flock(descriptor) or self._marker.is_held()
        finally:
            os.close(descriptor)

    def who(self) -> str:
        """Return a sentence about who holds the lock; "" where nobody does.

        Also "" where flock is used, which does not tell who holds a lock.
        """
        if not self._marker.is_held():
            return ""
        whose = "A process has it"
        holder = self._marker.holder()
        if holder:
            whose = f"Process {holder.pid} on {holder.host} has it since {holder.since}"
        return f"{whose}; if that process has ended, remove {self._marker.path}."

    def give_back(self) -> None:
        """Remove the file and let go."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            with contextlib.suppress(OSError):
                self._marker.give_back()
            os.close(self.descriptor)
            self.descriptor = None

    def hand_over(self) -> None:
        """Let go of the descriptor alone: a child that inherited it holds the lock from now on."""
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None

    @contextlib.contextmanager
    def taken(self, tries: int = TRIES) -> Iterator[bool]:
        """Hold the lock for a moment if it is free; yields whether it is."""
        free = self.take(tries)
        try:
            yield free
        finally:
            self.give_back()

    def _alone(self, descriptor: int) -> bool:
        """Return whether this process now holds the lock of the open file."""
        # Its last holder may have removed the file between the two steps: then it is a lock on
        # nothing.
        if not flock(descriptor) or not is_at(descriptor, self.path):
            return False
        if excludes(self.path):
            # by a machine that has mounted this folder without locks
            return not self._marker.is_held()
        return self._marker.take()


def excludes(path: Path) -> bool:
    """Return whether flock works here: this process cannot lock its locked file once more."""
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        return not flock(descriptor)
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def flock(descriptor: int) -> bool:
    """Take the lock of an open file; return False if somebody else has it."""
    # Windows has no fcntl, and the fcntl of a browser's Python has no flock.
    if fcntl is None or not hasattr(fcntl, "flock"):
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        pass
    return True

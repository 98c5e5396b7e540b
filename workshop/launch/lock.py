"""A lock on a file of its own, which the system takes back however its holder ends."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from workshop.launch.home import writing

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

TRIES, PAUSE_S = 20, 0.05  # a reader's look at the lock, or the end of its last holder, passes in this time


class Lock:
    """An exclusive lock by flock(2): on a shared home folder it holds across machines.

    Where the file system or the system has no such locks, everybody gets it. descriptor: the open file, while it is
    held; a child that inherits it holds the lock as well.
    """

    def __init__(self, path: Path, descriptor: int | None = None):
        self.path, self.descriptor = path, descriptor

    def take(self, tries: int = TRIES) -> bool:
        """Return whether the lock could be taken; raises a WorkshopError if its file cannot be made."""
        for attempt in range(tries):
            if attempt:
                time.sleep(PAUSE_S)
            with writing(self.path):
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            # Its last holder may have removed the file between the two steps: then it is a lock on nothing.
            if flock(descriptor) and is_at(descriptor, self.path):
                self.descriptor = descriptor
                return True
            os.close(descriptor)
        return False

    def held(self) -> bool:
        """Return whether somebody holds the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except OSError:
            return False
        try:
            return not flock(descriptor)
        finally:
            os.close(descriptor)

    def give_back(self) -> None:
        """Remove the file and let go."""
        if self.descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = None

    def hand_over(self) -> None:
        """Let go of the descriptor alone: a child that inherited it holds the lock from now on."""
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


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def flock(descriptor: int) -> bool:
    """Take the lock of an open file; return False if somebody else has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except (AttributeError, OSError):  # Windows; a file system without locks
        pass
    return True

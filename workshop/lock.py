"""A lock that one process at a time holds, by filelock. What the workshop relies on (4.2):

`FileLock` is flock(2): the system frees it however its holder ends, and over NFS it holds between
machines. Its empty file stays. `SoftFileLock` is for file systems that refuse flock, or let
everybody in: a file that one process alone can create. It names its holder's process, start,
machine and container; whoever wants it on the same machine replaces that of a holder that has
ended, where the file system can exchange two files. Any other is left to a person, who is told.
Both exclude the threads of one process from each other, and a fork inherits neither.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.errors import WorkshopError
from workshop.home import writing

if TYPE_CHECKING:
    from filelock import BaseFileLock

WAIT_S = 1.0  # a reader's look at the lock, or the end of its last holder, passes in this time


class Busy(WorkshopError):
    """Another process holds the lock."""


@contextlib.contextmanager
def locked(path: Path, busy: Busy | None = None, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock `path` during the block.

    Args:
        busy: what to raise if another process holds it for `wait_s` seconds.

    Raises:
        Busy: it does. Where the lock is a file, the remedy names it and its holder.
        CannotWrite: the lock's file cannot be made.
    """
    if sys.platform == "emscripten":  # a page is one process
        yield
        return
    lock = _take(path, busy or Busy(f"Another process holds {path}.", "Try again."), wait_s)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether somebody holds the lock `path`; False where its file cannot be made."""
    try:
        with locked(path, wait_s=0.0):
            return False
    except WorkshopError as error:
        return isinstance(error, Busy)


def _take(path: Path, busy: Busy, wait_s: float) -> "BaseFileLock":
    from filelock import FileLock, SoftFileLock, Timeout

    lock = FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(wait_s)
        try:  # where flock works, its holder cannot lock the file once more
            FileLock(path, fallback_to_soft=False).acquire(blocking=False).lock.release()
        except Timeout:
            return lock
        lock.release()
    except Timeout:
        raise busy from None
    except OSError:  # without flock; or the file cannot be made, and neither can the next one
        pass
    holder = path.with_name(f"{path.name}.holder")
    soft_lock = SoftFileLock(holder, mode=0o600, thread_local=False)
    with writing(holder):
        try:
            soft_lock.acquire(wait_s)
        except Timeout as error:
            process = "its process"
            if soft_lock.pid:
                process = f"process {soft_lock.pid}"
            remedy = f"{busy.remedy} {error} If {process} has ended, remove the file."
            raise Busy(busy.message, remedy) from None
    return soft_lock

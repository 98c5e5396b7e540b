"""Processes by pid and start time, which never recur together; nothing else is signalled."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from workshop.preloaded import ForkedProcess

Child = subprocess.Popen | ForkedProcess  # what was started here, either way
KILL_TAKES_S = 5.0  # a process that holds much memory is not gone at once
POLL_S = 0.1


def started(pid: int) -> int | None:
    """Return when the system started process `pid`, or None if there is no such process.

    The number is for comparisons: on Linux clock ticks since boot (field 22 of /proc/PID/stat),
    which setting the clock does not move; elsewhere microseconds since 1970, as psutil has them.
    """
    return _look(pid)[1]


def alive(pid: int, start: int | None) -> bool:
    """Return whether process `pid`, started at `start`, still runs (a zombie does not)."""
    running, now = _look(pid)
    return running and now == start


def ended(pid: int, start: int | None, within_s: float) -> bool:
    """Wait until the process that was started at `start` has ended; return False if it has not."""
    return until(lambda: not alive(pid, start), within_s)


def until(true: Callable[[], bool], seconds: float) -> bool:
    """Ask again and again until the answer is true; return the last answer."""
    deadline = time.monotonic() + seconds
    is_true = true()
    while not is_true and time.monotonic() < deadline:
        time.sleep(POLL_S)
        is_true = true()
    return is_true


def _look(pid: int) -> tuple[bool, int | None]:
    """Return (does it run, when was it started)."""
    if sys.platform == "linux":
        try:
            # a name may hold blanks
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return False, None
        return fields[0] not in (b"Z", b"X"), int(fields[19])
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE, round(process.create_time() * 1e6)
    return False, None


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask Linux for a signal to this process when its parent dies, by kill -9 too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, number)  # PR_SET_PDEATHSIG


@contextlib.contextmanager
def on_signals(
    numbers: Iterable[int], act: Callable[[], None], again: Any = None
) -> Iterator[None]:
    """Call `act` at the first of these signals; later ones do what they did, or go to `again`."""
    before = {number: signal.getsignal(number) for number in numbers}

    def handle(number: int, frame: Any) -> None:
        for later_number, handler in before.items():
            signal.signal(later_number, again or handler)
        act()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def spawn(
    command: list[str], log: IO[bytes], with_parent: bool = True, **options: Any
) -> subprocess.Popen:
    """Start a program as the leader of a session of its own; its output goes to the log.

    with_parent: it ends with this process.
    """
    popen_options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **options}
    tie = None
    if with_parent and os.name == "posix":
        tie = end_with_parent
    with log:
        return subprocess.Popen(command, start_new_session=True, preexec_fn=tie, **popen_options)


def send(pid: int, start: int | None, number: int) -> bool:
    """Signal the process if it was started at `start`; return whether it was there.

    Raises PermissionError: it is another's.
    """
    # Holds the process itself: its number cannot pass to another between the look and the signal.
    handle = None
    with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as stack:
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or an old kernel
            handle = os.pidfd_open(pid)
            stack.callback(os.close, handle)
        if not alive(pid, start):
            return False
        if handle is None:
            os.kill(pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
        return True
    return False


def session(leader: int, start: int | None, log: str = "") -> list[tuple[int, int]]:
    """Return (pid, start) of each process in the session of an engine, except this process.

    While the leader is there, or this process is of that session, the number cannot be another
    session's. After that it can: then only those count whose output goes to the engine's own log.
    """
    import psutil

    own = os.getsid(0) == leader or (start is not None and started(leader) == start)
    members = []
    for pid in psutil.pids():
        if pid == os.getpid() or not _is_in_session(pid, leader):
            continue
        # Only now: to read the state of a process costs far more than to ask for its session.
        running, now = _look(pid)
        if running and (own or _writes_to(pid, log)):
            members.append((pid, now))
    return members


def _is_in_session(pid: int, leader: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) == leader
    return False


def _writes_to(pid: int, log: str) -> bool:
    with contextlib.suppress(OSError):
        return bool(log) and os.path.samefile(f"/proc/{pid}/fd/1", log)
    return False


def end_session(leader: int, start: int | None, log: str = "", grace_s: float = 0.0) -> bool:
    """Kill what is left of an engine's session after `grace_s`; return whether nothing is left."""
    until(lambda: not session(leader, start, log), grace_s)
    for pid, born in session(leader, start, log):
        with contextlib.suppress(PermissionError):
            send(pid, born, signal.SIGKILL)
    return until(lambda: not session(leader, start, log), KILL_TAKES_S)

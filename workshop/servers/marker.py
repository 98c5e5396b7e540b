"""A lock for file systems where flock(2) does nothing: a name that one process alone can create.

The name is a symbolic link, which is created whole or not at all, also on NFS. Its target is no
file: it says who made it (Emacs and Firefox lock in the same way). The system does not remove it
when its holder is killed, so the next process removes it, if it can tell that the holder has ended.
It never removes the marker of a process that may live: one on another machine, or in another
container.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop import timestamps
from workshop.servers import processes

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MACHINE_ID = "/etc/machine-id"


@dataclass(frozen=True)
class Holder:
    """The process that made a marker. token: of this marker alone."""

    host: str
    machine: str
    boot: str
    processes: str  # the namespace in which `pid` is a number
    pid: int
    start: int | None
    since: str
    token: str

    @classmethod
    def this_process(cls) -> Holder:
        """Return what a marker of this process says."""
        return cls(
            host=socket.gethostname(),
            machine=first_line(MACHINE_ID),
            boot=first_line(BOOT_ID),
            processes=_process_namespace(),
            pid=os.getpid(),
            start=processes.started(os.getpid()),
            since=timestamps.now(),
            token=os.urandom(8).hex(),
        )

    def is_this_process(self) -> bool:
        """Return whether this process is the holder."""
        own = Holder.this_process()
        return _place(self) == _place(own) and (self.pid, self.start) == (own.pid, own.start)

    def has_ended(self) -> bool:
        """Return whether the holder has certainly ended: only its own machine can tell that."""
        own = Holder.this_process()
        if _place(self) == _place(own):
            return _process_is_gone(self.pid, self.start)
        same_machine = self.machine and (self.machine, self.host) == (own.machine, own.host)
        # it was restarted since
        return bool(same_machine and self.boot and own.boot and self.boot != own.boot)


class Marker:
    """The right to a name for one process at a time."""

    def __init__(self, path: Path):
        self.path = path

    def take(self) -> bool:
        """Return whether this process has made the marker."""
        own = Holder.this_process()
        if self._make(own):
            return True
        holder = self.holder()
        if holder is None or not holder.has_ended():
            return False
        self._remove_left_over(holder)
        return self._make(own)

    def adopt(self) -> None:
        """Take over the marker of the process that started this one."""
        holder = self.holder()
        if holder is not None and holder.pid == os.getppid():
            new = self.path.with_name(f"{self.path.name}.{os.urandom(8).hex()}")
            if Marker(new)._make(Holder.this_process()):
                os.replace(new, self.path)

    def give_back(self) -> None:
        """Remove the marker if it is this process's."""
        holder = self.holder()
        if holder is not None and holder.is_this_process():
            self.path.unlink(missing_ok=True)

    def is_held(self) -> bool:
        """Return whether somebody who may be alive holds it."""
        holder = self.holder()
        if holder is None:
            return os.path.lexists(self.path)  # nobody can tell whose it is
        return not holder.has_ended()

    def holder(self) -> Holder | None:
        """Return who holds it; None for nobody, and while a marker that is no link is written."""
        try:
            text = os.readlink(self.path)
        except FileNotFoundError:
            return None
        except OSError:  # a file, where links are not possible
            try:
                text = self.path.read_text(encoding="utf-8")
            except (OSError, ValueError):
                return None
        try:
            return Holder(**json.loads(text))
        except (TypeError, ValueError):
            return None

    def _make(self, own: Holder) -> bool:
        text = json.dumps(asdict(own), separators=(",", ":"))
        try:
            os.symlink(text, self.path)
        except FileExistsError:
            return self.holder() == own  # NFS says so, too, when it asks twice for what it has done
        except (OSError, NotImplementedError):  # a file system without links, or Windows
            return self._make_file(text)
        return True

    def _make_file(self, text: str) -> bool:
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return True

    def _remove_left_over(self, ended: Holder) -> None:
        """Remove the marker of a holder that has ended, unless somebody else does so now.

        Two processes may see the same left-over marker. Only the one that holds the right to remove
        this very marker looks again and removes it, so the marker of the next holder is never
        removed. That right is a marker, too, named by the token: one whose holder was killed is
        removed alike.
        """
        right = Marker(self.path.with_name(f"{self.path.name}.{ended.token}"))
        if not right.take():
            return
        try:
            if self.holder() == ended:
                self.path.unlink(missing_ok=True)
        finally:
            right.give_back()


def _place(holder: Holder) -> tuple[str, ...]:
    """Return what makes a process number one process: the running system, and the container."""
    return (holder.boot or holder.host, holder.processes)


def _process_is_gone(pid: int, start: int | None) -> bool:
    if start is None or processes.alive(pid, start):
        return False
    if os.name != "posix" or processes.started(pid) is not None:  # a zombie, or another process
        return True
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
    return False  # another user's, whose start this user may not see


def first_line(path: str) -> str:
    """Return the line of a file of the system; '' where there is none."""
    with contextlib.suppress(OSError):
        return Path(path).read_text(encoding="ascii").strip()
    return ""


def _process_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""

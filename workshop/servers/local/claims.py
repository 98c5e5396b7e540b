"""The right to a server's name: one process has it, from before the start until after the end.

It is a lock beside the record, so it ends with its holder, by kill -9 too. Only the holder starts
an engine under the name and writes its record.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.home import private_folder
from workshop.lock import WAIT_S, Busy, locked
from workshop.servers import records
from workshop.servers.records import ServerRecord


class Claim:
    """The lock of a server's name, and the record under it, which outlives the lock."""

    def __init__(self, record: ServerRecord):
        self.record = record
        self._lock = contextlib.ExitStack()

    def take(self, wait_s: float = WAIT_S) -> None:
        """Take the name.

        Raises:
            Busy: another process holds it for so long.
        """
        path = records.path_of(self.record.name, ".lock")
        self._lock.enter_context(locked(path, busy(self.record.name), wait_s))
        self._lock.callback(self._remove_unused, path)

    def _remove_unused(self, lock: Path) -> None:
        """Remove the file of the lock, which is still held, if no record is beside it."""
        if not records.path_of(self.record.name).exists():
            with contextlib.suppress(OSError):
                lock.unlink()  # whoever opened it already sees that it has no name, and tries again

    def give_back(self) -> None:
        """Let another process take the name; nothing happens if this one does not hold it."""
        self._lock.close()

    def write(self, **changes) -> ServerRecord:
        """Change fields of the record on disk; return it."""
        self.record = replace(self.record, **changes)
        records.write(self.record)
        return self.record

    def forget(self) -> None:
        """Remove the record: the server was meant to end."""
        records.remove(self.record.name)
        records.path_of(self.record.name, ".stop").unlink(missing_ok=True)


def claim(record: ServerRecord) -> Claim:
    """Take the name of a new server and write its record.

    Raises:
        WorkshopError: the name is taken; then nothing has changed.
    """
    private_folder("servers")
    name_claim = Claim(record)
    try:
        name_claim.take()
    except Busy:
        refuse_taken(record.name)
        raise
    try:
        refuse_taken(record.name, ours=True)
        records.path_of(record.name, ".stop").unlink(missing_ok=True)
        records.write(record)
    except BaseException:
        name_claim.give_back()
        raise
    return name_claim


def refuse_taken(name: str, ours: bool = False) -> None:
    """Raise a WorkshopError if a server called `name` is there; `ours`: we hold its name."""
    claimed = None
    if ours:
        claimed = False
    record = records.read(name, claimed=claimed)
    if record and record.state != "failed":
        remedy = (
            f"Use it, stop it (`workshop stop {name}`), or give the new one a --name of its own."
        )
        raise WorkshopError(f"A server called {name!r} is {record.state} at {record.url}.", remedy)


def busy(name: str) -> Busy:
    """Return the error for a name that another process holds."""
    return Busy(
        f"Another process is starting or stopping a server called {name!r}.",
        "Wait until `workshop servers` shows what came of it, or give the new one another --name.",
    )

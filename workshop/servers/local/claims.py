"""The right to a server's name: one process has it, from before the start until after the end.

It is a lock beside the record, so it ends with its holder, by kill -9 too. Only the holder starts
an engine under the name and writes its record; a watcher in the background inherits the lock of the
command that started it.
"""

from dataclasses import replace

from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.home import private_folder
from workshop.servers.lock import Lock
from workshop.servers.records import ServerRecord


class Claim(Lock):
    """The lock of a server's name, and the record under it.

    When the lock is given back, the record stays as it is.
    """

    def __init__(self, record: ServerRecord, descriptor: int | None = None):
        super().__init__(records.path_of(record.name, ".lock"), descriptor)
        self.record = record

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
    if not name_claim.take():
        refuse_taken(record.name)
        raise busy(record.name, name_claim.who())
    try:
        refuse_taken(record.name, ours=True)
        records.path_of(record.name, ".stop").unlink(missing_ok=True)
        records.write(record)
    except BaseException:
        name_claim.give_back()
        raise
    return name_claim


def refuse_taken(name: str, ours: bool = False) -> None:
    """Raise a WorkshopError if a server called `name` is there.

    ours: this process holds the name.
    """
    claimed = None
    if ours:
        claimed = False
    record = records.read(name, claimed=claimed)
    if record and record.state != "failed":
        remedy = (
            f"Use it, stop it (`workshop stop {name}`), or give the new one a --name of its own."
        )
        raise WorkshopError(f"A server called {name!r} is {record.state} at {record.url}.", remedy)


def busy(name: str, who: str = "") -> WorkshopError:
    """Return the error for a name that another process holds.

    who: a sentence about that process, or ''.
    """
    remedy = (
        "Wait until `workshop servers` shows what came of it, or give the new one another --name."
    )
    return WorkshopError(
        f"Another process is starting or stopping a server called {name!r}.",
        f"{remedy} {who}".strip(),
    )

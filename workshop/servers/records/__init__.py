"""Server records: one private JSON file for each server, so that nobody types an address.

A record is written when a server starts, removed when it is stopped cleanly, and kept as `failed`
with the reason otherwise. Whoever reads one checks that it is still true: the machine may have
rebooted, the process died. A file that is no record is passed over, with a line on standard error.
What others share is only read: nothing is written, signalled or opened because a shared record says
so.
"""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

from workshop import files, timestamps
from workshop.errors import BadInput, WorkshopError, plain
from workshop.home import home, private_folder, write_private, writing
from workshop.lock import is_held, locked
from workshop.servers.host import processes
from workshop.servers.records import record_file
from workshop.servers.records.record_file import ServerRecord

MAX_REASON_CHARS = 2000
FAILED_SHOWN = 3  # names in one line
REASONS = "their reasons: workshop servers NAME"
FORGET_FAILED = "workshop stop --failed"
OTHERS = "What kubectl or systemd started is theirs: kubectl logs deployment/NAME, journalctl --unit vllm."
LAB_VARIABLE = "WORKSHOP_LAB"  # tells a lab's servers, notebooks and terminals from all others
_said: set[str] = set()


def new(
    *,
    name: str,
    url: str,
    model: str,
    log: str,
    where: str = "local",
    job_id: str | None = None,
    trace: str = "",
) -> ServerRecord:
    """Return the record of a server of this machine that is about to start, with a new key."""
    return ServerRecord(
        name=name,
        url=url,
        model=model,
        api_key=new_key(),
        where=where,
        host=socket.gethostname(),
        boot_id=boot_id() if where == "local" else "",
        job_id=job_id,
        log=log,
        trace=trace,
        started=timestamps.now("milliseconds"),
        lab=os.environ.get(LAB_VARIABLE, ""),
    )


def new_key() -> str:
    """Return a new key: 43 characters, drawn by the system."""
    import secrets

    return secrets.token_urlsafe(32)


def boot_id() -> str:
    """Return what tells this boot of this machine from others; '' where the system has nothing."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


def is_local(record: ServerRecord) -> bool:
    """Return whether a server was started on this machine, since it booted."""
    return record.where == "local" and record.boot_id == boot_id()


def path_of(name: str, suffix: str = ".json") -> Path:
    """Return the file of the record `name`; a name is letters, digits, '.', '_' and '-'.

    Beside it: .lock, whose lock is the right to start, and to write down, the server; .shared,
    where copies of the record are; .stop, where the server's end is wanted: an end without it is a
    failure, whatever its exit code.

    Raises BadInput: it is no such name.
    """
    if not record_file.NAME.fullmatch(name):
        remedy = "Use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit."
        raise BadInput(f"{name!r} cannot be the name of a server.", remedy)
    return home() / "servers" / f"{name}{suffix}"


def write(record: ServerRecord) -> None:
    """Write the record to its file, mode 0600."""
    private_folder("servers")
    short = replace(record, reason=record.reason[:MAX_REASON_CHARS])
    write_private(path_of(record.name), as_text(short))


def as_text(record: ServerRecord) -> str:
    """Return the JSON of a record's file and of its copies, without fields that say nothing."""
    fields = asdict(record)
    for name in ("cluster", "lab", "trace"):
        if not fields[name]:
            del fields[name]
    return json.dumps(fields, indent=1) + "\n"


def remove(name: str) -> None:
    """Remove the record, and copies of it that were shared; nothing happens if there is none."""
    path = path_of(name)
    # of a note that cannot be read: it stays, for `workshop share --stop`
    with contextlib.suppress(WorkshopError):
        withdraw(name)
    with writing(path):
        path.unlink(missing_ok=True)


def load(path: Path) -> ServerRecord:
    """Read one record file, as `record_file.read` does; keys of later versions are ignored.

    Raises WorkshopError: as that does, or the record is another server's.
    """
    record = ServerRecord(**record_file.read(path))
    if record.name != path.stem:
        raise WorkshopError(
            f"The server record {path} is that of another server: {record.name}.",
            record_file.REMEDY,
        )
    return record


def trace_of(name: str) -> Path:
    """Return the file in which this user's server `name` notes what its engine does.

    Raises BadInput: there is no such server, or it notes nothing.
    """
    record = stored(name)
    if record is None:
        raise BadInput(
            f"There is no trace {name}, and you have no server of that name.",
            "Give the file of a trace; or start a server with one: workshop serve --trace FILE.",
        )
    if not record.trace:
        raise BadInput(
            f"The server {name} notes nothing of its steps.",
            "Start it with --trace FILE; on SLURM: workshop slurm submit … --trace.",
        )
    return Path(record.trace)


def stored(name: str) -> ServerRecord | None:
    """Return the record of this user's server `name` as it stands, unchecked, or None."""
    with contextlib.suppress(FileNotFoundError):
        return load(path_of(name))
    return None


def withdraw(name: str) -> list[Path]:
    """Remove the copies that were shared of a server, if there are any; return them.

    Only files of this user's are removed that are copies of this server's record, whatever has come
    to lie there since.
    """
    removed: list[Path] = []
    own = None
    with contextlib.suppress(WorkshopError):
        own = stored(name)
    for path in copies_of(name):
        with contextlib.suppress(OSError, WorkshopError):
            if path.lstat().st_uid == os.geteuid() and (
                own is None or load(path).api_key == own.api_key
            ):
                path.unlink()
                removed.append(path)
    path_of(name, ".shared").unlink(missing_ok=True)
    return removed


def copies_of(name: str) -> list[Path]:
    """Return where copies of a server's record were shared.

    Raises:
        WorkshopError: the note of them is there and cannot be read; it is never taken for an
            empty one.
    """
    note = path_of(name, ".shared")
    remedy = f"Look for copies of {name}.json in the class's folder, remove them and then {note}."
    try:
        note.lstat()
        paths = files.read_json(note, record_file.MAX_BYTES, remedy="")
    except FileNotFoundError:
        return []
    except (OSError, BadInput) as error:
        raise WorkshopError(f"The note of what was shared: {error}", remedy) from None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise WorkshopError(f"The note of what was shared, {note}, is no list of files.", remedy)
    return [Path(path) for path in paths]


def read(name: str, claimed: bool | None = None) -> ServerRecord | None:
    """Return the checked record of this user's server `name`, or None.

    claimed: whether somebody is starting it, for a caller who holds the name's lock; None: ask the
        lock.
    """
    record = stored(name)
    if record is None:
        return None
    now = checked(record)
    lock = path_of(name, ".lock")
    if now.state == "starting" and now.pid is None and is_here(now):
        if claimed is None:
            claimed = is_held(lock)
        if not claimed:
            now = replace(now, state="failed", reason="it was ended before its engine was started")
    # a doubt alone, or what only the queue knows, is told and not written down
    if now.state != record.state and now.state in record_file.STATES:
        # Whoever holds the lock writes for itself.
        with contextlib.suppress(WorkshopError), locked(lock, wait_s=0.0):
            if stored(name) == record:  # a server that was stopped meanwhile gets no record back
                write(now)
    return now


def require(name: str) -> ServerRecord:
    """Return the checked record of this user's server `name`.

    Raises:
        WorkshopError: there is none; it says which there are.
    """
    record = read(name)
    if record is not None:
        return record
    raise unknown(name, (*own(), *waiting()), OTHERS)


def unknown(name: str, others: Iterable[ServerRecord], remedy: str = "") -> WorkshopError:
    """Return the error for a name that no server has: it lists the others, then the remedy."""
    names = ", ".join(record.name for record in others)
    if names:
        remedy = f"There are: {names}. {remedy}".strip()
    return WorkshopError(f"You have no server called {name!r}.", remedy)


def own() -> list[ServerRecord]:
    """Return this user's records, checked, oldest first."""
    return _in_folder(home() / "servers", lambda path: read(path.stem))


def waiting() -> list[ServerRecord]:
    """Return the jobs of `workshop slurm submit` without a record of their own yet.

    Each has the words of its queue, and neither an address nor a key.
    """
    if not (home() / "slurm").is_dir():  # nothing was submitted: import nothing
        return []
    from workshop.servers.slurm import queue as slurm_queue

    begun = _in_folder(home() / "servers", load)

    def has_begun(job: ServerRecord) -> bool:
        return any(
            record.job_id == job.job_id and (record.cluster in ("", job.cluster) or not job.cluster)
            for record in begun
        )

    return [job for job in slurm_queue.submitted() if not has_begun(job)]


def failed_names(own_records: Iterable[ServerRecord]) -> str:
    """Return the newest servers that have failed, and how many more there are; '' if none has.

    own_records: oldest first, as `own` returns them.
    """
    names = [record.name for record in own_records if record.state == "failed"]
    newest = ", ".join(reversed(names[-FAILED_SHOWN:]))
    if len(names) > FAILED_SHOWN:
        newest += f" and {len(names) - FAILED_SHOWN} more"
    return newest


def failed_line(own_records: Iterable[ServerRecord]) -> str:
    """Return one line for all servers that have failed, with what to do; '' if none has."""
    names = failed_names(own_records)
    if not names:
        return ""
    return f"✗ failed: {names}; {REASONS}; forget them: {FORGET_FAILED}"


def starting() -> ServerRecord | None:
    """Return the record of a server of this machine that is being started, or None."""
    for record in own():
        if record.state == "starting" and is_here(record):
            return record
    return None


def ready() -> list[ServerRecord]:
    """Return the records of servers that are ready: this user's own, then those that were shared."""
    return ready_among([*own(), *shared()])


def ready_among(candidates: Iterable[ServerRecord]) -> list[ServerRecord]:
    """Return the records of servers that are ready; those in doubt only if all are in doubt."""
    said_ready = [record for record in candidates if record.state == "ready"]
    sure = [record for record in said_ready if not record.in_doubt]
    return sure or said_ready


def shared() -> list[ServerRecord]:
    """Return the records that were shared with this user in $WORKSHOP_SHARED, checked."""
    shared_folder = os.environ.get("WORKSHOP_SHARED")
    if not shared_folder:
        return []
    folder = Path(os.path.expanduser(shared_folder))
    shared_records = _in_folder(folder, lambda path: checked(load(path)))
    others = record_file.open_to_others(folder)
    if shared_records and others:
        _say_once(f"{others} Ask the folder's owner to close it: chmod go-w.")
    return shared_records


def read_shared(name: str) -> ServerRecord | None:
    """Return the checked record of the server `name` that was shared with this user, or None."""
    for record in shared():
        if record.name == name:
            return record
    return None


def _in_folder(folder: Path, read_one: Callable[[Path], ServerRecord | None]) -> list[ServerRecord]:
    folder_records: list[ServerRecord] = []
    refused: list[str] = []
    paths: list[Path] = []
    try:
        for path in folder.iterdir():
            if path.suffix == ".json" and path.name[0] != ".":
                paths.append(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        _say_once(f"The folder {folder} of server records cannot be read: {error.strerror}.")
        return []
    for path in sorted(paths):
        try:
            record = read_one(path)
        except FileNotFoundError:  # stopped since the listing
            continue
        except WorkshopError as error:
            refused.append(error.message)
            continue
        if record is not None:
            folder_records.append(record)
    if refused:
        others = ""
        if len(refused) > 1:
            others = f" ({len(refused) - 1} more there)"
        _say_once(f"Passed over: {refused[0]}{others}")
    return sorted(folder_records, key=lambda record: record.started)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(plain(text), file=sys.stderr)


def checked(record: ServerRecord) -> ServerRecord:
    """Return the record as it is now: `failed` or `suspended` if its process or job is.

    A process can only be checked on its own machine, a job where SLURM's commands are; else it is
    returned as it is. A job that SLURM does not know has not ended for that: the record is then in
    doubt (`ServerRecord.in_doubt`).
    """
    if record.where == "slurm" and record.state != "failed":
        from workshop.servers.slurm import queue as slurm_queue

        return slurm_queue.checked(record)
    if record.state == "failed" or not is_here(record):
        return record
    reason = _why_gone(record)
    if not reason:
        return record
    return replace(record, state="failed", reason=reason)


def is_here(record: ServerRecord) -> bool:
    """Return whether the record's process would be on this machine."""
    return record.where == "local" and record.host == socket.gethostname()


def _why_gone(record: ServerRecord) -> str:
    if record.boot_id and boot_id() and record.boot_id != boot_id():
        return "the machine was restarted since"
    if record.pid is None:
        return ""
    # None: it had ended before its start could be asked for.
    lives = record.process_started is not None and processes.alive(
        record.pid, record.process_started
    )
    if lives:
        return ""
    return "its process ended without a word (killed, or out of memory)"

"""Server records: where each server is, in one private JSON file each, so that nobody types an address.

A record is written when a server starts, removed when it is stopped cleanly, and kept as `failed` with the
reason otherwise. Whoever reads one checks that it is still true: the machine may have rebooted, the process died.
"""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

import psutil

from workshop.errors import BadInput, WorkshopError
from workshop.launch.home import home, private_folder, write_private

STATES = ("starting", "ready", "failed")
CLOCK_SLACK_S = 120.0   # a process much younger than its record is another one that got the same pid


@dataclass(frozen=True)
class ServerRecord:
    """One server; the names are relied on from outside (see the README's table of them)."""

    name: str
    url: str                      # ends in /v1
    model: str                    # the name that requests give
    api_key: str
    where: str = "local"          # local, slurm, vm, kubernetes
    host: str = ""
    pid: int | None = None        # of vLLM's API server
    boot_id: str = ""
    job_id: str | None = None
    log: str = ""
    vllm_version: str = ""
    state: str = "starting"
    reason: str = ""              # why it failed
    started: str = ""             # ISO 8601, UTC

    def public(self) -> dict:
        """Return the record without its key, for printing."""
        return {key: value for key, value in asdict(self).items() if key != "api_key"}


def now() -> str:
    """Return the time as ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def boot_id() -> str:
    """Return what tells this boot of this machine from every other ('' where the system has no such thing)."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def path_of(name: str) -> Path:
    """Return the file of the record `name`; a name is letters, digits, '.', '_' and '-'."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
        raise BadInput(f"{name!r} cannot be the name of a server.",
                       "Use up to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit.")
    return home() / "servers" / f"{name}.json"


def write(record: ServerRecord) -> None:
    """Write the record to its file, mode 0600."""
    private_folder("servers")
    write_private(path_of(record.name), json.dumps(asdict(record), indent=1) + "\n")


def remove(name: str) -> None:
    """Remove the record, and copies of it that were shared; nothing happens if there is none."""
    if path_of(name).with_suffix(".shared").exists():
        from workshop.launch import share

        share.withdraw(name)
    path_of(name).unlink(missing_ok=True)


def load(path: Path) -> ServerRecord:
    """Read one record file; keys that a later version may add are ignored."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {field.name for field in fields(ServerRecord)}
        return ServerRecord(**{key: value for key, value in data.items() if key in known})
    except PermissionError:
        raise WorkshopError(f"You may not read the server record {path}.",
                            "Ask whoever shared it to share it with a group of yours.") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise WorkshopError(f"The server record {path} cannot be read: {error}.",
                            "Remove that file and start the server again.") from None


def read(name: str) -> ServerRecord | None:
    """Return the checked record of this user's server `name`, or None."""
    path = path_of(name)
    return checked(load(path)) if path.exists() else None


def own() -> list[ServerRecord]:
    """Return this user's records, checked, oldest first."""
    return _in_folder(home() / "servers")


def shared() -> list[ServerRecord]:
    """Return the records that were shared with this user in $WORKSHOP_SHARED, checked."""
    folder = os.environ.get("WORKSHOP_SHARED")
    return _in_folder(Path(folder).expanduser()) if folder else []


def _in_folder(folder: Path) -> list[ServerRecord]:
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            found.append(checked(load(path)))
        except FileNotFoundError:      # stopped since the listing
            continue
    return sorted(found, key=lambda record: record.started)


def checked(record: ServerRecord) -> ServerRecord:
    """Return the record as it is now: `failed`, with the reason, if its process or its SLURM job is gone.

    A process can only be checked on its own machine, a job where SLURM's commands are; else it is returned as it is.
    """
    reason = "" if record.state == "failed" else _reason_gone(record)
    if not reason:
        return record
    failed = replace(record, state="failed", reason=reason)
    current = path_of(record.name)
    # Only what is still on disk is corrected: a server stopped meanwhile has no record, and gets none back.
    if current.exists() and load(current).started == record.started:
        write(failed)
    return failed


def _reason_gone(record: ServerRecord) -> str:
    if record.where == "slurm":
        from workshop.launch import slurm_queue

        return slurm_queue.why_gone(record)
    return _why_gone(record) if record.where == "local" and record.host == socket.gethostname() else ""


def _why_gone(record: ServerRecord) -> str:
    if record.boot_id and boot_id() and record.boot_id != boot_id():
        return "the machine was restarted since"
    if record.pid is None:
        return ""
    try:
        process = psutil.Process(record.pid)
        young = process.create_time() - datetime.fromisoformat(record.started).timestamp() > CLOCK_SLACK_S
        gone = young or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        gone = True
    return "its process ended without a word (killed, or out of memory)" if gone else ""

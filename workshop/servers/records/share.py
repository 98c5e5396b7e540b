"""`workshop share`: a copy of a server's record for a class, which one group alone can read."""

import contextlib
import grp
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx

from workshop.engine import http
from workshop.errors import BadInput, WorkshopError
from workshop.guard.fairshare import HEADER
from workshop.home import write_private
from workshop.servers import records
from workshop.servers.records import ServerRecord, record_file


def share(name: str, group: str, folder: str | Path | None = None) -> tuple[Path, list[str]]:
    """Put a copy of the record (0640, the group's) into the class's folder.

    group: a Unix group that this user belongs to: its members can use the server from then on.

    Returns (path of the copy, what to know about it).

    Raises WorkshopError: the server is not ready, or another's record has its name there.
    """
    record = records.require(name)
    if record.state != "ready":
        why = ""
        if record.reason:
            why = f": {record.reason}"
        problem = f"The server {name!r} is {record.state}{why}."
        raise WorkshopError(problem, "Share it when `workshop servers` says ready.")
    gid = _group_id(group)
    target = _folder(folder, group, gid) / f"{name}.json"
    if os.path.lexists(target) and target.lstat().st_uid != os.geteuid():
        remedy = f"Start yours under another name, and share that one instead of {name}."
        raise WorkshopError(f"{target} belongs to somebody else's server of the same name.", remedy)
    remembered = {str(path) for path in records.copies_of(name)} | {str(target)}
    write_private(target, records.as_text(record), 0o640, gid)
    write_private(records.path_of(name, ".shared"), json.dumps(sorted(remembered)) + "\n")
    return target, list(_notes(record, target))


def renew(record: ServerRecord) -> None:
    """Write the record over its shared copies: after a restart it has another address."""
    copies: list[Path] = []
    # the server runs; `workshop share` says what is wrong with the note
    with contextlib.suppress(WorkshopError):
        copies = records.copies_of(record.name)
    for path in copies:
        # it was taken away, or is somebody else's
        with contextlib.suppress(OSError, WorkshopError):
            status = path.lstat()
            if status.st_uid == os.geteuid():
                write_private(path, records.as_text(record), 0o640, status.st_gid)


def rotate(name: str) -> ServerRecord:
    """Give a server that runs, and its shared copies, a new key; return its record.

    The old key is refused within a second.

    Raises WorkshopError: there is no such server of this user's, or it is not ready.
    """
    record = records.require(name)
    if record.state != "ready":
        problem = f"The server {name!r} is {record.state}, and reads no new key."
        raise WorkshopError(problem, "A server that starts anew gets a new key.")
    record = replace(record, api_key=records.new_key())
    records.write(record)
    renew(record)
    return record


def _group_id(group: str) -> int:
    own = {*os.getgroups(), os.getegid()}
    names: list[str] = []
    for own_gid in sorted(own):
        with contextlib.suppress(KeyError):
            names.append(grp.getgrgid(own_gid).gr_name)
    own_groups = f"Yours: {', '.join(names) or 'none'}."
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        raise BadInput(f"There is no group {group!r} here.", own_groups) from None
    if os.geteuid() != 0 and gid not in own:
        raise BadInput(
            f"You do not belong to the group {group!r}, so you cannot give it a file.", own_groups
        )
    return gid


def _folder(folder: str | Path | None, group: str, gid: int) -> Path:
    """Return the class's folder, having checked that the group can get to it."""
    chosen = folder or os.environ.get("WORKSHOP_SHARED")
    if not chosen:
        remedy = (
            "Set WORKSHOP_SHARED (in slurm/site.sh) to a folder that all of them see, or give --to."
        )
        raise BadInput("No folder for the class is given.", remedy)
    place = Path(os.path.realpath(os.path.expanduser(chosen)))
    if not os.path.isdir(place):
        remedy = f"Make it: mkdir -p {place} && chgrp {group} {place} && chmod 2750 {place}"
        raise WorkshopError(f"There is no folder {place}, or it is closed to you.", remedy)
    for part in (place, *place.parents):
        mode, owner = part.stat().st_mode, part.stat().st_gid
        if not (mode & 0o001 or (owner == gid and mode & 0o010)):
            remedy = f"chgrp {group} {part} && chmod g+rx {part}, or choose another folder: --to."
            raise WorkshopError(f"The group {group} may not enter {part}.", remedy)
    return place


def _notes(record: ServerRecord, copy: Path) -> Iterator[str]:
    others = record_file.open_to_others(copy.parent)
    if others:
        yield f"{others} Close it: chmod go-w {copy.parent}."
    if urlsplit(record.url).hostname in ("127.0.0.1", "localhost", "::1"):
        yield (
            "It listens on this machine only (127.0.0.1): learners on others cannot reach it. "
            "Start it with --host and the address that they reach."
        )
    limits = ""  # the server itself names them
    with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
        limits = http.get(urljoin(record.url, "/health"), trust_env=False)[0].headers.get(HEADER)
    if limits:
        yield f"Limits for each learner: {limits}."
    else:
        yield (
            "It was started without limits for a class: one learner's requests can starve the "
            "others. `workshop slurm submit … --learners 30` sets them."
        )

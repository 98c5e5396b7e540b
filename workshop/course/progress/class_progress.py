"""The progress of a class: the tries of learners who choose to share them.

Nobody's name is shown unless they give one.

A learner's file lies in $WORKSHOP_SHARED/progress (0640, of that folder's group) and follows their
checks. The folder is the instructor's: members of the group may add files, and replace only their
own. What is no such file is passed over. A name is what a learner writes.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from workshop import files, timestamps
from workshop.errors import BadInput, WorkshopError
from workshop.home import home, private_folder, write_private
from workshop.servers.records import record_file

NOTE = "progress.shared"  # in the learner's home: which file is theirs, and the name on it
TESTS = ("pre", "post")
DAMAGED = (WorkshopError, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Learner:
    """A learner who shares.

    updated: ISO 8601, UTC.
    checks: key → {"tries": int, "done": bool}.
    tests: right answers to ten questions, of those of TESTS that were made.
    file: the name of their file in the class's folder.
    """

    name: str
    updated: str
    checks: Mapping[str, Mapping]
    tests: Mapping[str, int]
    file: str


def folder() -> Path:
    """Return the class's folder of progress; a BadInput says how to make one."""
    shared = os.environ.get("WORKSHOP_SHARED")
    if not shared:
        raise BadInput(
            "WORKSHOP_SHARED is not set.", "Set it to the folder that your class shares."
        )
    place = Path(os.path.expanduser(shared)) / "progress"
    if not os.path.isdir(place):
        how = f"mkdir {place} && chgrp GROUP {place} && chmod 3730 {place}"
        raise BadInput(
            f"There is no folder {place}, or it is closed to you.",
            f"The instructor makes it: {how}",
        )
    return place.resolve()


def share(progress: Mapping[str, Mapping], name: str = "") -> str:
    """Begin to share tries and results, no answers; return the name on them.

    By default the name is a number that says nothing about the learner.
    """
    if len(name) > 40 or not name.isprintable():
        raise BadInput(f"{name[:60]!r} cannot be a name.", "Use up to 40 letters.")
    name = name.strip()
    place = folder()
    with contextlib.suppress(WorkshopError):  # of another class, perhaps, whose folder is gone
        withdraw()
    number = secrets.token_hex(4)
    note = {"path": str(place / f"{number}.json"), "name": name or f"learner {number[:4]}"}
    private_folder()
    write_private(home() / NOTE, json.dumps(note) + "\n")
    _write(progress)
    return note["name"]


def withdraw() -> bool:
    """Share no longer: the file goes; return whether there was one. A WorkshopError if it stays."""
    note = home() / NOTE
    if not os.path.lexists(note):
        return False
    try:
        path = Path(_note()["path"])
        path.parent.stat()  # where the class's folder is away, the file is still in it
        path.unlink(missing_ok=True)
    except DAMAGED as error:
        problem = f"Your file in the class's folder cannot be removed: {error}"
        raise WorkshopError(problem, f"Remove it there, then {note}.") from None
    note.unlink()
    return True


def renew(progress: Mapping[str, Mapping]) -> None:
    """Write again what a learner shares, if they share; a disk that is away must not stop them."""
    with contextlib.suppress(*DAMAGED):
        _write(progress)


def _note() -> dict[str, str]:
    return files.read_json(home() / NOTE, record_file.MAX_BYTES)


def _write(progress: Mapping[str, Mapping]) -> None:
    note = _note()
    checks = {}
    for key, entry in progress.items():
        if "tries" in entry:
            checks[key] = {"tries": entry["tries"], "done": bool(entry.get("done"))}
    tests = {}
    for when in TESTS:
        if f"test.{when}" in progress:
            tests[when] = progress[f"test.{when}"]["right"]
    shared = {
        "name": note["name"],
        "updated": timestamps.now(),
        "checks": checks,
        "tests": tests,
    }
    path = Path(note["path"])
    write_private(path, json.dumps(shared) + "\n", 0o640, path.parent.stat().st_gid)


def read(keys: Collection[str]) -> tuple[list[Learner], list[str]]:
    """Return the learners who share, the most recent first, and why other files are passed over.

    Each learner has the checks that `keys` names.
    """
    learners, passed, place = [], [], folder()
    try:
        paths = sorted(place / name for name in os.listdir(place) if name.endswith(".json"))
    except OSError as error:
        raise WorkshopError(
            f"You may not list {place} ({error.strerror}).", "Only its owner sees the table."
        ) from None
    for path in paths:
        try:
            data = files.read_json(path, record_file.MAX_BYTES)
            learners.append(_learner(data, keys, path.name))
        except DAMAGED as error:
            why = getattr(error, "strerror", None) or error
            passed.append(f"{path.name}: {why}"[:200])
    return sorted(learners, key=lambda learner: learner.updated, reverse=True), passed


def _learner(data: Mapping, keys: Collection[str], file: str) -> Learner:
    """Return what a file holds; one of DAMAGED says what is wrong with it."""
    checks = {}
    for key in keys:
        if key in data["checks"]:
            entry = data["checks"][key]
            checks[key] = {"tries": int(entry["tries"]), "done": bool(entry["done"])}
    tests = {}
    for when in TESTS:
        right = data["tests"].get(when)
        if right in range(11):
            tests[when] = right
    updated = datetime.fromisoformat(data["updated"]).astimezone(UTC)
    return Learner(
        str(data["name"])[:40], updated.isoformat(timespec="seconds"), checks, tests, file
    )

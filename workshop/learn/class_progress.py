"""Who of a class is where: learners who want to share their tries, without a name unless they give one.

A learner's file lies in $WORKSHOP_SHARED/progress (0640, of that folder's group) and follows their checks. The folder
is the instructor's: members of the group may add files, and replace only their own. What is no such file is passed over.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from workshop.errors import BadInput, WorkshopError, plain
from workshop.launch import record_file
from workshop.launch.home import home, private_folder, write_private

NOTE = "progress.shared"  # in the learner's home: which file is theirs, and the name on it
TESTS = ("pre", "post")
MOST_TRIES = 10_000
DAMAGED = (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Learner:
    name: str
    updated: str  # ISO 8601, UTC
    checks: Mapping[str, Mapping]  # key → {"tries": int, "done": bool}
    tests: Mapping[str, int]  # right answers to ten questions, of those of TESTS that were made


def folder() -> Path:
    """Return the class's folder of progress; a BadInput says how to make one."""
    given = os.environ.get("WORKSHOP_SHARED")
    if not given:
        raise BadInput("WORKSHOP_SHARED is not set.", "Set it to the folder that your class shares.")
    place = Path(given).expanduser() / "progress"
    if not place.is_dir():
        how = f"mkdir {place} && chgrp GROUP {place} && chmod 3730 {place}"
        raise BadInput(f"There is no folder {place}, or it is closed to you.", f"The instructor makes it: {how}")
    return place.resolve()


def share(progress: Mapping[str, Mapping], name: str = "") -> str:
    """Begin to share tries and results, no answers; return the name on them: by default a number that says nothing."""
    if len(name) > 40 or not name.isprintable():
        raise BadInput(f"{name[:60]!r} cannot be a name.", "Use up to 40 letters.")
    name = name.strip()
    withdraw()
    number = secrets.token_hex(4)
    note = {"path": str(folder() / f"{number}.json"), "name": name or f"learner {number[:4]}"}
    private_folder()
    write_private(home() / NOTE, json.dumps(note) + "\n")
    _write(progress)
    return note["name"]


def withdraw() -> bool:
    """Share no longer: the file goes; return whether there was one."""
    with contextlib.suppress(*DAMAGED):
        Path(json.loads((home() / NOTE).read_bytes())["path"]).unlink(missing_ok=True)
        (home() / NOTE).unlink()
        return True
    return False


def renew(progress: Mapping[str, Mapping]) -> None:
    """Write again what a learner shares, if they share; a disk that is away must not stop them."""
    with contextlib.suppress(*DAMAGED, WorkshopError):
        _write(progress)


def _write(progress: Mapping[str, Mapping]) -> None:
    note = json.loads((home() / NOTE).read_bytes())
    tried = {key: {"tries": e["tries"], "done": bool(e.get("done"))} for key, e in progress.items() if "tries" in e}
    tests = {when: progress[f"test.{when}"]["right"] for when in TESTS if f"test.{when}" in progress}
    shared = Learner(note["name"], datetime.now(UTC).isoformat(timespec="seconds"), tried, tests)
    path = Path(note["path"])
    write_private(path, json.dumps(asdict(shared)) + "\n", 0o640, path.parent.stat().st_gid)


def read(known: Collection[str]) -> tuple[list[Learner], list[str]]:
    """Return those who share, the most recent first, with checks that are known; and why other files are passed over."""
    found, passed, place = [], [], folder()
    try:
        paths = sorted(place / name for name in os.listdir(place) if name.endswith(".json"))
    except OSError as error:
        raise WorkshopError(f"You may not list {place} ({error.strerror}).", "Only its owner sees the table.") from None
    for path in paths:
        try:
            found.append(_checked(json.loads(record_file.text_of(path)), known))
        except DAMAGED as error:
            passed.append(plain(f"{path.name}: {getattr(error, 'strerror', None) or error}")[:200])
    return sorted(found, key=lambda one: one.updated, reverse=True), passed


def _checked(data: Mapping, known: Collection[str]) -> Learner:
    """Return what a file holds; one of DAMAGED says what is wrong with it."""
    updated = datetime.fromisoformat(data["updated"])
    if updated.tzinfo is None:
        raise ValueError("its time has no zone")
    for entry in data["checks"].values():
        if type(entry["tries"]) is not int or not 0 < entry["tries"] <= MOST_TRIES or type(entry["done"]) is not bool:
            raise ValueError("its tries are no numbers")
    tests = {when: n for when, n in data["tests"].items() if when in TESTS and type(n) is int and 0 <= n <= 10}
    checks = {key: data["checks"][key] for key in known if key in data["checks"]}
    return Learner(plain(str(data["name"]))[:40], updated.astimezone(UTC).isoformat(timespec="seconds"), checks, tests)

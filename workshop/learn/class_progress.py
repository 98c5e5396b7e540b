"""Who of a class is where: learners who want to share their tries, without a name unless they give one.

A learner's file lies in $WORKSHOP_SHARED/progress (0640, of that folder's group) and follows their checks. The folder
is the instructor's: members of the group may add files, and replace only their own. What is no such file is passed over.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from workshop.errors import BadInput, WorkshopError, plain
from workshop.launch import record_file
from workshop.launch.home import home, private_folder, write_private

NOTE = "progress.shared"  # in the learner's home: which file is theirs, and the name on it
TESTS = ("pre", "post")
MOST_TRIES = 10_000


@dataclass(frozen=True)
class Learner:
    """What one learner shares; checks: key → {"tries": int, "done": bool}; updated: ISO 8601, UTC.

    tests: right answers in the test before ("pre") and after the course ("post"), as far as they were made.
    """

    name: str
    updated: str
    checks: Mapping[str, Mapping]
    tests: Mapping[str, int]

    @property
    def failing(self) -> dict[str, int]:
        """What was tried and is not right yet: key → tries."""
        return {key: entry["tries"] for key, entry in self.checks.items() if not entry["done"]}


def folder() -> Path:
    """Return the class's folder of progress.

    Raises:
        BadInput: there is none; the remedy makes one.
    """
    given = os.environ.get("WORKSHOP_SHARED")
    if not given:
        raise BadInput("WORKSHOP_SHARED is not set.", "Set it to the folder that your class shares.")
    place = Path(given).expanduser() / "progress"
    if not place.is_dir():
        how = f"mkdir {place} && chgrp GROUP {place} && chmod 3730 {place}"
        raise BadInput(f"There is no folder {place}, or it is closed to you.", f"The instructor makes it: {how}")
    return place


def share(progress: Mapping[str, Mapping], name: str = "") -> Path:
    """Begin to share: put a file into the class's folder, and remember it; return where it is.

    Args:
        progress: as `exercises.progress()` has it; predictions and answers stay at home.
        name: what the table calls this learner; by default a number that says nothing.
    """
    if len(name) > 40 or not name.isprintable():
        raise BadInput(f"{plain(name[:60])!r} cannot be a name.", "Use up to 40 letters.")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        withdraw()
    number = secrets.token_hex(4)
    path = folder().resolve() / f"{number}.json"
    private_folder()
    write_private(home() / NOTE, json.dumps({"path": str(path), "name": name or f"learner {number[:4]}"}) + "\n")
    _write(progress)
    return path


def withdraw() -> Path:
    """Stop to share; return the file that is gone.

    Raises:
        OSError, ValueError, KeyError, TypeError: nothing was shared.
    """
    path = Path(json.loads((home() / NOTE).read_text(encoding="utf-8"))["path"])
    (home() / NOTE).unlink()
    path.unlink(missing_ok=True)
    return path


def renew(progress: Mapping[str, Mapping]) -> None:
    """Write what a learner shares again, if they share it; a disk that is away must not stop them."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, WorkshopError):
        _write(progress)


def _write(progress: Mapping[str, Mapping]) -> None:
    note = json.loads((home() / NOTE).read_text(encoding="utf-8"))
    tried = {key: {"tries": e["tries"], "done": bool(e.get("done"))} for key, e in progress.items() if "tries" in e}
    tests = {when: progress[f"test.{when}"]["right"] for when in TESTS if f"test.{when}" in progress}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    path = Path(note["path"])
    text = json.dumps(asdict(Learner(note["name"], now, tried, tests))) + "\n"
    write_private(path, text, 0o640, path.parent.stat().st_gid)


def read(known: Collection[str]) -> tuple[list[Learner], list[str]]:
    """Return those who share, the most recent first, and why other files were passed over.

    Args:
        known: keys of checks; others are left out.
    """
    found, passed = [], []
    place = folder()
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(".json") and not name.startswith("."))
    except OSError as error:
        raise WorkshopError(f"You may not list {place} ({error.strerror}).", "Only its owner sees the table.") from None
    for name in names:
        try:
            one = _checked(json.loads(record_file.text_of(place / name)))
        except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            passed.append(plain(f"{name}: {getattr(error, 'strerror', None) or error}")[:200])
        else:
            found.append(replace(one, checks={key: one.checks[key] for key in known if key in one.checks}))
    return sorted(found, key=lambda one: one.updated, reverse=True), passed


def _checked(data: object) -> Learner:
    """Return what a file holds, or raise a ValueError that says what is wrong with it."""
    if not isinstance(data, dict) or not isinstance(data.get("checks"), dict):
        raise ValueError("it is no learner's progress")
    if datetime.fromisoformat(data["updated"]).tzinfo is None:
        raise ValueError("its time has no zone")
    for entry in data["checks"].values():
        if type(entry["tries"]) is not int or not 0 < entry["tries"] <= MOST_TRIES or type(entry["done"]) is not bool:
            raise ValueError("its tries are no numbers")
    tests = {when: n for when, n in data["tests"].items() if when in TESTS and type(n) is int and 0 <= n <= 10}
    return Learner(plain(str(data["name"]))[:40], data["updated"], data["checks"], tests)

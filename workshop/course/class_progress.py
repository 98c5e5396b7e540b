"""The progress of a class: the tries of learners who choose to share them.

Nobody's name is shown unless they give one.

A learner's file lies in $WORKSHOP_SHARED/progress (0640, of that folder's group) and follows their
checks. The folder is the instructor's: members of the group may add files, and replace only their
own. What is no such file is passed over.

A name is what a learner writes. Whose it is, the file's owner says, whom nobody but root can
change: the instructor's side remembers which account a name was first seen from, and tells where
another account uses it.
"""

import contextlib
import errno
import json
import os
import secrets
import stat
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from workshop import files, timestamps
from workshop.errors import BadInput, WorkshopError, plain
from workshop.servers import record_file
from workshop.servers.home import home, private_folder, write_private
from workshop.servers.lock import Lock

NOTE = "progress.shared"  # in the learner's home: which file is theirs, and the name on it
# in the instructor's home: the account that each name was first seen from
NAMES = "progress.names.json"
TESTS = ("pre", "post")
MOST_TRIES = 10_000
MOST_NAMES_BYTES = 4 * 2**20
DAMAGED = (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError)
LATER = "another account had this name first"
SEVERAL = "more than one account uses this name"
# Letters of other alphabets that look like Latin ones, in lower case.
LOOK_ALIKE = str.maketrans("аеорсухіјѕкмтвнԁһӏαορνικτυ", "aeopcyxijskmtbhdhlaopviktu")


@dataclass(frozen=True)
class Learner:
    """A learner who shares.

    updated: ISO 8601, UTC.
    checks: key → {"tries": int, "done": bool}.
    tests: right answers to ten questions, of those of TESTS that were made.
    file: the name of their file in the class's folder.
    claim: LATER or SEVERAL if the name may be somebody else's, "" otherwise.
    """

    name: str
    updated: str
    checks: Mapping[str, Mapping]
    tests: Mapping[str, int]
    file: str = ""
    claim: str = ""


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


def folder_note(place: Path) -> str:
    """Return a warning if others could replace a learner's file in the folder, or ''."""
    mode = place.stat().st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        return (
            f"Others than you may replace a learner's file in {place}. Close it: chmod +t {place}"
        )
    return ""


def who_may_list(place: Path) -> str:
    """Return who sees the files of the folder, and with them the accounts that they belong to."""
    mode = place.stat().st_mode
    if mode & 0o004:
        return "everybody on this machine"
    if mode & 0o040:
        return "members of the class's group"
    return "the folder's owner"


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
    except DAMAGED as error:
        problem = f"{note} does not say which file is yours: {error}"
        remedy = f"Remove your file from the class's folder, then {note}."
        raise WorkshopError(problem, remedy) from None
    if not path.parent.is_dir():
        remedy = "Withdraw again where that folder is there."
        raise WorkshopError(
            f"Your file cannot be removed: the folder {path.parent} is away.", remedy
        )
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise WorkshopError(
            f"{path} cannot be removed: {error.strerror}.", "Ask the folder's owner."
        ) from None
    note.unlink()
    return True


def renew(progress: Mapping[str, Mapping]) -> None:
    """Write again what a learner shares, if they share; a disk that is away must not stop them."""
    with contextlib.suppress(*DAMAGED, WorkshopError):
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
    owners, files_before = [], set()
    for path in paths:
        try:
            text, facts = _text_and_owner(path)
            if (facts.st_dev, facts.st_ino) in files_before:
                raise ValueError("it is another name of a file that is in the table")
            learner = replace(_checked(json.loads(text), keys), file=plain(path.name))
        except DAMAGED as error:
            passed.append(plain(f"{path.name}: {getattr(error, 'strerror', None) or error}")[:200])
            continue
        files_before.add((facts.st_dev, facts.st_ino))
        learners.append(learner)
        owners.append(facts.st_uid)
    named, problem = _with_claims(place, learners, owners)
    if problem:
        passed.append(f"which account has which name, as it could not be kept: {problem}")
    return sorted(named, key=lambda learner: learner.updated, reverse=True), passed


def _text_and_owner(path: Path) -> tuple[str, os.stat_result]:
    """Return the text of a file, and the file's status.

    A link is refused, because it may lead to another user's file. Opening never waits, as it would
    for a named pipe.
    """
    try:
        descriptor = os.open(path, files.READ_FLAGS | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError("it is a link, not a file") from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        kind = files.kind_of(facts)
        if kind:
            raise ValueError(f"it is {kind}, not a file")
        data = file.read(record_file.MAX_BYTES + 1)
    if len(data) > record_file.MAX_BYTES:
        raise ValueError(f"it is larger than {record_file.MAX_BYTES // 1024} KiB")
    return data.decode("utf-8"), facts


def _with_claims(
    place: Path, learners: list[Learner], owners: list[int]
) -> tuple[list[Learner], str]:
    """Return the learners, each with a remark if another account had the name first.

    A name that appears for the first time is remembered with its account.

    The text says why that could not be remembered.
    """
    first = _remembered().get(str(place), {})
    accounts: dict[str, set[int]] = {}
    for learner, owner in zip(learners, owners, strict=True):
        accounts.setdefault(comparable(learner.name), set()).add(owner)
    result = []
    is_new = False
    for learner, owner in zip(learners, owners, strict=True):
        name = comparable(learner.name)
        if name in first:
            claim = LATER
            if first[name] == owner:
                claim = ""
        elif len(accounts[name]) > 1:
            claim = SEVERAL
        else:
            claim = ""
            first[name] = owner
            is_new = True
        result.append(replace(learner, claim=claim))
    if not is_new:
        return result, ""
    return result, _remember(place, first)


def _remember(place: Path, first: Mapping[str, int]) -> str:
    """Store names with their accounts; return why that was impossible, or ''.

    Names that another process has stored meanwhile stay.
    """
    try:
        private_folder()
        with Lock(home() / f"{NAMES}.lock").taken() as free:
            if not free:
                return "another process writes the table of names"
            remembered = _remembered()
            remembered[str(place)] = {**first, **remembered.get(str(place), {})}
            write_private(home() / NAMES, json.dumps(remembered, indent=1) + "\n")
    except WorkshopError as error:
        return error.message
    return ""


def _remembered() -> dict[str, dict[str, int]]:
    """Return which account each name was first seen from, by the class's folder."""
    path = home() / NAMES
    if not os.path.lexists(path):
        return {}
    remedy = (
        "Whose name is whose is not known without it. "
        f"To begin anew, move it away: mv {path} {path}.old"
    )
    stored = files.read_json(path, MOST_NAMES_BYTES, remedy)
    try:
        for names in stored.values():
            for owner in names.values():
                if type(owner) is not int:
                    raise ValueError
    except (AttributeError, ValueError):
        raise BadInput(f"{path} is not the table of names that it was.", remedy) from None
    return stored


def comparable(name: str) -> str:
    """Return a form of a name that is equal for names that look alike."""
    text = unicodedata.normalize("NFKC", name).casefold()
    letters = unicodedata.normalize("NFKD", text.translate(LOOK_ALIKE))
    visible = ""
    for letter in letters:
        if unicodedata.category(letter) not in ("Cf", "Mn"):
            visible += letter
    return " ".join(visible.split())


def _checked(data: Mapping, keys: Collection[str]) -> Learner:
    """Return what a file holds; one of DAMAGED says what is wrong with it."""
    updated = datetime.fromisoformat(data["updated"])
    if updated.tzinfo is None:
        raise ValueError("its time has no zone")
    for entry in data["checks"].values():
        if (
            type(entry["tries"]) is not int
            or not 0 < entry["tries"] <= MOST_TRIES
            or type(entry["done"]) is not bool
        ):
            raise ValueError("its tries are no numbers")
    tests = {}
    for when, right in data["tests"].items():
        if when in TESTS and type(right) is int and 0 <= right <= 10:
            tests[when] = right
    checks = {}
    for key in keys:
        if key in data["checks"]:
            checks[key] = data["checks"][key]
    return Learner(
        plain(str(data["name"]))[:40],
        updated.astimezone(UTC).isoformat(timespec="seconds"),
        checks,
        tests,
    )

"""Keeps a key for each learner of a class: `workshop keys`.

One file of this user's, keys.json, holds the names and the digests of their keys (never the keys).
Every server of this user's reads it again while it runs: a key that is revoked is refused, and what
it asked for ends, within a second.

Only "no such file" is an empty table: a file that is cut, odd or unreadable is refused and kept. A
server that meets such a file goes on with the last good table that it read itself, in which no
revoked key is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workshop import files, timestamps
from workshop.errors import BadInput, WorkshopError
from workshop.guard.fairshare import LEARNER, FairShare
from workshop.guard.revocable import RevocableRequest
from workshop.home import home, private_folder, write_private
from workshop.lock import Busy, locked

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
FILE = "keys.json"
FIELDS = {"sha256", "created", "revoked"}  # of an entry
REPAIR = "Repair it, or move it away to begin with no keys."
MAX_BYTES = 16 * 2**20
WAIT_S = 30.0  # for other commands that change the keys
REREAD_S = 0.5  # how old what a server knows of the keys may be
Table = dict[str, dict[str, Any]]


def _digest(key: str | bytes) -> str:
    if isinstance(key, str):
        key = key.encode()
    return hashlib.sha256(key).hexdigest()


def read_table(path: Path) -> Table:
    """Return {name: entry} of a keys.json; {} if there is no such file, and for no other reason.

    Raises:
        WorkshopError: the file cannot be read, or is no table of keys.
    """
    try:
        path.lstat()
        entries = files.read_json(path, MAX_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise WorkshopError(f"{path} cannot be read: {files.reason(error)}.", REPAIR) from None
    except BadInput as error:
        raise WorkshopError(error.message, REPAIR) from None
    if not isinstance(entries, dict) or not all(map(_is_entry, entries.values())):
        raise WorkshopError(f"{path} is no table of keys.", REPAIR)
    return entries


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.keys() >= FIELDS


@contextmanager
def _changing() -> Iterator[Table]:
    """Give the table to change; afterwards it is on disk."""
    folder = private_folder()
    busy = Busy("Another command is changing the keys.", "Try again in a moment.")
    with locked(folder / "keys.lock", busy, WAIT_S):
        entries = read_table(folder / FILE)
        yield entries
        write_private(folder / FILE, json.dumps(entries, indent=1) + "\n", sync=True)


def add(name: str) -> str:
    """Return a new key for a name that has none; it is kept nowhere, only its digest is."""
    return add_all([name])[name]


def add_all(names: list[str]) -> dict[str, str]:
    """Return {name: new key} for names that have none.

    Raises BadInput: one of the names cannot have a key. Then nobody gets one.
    """
    new_keys: dict[str, str] = {}
    with _changing() as entries:
        for name in names:
            _refuse(name, entries)
            new_keys[name] = secrets.token_urlsafe(24)
            entries[name] = {
                "sha256": _digest(new_keys[name]),
                "created": timestamps.now(),
                "revoked": None,
            }
    return new_keys


def _refuse(name: str, entries: Table) -> None:
    """Raise BadInput if this name cannot be a learner's, or has a key."""
    if not NAME.fullmatch(name):
        remedy = "Use up to 64 letters from a to z, digits, '.', '_', '-' and '@'."
        raise BadInput(f"{name!r} cannot be a learner's name.", remedy)
    if name in entries and not entries[name]["revoked"]:
        raise BadInput(
            f"{name} has a key already.", f"Revoke it first: workshop keys revoke {name}"
        )


def revoke(name: str) -> None:
    """Take a name's key back: every server of yours refuses it from then on, within a second."""
    with _changing() as entries:
        if name not in entries or entries[name]["revoked"]:
            active = [other for other, entry in entries.items() if not entry["revoked"]]
            valid = ", ".join(active) or "none"
            raise WorkshopError(f"Nobody called {name!r} has a key.", f"Those who have: {valid}.")
        entries[name]["revoked"] = timestamps.now()


def listed() -> list[dict[str, Any]]:
    """Return who has a key, since when, and when it was revoked; no keys."""
    rows = []
    for name, entry in sorted(read_table(home() / FILE).items()):
        rows.append({"name": name, "created": entry["created"], "revoked": entry["revoked"]})
    return rows


class Learners:
    """Knows whose key a request has, and ends what a revoked key asked for."""

    def __init__(self, record: str | Path):
        """record: the file of the server's record; the keys are in the folder above it."""
        self._path = Path(record).parent.parent / FILE
        # a class's, also where the server was started without --learners
        self._limits = FairShare(None)
        self._names: dict[str, str] = {}  # by the digest of the key
        self._read_at = float("-inf")
        self._problem = ""  # of the file, which was printed already
        self._served: dict[RevocableRequest, str] = {}  # with the digest of its key
        self._watcher: asyncio.Task | None = None

    def who(self, key: bytes) -> str:
        """Return whose key this is, or ""."""
        if time.monotonic() - self._read_at >= REREAD_S:
            self._take(*self._load())
        if not key:
            return ""
        return self._names.get(_digest(key), "")

    def _load(self) -> tuple[float, dict[str, str] | None, str]:
        """Return when this began, {digest: name} of the file, and what is wrong with it.

        None instead of the names: the file is no table of keys.
        """
        began = time.monotonic()
        try:
            # opened anew: on a shared file system that asks for the newest
            entries = read_table(self._path)
        except WorkshopError as error:
            return began, None, error.message
        names: dict[str, str] = {}
        for name, entry in entries.items():
            if not entry["revoked"]:
                names[entry["sha256"]] = name
        return began, names, ""

    def _take(self, began: float, names: dict[str, str] | None, problem: str) -> None:
        if began < self._read_at:  # a slower look at an older file
            return
        self._read_at = began
        if names is not None:
            self._names = names
        if problem and not self._problem:
            count = len(self._names)
            remedy = f"The {count} keys that this server read last stay valid until it is repaired."
            print(f"{problem} {remedy}", file=sys.stderr, flush=True)
        self._problem = problem

    async def serve(self, name: str, key: bytes, app, scope, receive, send) -> None:
        """Pass a learner's request on until its key is revoked.

        The class's limits see it under the learner's name.
        """
        headers: list[tuple[bytes, bytes]] = []
        for header, value in scope.get("headers", ()):
            if header.lower() != LEARNER:
                headers.append((header, value))
        headers.append((LEARNER, name.encode()))
        scope = {**scope, "headers": headers}

        async def limited(scope, receive, send):
            await self._limits.limit(scope, receive, send, app)

        request = RevocableRequest(limited, scope, receive, send)
        self._served[request] = _digest(key)  # also while it waits for its turn
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.ensure_future(self._watch())
        try:
            await request.serve()
        finally:
            del self._served[request]

    async def _watch(self) -> None:
        """Look at the file while something is served; in a thread, as a file system can be slow."""
        while self._served:
            await asyncio.sleep(REREAD_S)
            self._take(*await asyncio.to_thread(self._load))
            for request, digest in self._served.items():
                if digest not in self._names:
                    request.revoke()

"""progress.json: what a learner tried and predicted.

A damaged file is never written over: it gets another name beside the new one. One that cannot be
read for the moment is left alone. Two notebooks may write at the same time.
"""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from workshop import files
from workshop.errors import BadInput
from workshop.home import home, private_folder, write_private, writing
from workshop.lock import Busy, locked

FILE = "progress.json"
MAX_BYTES = 16 * 2**20
WAIT_S = 5.0  # for another notebook
MOVE_AWAY = "Move that file away to begin anew."


def read() -> dict[str, dict]:
    """Return the entries that can be read."""
    try:
        return _parsed(_text(home() / FILE))[0]
    except BadInput:
        return {}


def add(key: str, entry: dict) -> dict[str, dict]:
    """Keep an entry; return all.

    Raises WorkshopError where that cannot be; then nothing has changed.
    """
    folder = private_folder()
    path = folder / FILE
    busy = Busy("Another notebook writes your progress.", "Run this cell again.")
    with locked(folder / "progress.lock", busy, WAIT_S):
        entries, is_whole = _parsed(_text(path))
        if not is_whole:
            with writing(path):
                os.replace(path, path.with_name(f"{FILE}.damaged-{secrets.token_hex(4)}"))
        entries[key] = entry
        write_private(path, json.dumps(entries, indent=1) + "\n")
    return entries


def _text(path: Path) -> bytes:
    """Return what is in the file, "{}" if there is no such file.

    Raises BadInput where it cannot be read.
    """
    if not os.path.lexists(path):
        return b"{}"
    return files.read_bytes(path, MAX_BYTES, MOVE_AWAY)


def _parsed(text: bytes) -> tuple[dict[str, dict], bool]:
    """Return the entries that are right, and whether that is all of the file."""
    try:
        stored = json.loads(text)
    except (ValueError, RecursionError):
        return {}, False
    if not isinstance(stored, dict):
        return {}, False
    entries = {key: entry for key, entry in stored.items() if isinstance(entry, dict)}
    return entries, len(entries) == len(stored)

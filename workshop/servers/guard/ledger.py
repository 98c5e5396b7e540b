"""Writes down how much each learner used, in one file for each process that serves."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from os import getpid
from pathlib import Path
from typing import Any

from workshop import files, timestamps
from workshop.errors import WorkshopError
from workshop.servers.home import write_private

COUNTS = ("requests", "prompt_tokens", "completion_tokens")
MAX_BYTES = 64 * 2**20


class Ledger:
    """The tokens that the learners used of one process.

    Its file is its own: a pid can come again.
    """

    def __init__(self, folder: Path, server: str):
        self.path = folder / f"{server}.{getpid()}.{secrets.token_hex(4)}.json"
        self._used: dict[str, dict[str, Any]] = {}
        self._is_written = True

    def add(self, name: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Count one request."""
        entry = self._used.setdefault(name, dict.fromkeys(COUNTS, 0))
        entry["requests"] += 1
        entry["prompt_tokens"] += prompt_tokens
        entry["completion_tokens"] += completion_tokens
        entry["last_used"] = timestamps.now()
        self._is_written = False

    def write(self) -> None:
        """Write what is not on disk yet.

        Raises:
            OSError, WorkshopError: it cannot be written; the next call tries again.
        """
        if self._is_written:
            return
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_private(self.path, json.dumps(self._used, indent=1) + "\n")
        self._is_written = True


def total(folder: Path, warn: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Return {name: counts and "last_used"} over all ledgers of a folder.

    warn: is told of a ledger that is not whole.
    """
    used: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            entries = _checked(files.read_json(path, MAX_BYTES), path)
        except WorkshopError as error:
            warn(f"{error.message} What it counted is missing here.")
            continue
        for name, entry in entries.items():
            sums = used.setdefault(name, {**dict.fromkeys(COUNTS, 0), "last_used": ""})
            for count in COUNTS:
                sums[count] += entry[count]
            sums["last_used"] = max(sums["last_used"], entry.get("last_used") or "")
    return used


def _checked(entries: Any, path: Path) -> dict[str, dict[str, Any]]:
    if not isinstance(entries, dict):
        raise WorkshopError(f"{path} is no ledger: it is no JSON object.")
    for name, entry in entries.items():
        whole = isinstance(entry, dict) and all(type(entry.get(count)) is int for count in COUNTS)
        if not whole or not isinstance(entry.get("last_used", ""), str):
            raise WorkshopError(f"{path} is no ledger: its entry {name[:64]!r} has no counts.")
    return entries

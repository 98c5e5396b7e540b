"""Reading the file of a record: what is no record is refused in one sentence, whatever lies there.

The file may be another user's. It is opened without waiting (a FIFO), read up to a limit, and every field is checked.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workshop.errors import WorkshopError, plain

MAX_BYTES = 32 * 1024
REMEDY = "Remove that file and start the server again."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
STATES = ("starting", "ready", "failed")


@dataclass(frozen=True)
class ServerRecord:
    """One server; the names are relied on from outside (see the README's table of them)."""

    name: str
    url: str  # ends in /v1
    model: str  # the name that requests give
    api_key: str = field(repr=False)
    where: str = "local"  # local, slurm, vm, kubernetes
    host: str = ""
    pid: int | None = None  # of vLLM's API server
    boot_id: str = ""
    job_id: str | None = None
    log: str = ""
    vllm_version: str = ""
    state: str = "starting"  # one of STATES
    reason: str = ""  # why it failed
    started: str = ""  # ISO 8601, UTC
    process_started: int | None = None  # of that pid (processes.started)

    def public(self) -> dict:
        """Return the record without its key, for printing."""
        return {key: value for key, value in asdict(self).items() if key != "api_key"}


def read(path: Path) -> dict[str, Any]:
    """Return the record in this file, checked and fit for a terminal; else a FileNotFoundError or WorkshopError."""
    try:
        return checked(json.loads(text_of(path)))
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(str(path)) from None
    except PermissionError:
        raise WorkshopError(
            f"You may not read the server record {path}.", "Ask whoever shared it to share it with a group of yours."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        why = getattr(error, "strerror", None) or str(error)[:200]
        raise WorkshopError(f"The server record {path} cannot be read: {why}.", REMEDY) from None


def text_of(path: Path) -> str:
    # A FIFO without a writer would wait for ever, a terminal would become ours.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES // 1024} KiB")
    return data.decode("utf-8")


def checked(data: Any) -> dict[str, Any]:
    """Return the fields that a record has, or raise a ValueError that names a wrong one, without its value."""
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    if lacking := [key for key in REQUIRED if key not in data]:
        raise ValueError(f"it has no {lacking[0]}")
    for key, (right, what) in FIELDS.items():
        if key in data and not right(data[key]):
            raise ValueError(f"its {key} is not {what}")
    return {key: plain(data[key]) if isinstance(data[key], str) else data[key] for key in FIELDS if key in data}


def _text_like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _whole(value: Any, least: int) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62)


def _address(value: Any) -> bool:
    if not _text_like(r"https?://[!-~]+/v1/?")(value):
        return False
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False


def _time(value: Any) -> bool:
    try:
        return value == "" or datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


TEXT = (_text_like("(?s:.*)"), "text")
REQUIRED = ("name", "url", "model", "api_key")
# field -> (is it right, what it has to be)
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_text_like(NAME.pattern), "the name of a server"),
    "url": (_address, "an address that ends in /v1"),
    "model": TEXT,
    "api_key": (_text_like(r"[!-~]*"), "a key"),  # it goes into a header
    "where": TEXT,
    "host": TEXT,
    # 0 and negative numbers mean whole groups of processes to kill(2), 1 is the system's first.
    "pid": (lambda value: _whole(value, 2) and (value or 0) < 2**31, "the number of a process"),
    "process_started": (lambda value: _whole(value, 0), "a whole number"),
    "boot_id": TEXT,
    "job_id": (lambda value: value is None or _text_like(r"\d{1,20}(_\d{1,10})?")(value), "the number of a job"),
    "log": TEXT,
    "vllm_version": TEXT,
    "state": (_text_like("|".join(STATES)), f"one of {', '.join(STATES)}"),
    "reason": TEXT,
    "started": (_time, "a time with its zone"),
}

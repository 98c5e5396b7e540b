"""Files that a user names, for reading: only regular files are opened, and reading never waits.

A FIFO without a writer, a terminal or a socket is refused, and so is a file above a limit.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from inference_planner.errors import BadInput

READABLE = "Give a regular file that you may read."
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: str | Path, remedy: str = READABLE) -> BinaryIO:
    """Open a regular file for reading, without ever waiting.

    Raises:
        BadInput: there is no such file, it cannot be read, or it is a folder, a pipe, a socket or a
            device.
    """
    try:
        # before it is opened: to open a device may already do something
        kind = file_kind(os.stat(path))
        if not kind:
            return open(path, "rb")
    except (OSError, ValueError) as error:
        raise BadInput(f"{shown(path)} cannot be read: {reason(error)}.", remedy) from None
    raise BadInput(f"{path} cannot be read: it is {kind}, not a file.", remedy)


def file_kind(status: os.stat_result) -> str:
    """Return what is no regular file in words ("a pipe"), and "" for a regular file."""
    for is_kind, description in KINDS:
        if is_kind(status.st_mode):
            return description
    return ""


def read_bytes(path: str | Path, most_bytes: int, remedy: str = READABLE) -> bytes:
    """Return what is in a regular file of at most `most_bytes`. Raises BadInput."""
    with open_regular(path, remedy) as file:
        try:
            data = file.read(most_bytes + 1)
        except OSError as error:
            raise BadInput(f"{path} cannot be read: {reason(error)}.", remedy) from None
    if len(data) > most_bytes:
        raise BadInput(f"{path} is too large: such a file has at most {size(most_bytes)}.", remedy)
    return data


def read_text(path: str | Path, most_bytes: int, remedy: str = READABLE) -> str:
    """Return the UTF-8 text of a regular file.

    Raises:
        BadInput: as `read_bytes` does, and for a file that is not text.
    """
    data = read_bytes(path, most_bytes, remedy)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start:,}).", remedy) from None


def read_json(path: str | Path, most_bytes: int, remedy: str = READABLE) -> Any:
    """Return the value in a JSON file.

    Raises:
        BadInput: as `read_text` does, and for a file that is not whole JSON, or nested too deeply.
    """
    text = read_text(path, most_bytes, remedy)
    try:
        return json.loads(text)
    except RecursionError:
        raise BadInput(f"{path} is nested too deeply to be read.", remedy) from None
    except ValueError as error:  # also numbers of thousands of digits
        raise BadInput(f"{path} is not whole JSON: {error}.", remedy) from None


def json_setting(name: str, value: object, remedy: str) -> dict[str, Any]:
    """Return a setting that is an object, or JSON of one. Raises BadInput: it is neither."""
    fields = value
    if isinstance(value, str):
        try:
            fields = json.loads(value)
        except (ValueError, RecursionError):
            fields = None
    if not isinstance(fields, Mapping):
        raise BadInput(f"{name} {str(value)[:80]!r} is no JSON object.", remedy)
    return dict(cast("Mapping[str, Any]", fields))


def as_object(value: object) -> dict[str, Any] | None:
    """Return a JSON object; None for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def as_list(value: object) -> list[Any] | None:
    """Return a JSON list; None for any other value."""
    return cast("list[Any]", value) if isinstance(value, list) else None


def reason(error: Exception) -> str:
    """Return the system's words for why a file cannot be opened."""
    return getattr(error, "strerror", None) or str(error)


def shown(path: str | Path) -> str:
    """Return a name for a message, which may be of thousands of letters."""
    return str(path)[:200]


def size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"

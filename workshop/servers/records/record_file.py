"""Reading the file of a record: what is no record is refused in one sentence, whatever lies there.

The file may be another user's. It is opened without waiting (a FIFO), read up to a limit, and every
field is checked. It is told if others could put another file in its place.
"""

import contextlib
import os
import re
import stat
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workshop import files
from workshop.errors import BadInput, WorkshopError, plain

MAX_BYTES = 32 * 1024
REMEDY = "Remove that file and start the server again."
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CLUSTER = NAME.pattern  # the name of a SLURM cluster
STATES = ("starting", "ready", "failed")
# States of a job that only its queue knows (slurm.queue): no file has them.
WAITING, SUSPENDED = "waiting", "suspended"


def _text_like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_job = _text_like(r"\d{1,20}(_\d{1,10})?")


def _number(least: int, above: int = 2**62) -> Callable[[Any], bool]:
    def right(value: Any) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return value is None or (is_number and least <= value < above)

    return right


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


def _field(right: Callable[[Any], bool], what: str, **options: Any) -> Any:
    """A field of a record, with a question (is a value right?) and what it has to be."""
    return field(metadata={"right": right, "what": what}, **options)


def _text(default: Any = "", **options: Any) -> Any:
    return _field(_text_like("(?s:.*)"), "text", default=default, **options)


@dataclass(frozen=True)
class ServerRecord:
    """One server; the names are relied on from outside (see the README's table of them)."""

    name: str = _field(_text_like(NAME.pattern), "the name of a server")
    url: str = _field(_address, "an address that ends in /v1")
    model: str = _text(MISSING)  # the name that requests give
    api_key: str = _field(_text_like(r"[!-~]*"), "a key", repr=False)  # it goes into a header
    where: str = _text("local")  # local, slurm, vm, kubernetes
    host: str = _text()
    # Of vLLM's API server. 0 and negative numbers mean whole groups of processes to kill(2), 1 is
    # the system's first.
    pid: int | None = _field(_number(2, 2**31), "the number of a process", default=None)
    boot_id: str = _text()
    job_id: str | None = _field(
        lambda value: value is None or _job(value), "the number of a job", default=None
    )
    log: str = _text()
    vllm_version: str = _text()
    state: str = _field(
        _text_like("|".join(STATES)), f"one of {', '.join(STATES)}", default="starting"
    )
    reason: str = _text()  # why it failed; of one that is ready: why that is in doubt
    started: str = _field(_time, "a time with its zone", default="")  # ISO 8601, UTC
    # of that pid
    process_started: int | None = _field(_number(0), "a whole number", default=None)
    # The SLURM cluster of the job; '' outside SLURM.
    cluster: str = _field(_text_like(f"({CLUSTER})?"), "the name of a cluster", default="")
    # The file in which its engine notes what it does, step by step; '' if it notes nothing.
    trace: str = _text()
    # The `workshop lab` through which it was started, which ends it; '' outside one.
    lab: str = _text()

    @property
    def in_doubt(self) -> bool:
        """True if its state is ready and something speaks against it: `slurm.queue.checked`."""
        return self.state == "ready" and bool(self.reason)

    def public(self) -> dict:
        """Return the record without its key, for printing."""
        return {key: value for key, value in asdict(self).items() if key != "api_key"}


def read(path: Path) -> dict[str, Any]:
    """Return the record in this file, checked and fit for a terminal.

    Raises:
        FileNotFoundError: there is no such file.
        WorkshopError: it cannot be read, or is no record.
    """
    try:
        return checked(files.read_json(path, MAX_BYTES, REMEDY))
    except BadInput as error:
        cause = error.__context__  # the system's own error, if it is one
        if isinstance(cause, (FileNotFoundError, NotADirectoryError)):
            raise FileNotFoundError(str(path)) from None
        remedy = REMEDY
        if isinstance(cause, PermissionError):
            remedy = "Ask whoever shared it to share it with a group of yours."
        raise WorkshopError(f"The server record {error.message}", remedy) from None
    except ValueError as error:
        raise WorkshopError(f"The server record {path} is no record: {error}.", REMEDY) from None


def checked(data: Any) -> dict[str, Any]:
    """Return the fields that a record has.

    Raises:
        ValueError: a field is wrong; it names that, without its value.
    """
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    for record_field in fields(ServerRecord):
        name = record_field.name
        if name not in data and record_field.default is MISSING:
            raise ValueError(f"it has no {name}")
        if name in data and not record_field.metadata["right"](data[name]):
            raise ValueError(f"its {name} is not {record_field.metadata['what']}")
    values: dict[str, Any] = {}
    for record_field in fields(ServerRecord):
        if record_field.name not in data:
            continue
        value = data[record_field.name]
        if isinstance(value, str):
            value = plain(value)
        values[record_field.name] = value
    return values


def open_to_others(path: Path) -> str:
    """Return a sentence if others could replace what lies in a folder; else ''.

    With the sticky bit everybody may add files but replace only their own.
    """
    if os.name != "posix":
        return ""
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if mode & 0o022 and not mode & stat.S_ISVTX:
            return (
                f"Others may write to {path}, and so could put a server of their own in the place "
                "of the class's."
            )
    return ""

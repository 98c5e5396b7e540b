"""The workshop's own folder, $WORKSHOP_HOME, by default ~/.workshop: whole files, closed to others."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from workshop.errors import BadInput, WorkshopError
from workshop.files import replacement


class CannotWrite(WorkshopError):
    """A file could not be written: no permission, no space, or no such place."""


class NoSpace(CannotWrite):
    """The disk or the quota is used up."""


def home() -> Path:
    """Return the folder of this user's records, logs and progress (not created).

    Raises BadInput: there is no home folder.
    """
    setting = os.environ.get("WORKSHOP_HOME") or "~/.workshop"
    try:
        return Path(setting).expanduser()
    except RuntimeError:  # ~name of nobody, or no home folder at all
        remedy = "Set WORKSHOP_HOME to a folder that you may write."
        raise BadInput(f"There is no home folder for WORKSHOP_HOME={setting!r}.", remedy) from None


def private_folder(*parts: str) -> Path:
    """Return home()/parts, created if need be, closed to other users (mode 0700)."""
    folder = home()
    for part in ("", *parts):  # one after the other: what mkdir makes as parents has the usual mode
        folder = folder / part
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def write_private(
    path: Path, text: str, mode: int = 0o600, gid: int | None = None, *, sync: bool = False
) -> None:
    """Write a whole file or nothing, as `replace_file` does.

    Raises:
        WorkshopError: it cannot be written.
    """
    with writing(path):
        replace_file(path, text.encode(), mode, gid, sync=sync)


def replace_file(
    path: Path, data: bytes, mode: int, gid: int | None = None, *, sync: bool = False
) -> None:
    """Put a whole file in the place of what is there, a link too.

    A reader never sees half of it, whatever dies. Until it is whole and belongs to `gid` (unless
    that is None), nobody else may read it. sync: it is on disk before it takes its place, so that a
    power cut leaves the one or the other.
    """
    with replacement(path, private=True, sync=sync) as file:
        file.write(data)
        file.flush()
        if gid is not None:
            os.fchown(file.fileno(), -1, gid)
        os.chmod(file.fileno(), mode)


def new_log(name: str) -> IO[bytes]:
    """Return the empty log `name` in home()/logs, open for writing, closed to others (0600)."""
    path = private_folder("logs") / name
    with writing(path):
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


@contextlib.contextmanager
def writing(path: Path, remedy: str = "") -> Iterator[None]:
    """Turn an OSError of the block, which writes to `path`, into one sentence and a remedy."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error, remedy) from None


def cannot_write(path: Path, error: OSError, remedy: str = "") -> CannotWrite:
    """Turn an OSError of a write into one sentence and a remedy, by default the one for home()."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = "Free some space or quota there, or set WORKSHOP_HOME to a folder on another disk."
        return NoSpace(f"No space is left to write {path} ({error.strerror}).", remedy or free)
    elsewhere = (
        "Set WORKSHOP_HOME to a folder that you may write, for example on your project's disk."
    )
    return CannotWrite(f"Cannot write {path} ({error.strerror}).", remedy or elsewhere)

"""Files that a user names: only regular files are read, and no file is overwritten by accident.

Reading is the planner's (`inference_planner.files`): it never waits, and refuses what is no regular file. Writing is
whole or nothing: `replacement` puts a file in the place of another when all of it is there; `output` does so for a
file that a user named, and asks before that whether it may.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from inference_planner.files import (
    READABLE,
    file_kind,
    open_regular,
    read_bytes,
    read_json,
    read_text,
    reason,
    shown,
)

from workshop.errors import BadInput, WorkshopError

__all__ = [
    "READABLE",
    "WRITABLE",
    "check_output",
    "create",
    "file_kind",
    "open_regular",
    "output",
    "part_of",
    "read_bytes",
    "read_json",
    "read_text",
    "reason",
    "replacement",
    "sync_folder",
]

WRITABLE = "Give a file in a folder that you may write to."


def check_output(path: str | Path, *, force: bool = False) -> None:
    """Refuse a file that an output must not go to, before the work that makes the output.

    Args:
        force: allow to replace an existing file.

    Raises:
        BadInput: the file exists (without `force`), is no regular file, or cannot be made in its
            folder.
    """
    try:
        target = _target(path)
        exists = target.exists()
        kind = file_kind(target.stat()) if exists else ""
        has_folder = target.parent.is_dir()
        is_writable = os.access(target.parent, os.W_OK | os.X_OK)
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{shown(path)} cannot be written: {reason(error)}.", WRITABLE) from None
    if kind:
        raise BadInput(f"{path} cannot be written: it is {kind}, not a file.", WRITABLE)
    if not has_folder:
        raise BadInput(f"{path} cannot be written: there is no folder {target.parent}.", WRITABLE)
    if not is_writable:
        raise BadInput(f"{path} cannot be written: Permission denied.", WRITABLE)
    if exists and not force:
        raise BadInput(f"{path} exists already.", "Give another name, or --force to replace it.")


@contextlib.contextmanager
def output(path: str | Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Give a file to write, which gets its name at the end of the block if the block succeeds.

    Another process may write to `file.name` instead.

    Args:
        force: replace an existing file, whose permissions stay.

    Raises:
        BadInput: as `check_output` does.
        WorkshopError: the file could not be written, for example because the disk is full.
    """
    check_output(path, force=force)
    target = _target(path)
    try:
        with replacement(target, sync=False) as file:
            yield file
            check_output(path, force=force)  # it may have come meanwhile
            if target.exists():
                os.chmod(file.name, stat.S_IMODE(target.stat().st_mode))
    except OSError as error:
        raise WorkshopError(f"{path} cannot be written: {reason(error)}.", WRITABLE) from None


@contextlib.contextmanager
def replacement(path: Path, *, private: bool = False, sync: bool = True) -> Iterator[BinaryIO]:
    """Give a file to write that takes the place of `path` at the end of the block.

    Where the block fails nothing has changed, and a reader never sees half of a file.

    Args:
        private: nobody else may read it (0600), several processes may write at once, and a link is replaced. Otherwise
            a link stays a link, and what a killed process left of an earlier attempt is replaced.
        sync: it is on disk (fsync) before it takes its place, so that a power cut leaves the old file or the new one.

    Raises:
        OSError: the file could not be written.
    """
    if private:
        target = path
        part = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        create(part, 0o600)
    else:
        target = Path(os.path.realpath(path))
        part = part_of(target)
        part.unlink(missing_ok=True)
        create(part, 0o666)
    try:
        with part.open("r+b") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    if sync:
        sync_folder(target.parent)


def part_of(path: Path) -> Path:
    """Return where the replacement of a file grows: one name, so that killed processes leave one file at most."""
    return path.with_name(f".{path.name}.part")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder outlive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def create(path: Path, mode: int) -> None:
    """Make an empty file. Raises FileExistsError: there is something of that name, a link too."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


def _target(path: str | Path) -> Path:
    """Return the file that a user named, links followed."""
    return Path(os.path.realpath(Path(path).expanduser()))

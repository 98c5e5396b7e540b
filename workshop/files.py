"""Files that a user names: only regular files are read, and no file is overwritten by accident.

Reading is the planner's (`inference_planner.files`): it never waits, and refuses what is no regular file. Writing is
whole or nothing: `output` makes a new file, under a name that was free before, when all of it is there. `replacement`
puts a file in the place of another, and has it on disk before that.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from inference_planner.files import (
    READABLE,
    kind_of,
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
    "create_private",
    "is_stream",
    "kind_of",
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
STREAM = re.compile(r"-|/dev/(?P<name>stdout|stderr)|/(?:dev|proc/self)/fd/(?P<number>\d{1,6})")


def check_output(
    path: str | Path,
    *,
    force: bool = False,
    inputs: Iterable[str | Path] = (),
    remedy: str = WRITABLE,
) -> None:
    """Refuse a file that an output must not go to, before the work that makes the output.

    "-", /dev/stdout, /dev/stderr, /dev/fd/N and /dev/null are always allowed.

    Args:
        force: allow to replace an existing file.
        inputs: files that are read for it; none of them is ever replaced, under whatever name or link.

    Raises:
        BadInput: the file exists (without `force`), is one of the inputs, is no regular file, or
            cannot be written.
    """
    target = _checked(path, force, inputs, remedy)
    if isinstance(target, int):
        os.close(target)


@contextlib.contextmanager
def output(
    path: str | Path,
    *,
    force: bool = False,
    inputs: Iterable[str | Path] = (),
    remedy: str = WRITABLE,
    mode: int | None = None,
) -> Iterator[BinaryIO]:
    """Give a file to write, which gets its name at the end of the block.

    Where the block fails nothing has changed. Another process may write to `file.name` instead.
    mode: permissions of a new file; by default the usual ones.

    Raises:
        BadInput: as `check_output` does.
        WorkshopError: the file could not be written, for example because the disk is full.
    """
    target = _checked(path, force, inputs, remedy)
    part = None
    try:
        part = _new_part(target, 0o666 if mode is None else mode)
        with part.open("r+b") as file:
            yield file
        if isinstance(target, int):
            _copy(part, target)
        else:
            _publish(part, target, force)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise WorkshopError(f"{path} cannot be written: {reason(error)}.", remedy) from None
    finally:
        if isinstance(target, int):
            os.close(target)
        if part is not None:
            part.unlink(missing_ok=True)


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
        _create(part, 0o600)
    else:
        target = Path(os.path.realpath(path))
        part = part_of(target)
        part.unlink(missing_ok=True)
        _create(part, 0o666)
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


def is_stream(path: str | Path) -> bool:
    """Return True for "-", /dev/stdout and the other names of a stream that is open already."""
    return STREAM.fullmatch(str(path)) is not None


def create_private(path: str | Path) -> int:
    """Return a new, empty file that its owner alone can read, for what is written to while it grows.

    Raises:
        FileExistsError: there is something of that name, a link too.
        OSError: it cannot be made.
    """
    flags = (
        os.O_WRONLY
        | os.O_CREAT
        | os.O_EXCL
        | getattr(os, "O_NOFOLLOW", 0)
        | getattr(os, "O_CLOEXEC", 0)
    )
    return os.open(path, flags, 0o600)


def _checked(
    path: str | Path, force: bool, inputs: Iterable[str | Path], remedy: str
) -> Path | int:
    """Return the file to write (links followed) or a descriptor of the stream. Raises BadInput."""
    input_stats = [input_stat for input_stat in map(_stat, inputs) if input_stat is not None]
    if is_stream(path):
        return _stream(path, input_stats)
    file_stat = _stat(path)
    try:
        named = Path(path).expanduser()
        target = named.resolve()
        if file_stat is None:
            _refuse_place(named, remedy)
    except BadInput:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f"{shown(path)} cannot be written: {reason(error)}.", remedy) from None
    if file_stat is None:
        return target
    if _is_null(file_stat):
        return os.open(os.devnull, os.O_WRONLY)
    kind = kind_of(file_stat)
    if kind:
        raise BadInput(f"{path} cannot be written: it is {kind}, not a file.", remedy)
    if any(os.path.samestat(file_stat, other) for other in input_stats):
        raise BadInput(f"{path} is a file that is read for this.", "Give the output another name.")
    if not force:
        raise _exists(path)
    if not (os.access(target, os.W_OK) and os.access(target.parent, os.W_OK)):
        raise BadInput(f"{path} cannot be written: Permission denied.", remedy)
    return target


def _refuse_place(target: Path, remedy: str) -> None:
    """Raise BadInput where no new file can be made."""
    try:
        os.lstat(target)
    except FileNotFoundError:
        pass
    else:  # `stat`, which follows links, found nothing
        raise BadInput(f"{target} is a link to a file that is not there.", remedy)
    if not target.name or target.name in (".", ".."):
        raise BadInput(f"{target} is no name of a file.", remedy)
    if not target.parent.is_dir():
        raise BadInput(f"{target} cannot be written: there is no folder {target.parent}.", remedy)
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise BadInput(f"{target} cannot be written: Permission denied.", remedy)


def _exists(path: str | Path) -> BadInput:
    return BadInput(f"{path} exists already.", "Give another name, or --force to replace it.")


def _stat(path: str | Path) -> os.stat_result | None:
    """Return what a file is, links followed; None where there is none of that name."""
    try:
        return os.stat(Path(path).expanduser())
    except (OSError, ValueError, RuntimeError):
        return None


def _is_null(file_stat: os.stat_result) -> bool:
    return stat.S_ISCHR(file_stat.st_mode) and file_stat.st_rdev == os.stat(os.devnull).st_rdev


def _stream(path: str | Path, input_stats: list[os.stat_result]) -> int:
    """Return a copy of the descriptor that a name of a stream means."""
    match = STREAM.fullmatch(str(path))
    assert match is not None  # see is_stream
    number = 2 if match["name"] == "stderr" else int(match["number"] or 1)
    try:
        if any(os.path.samestat(os.fstat(number), other) for other in input_stats):
            raise BadInput(
                f"{path} is a file that is read for this.", "Give the output another name."
            )
        return os.dup(number)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {reason(error)}.", WRITABLE) from None


def _copy(part: Path, descriptor: int) -> None:
    import shutil

    with part.open("rb") as source, os.fdopen(os.dup(descriptor), "wb") as target:
        shutil.copyfileobj(source, target)


def _new_part(target: Path | int, mode: int) -> Path:
    """Return a new, empty file beside the target, in which the output grows."""
    import tempfile

    if isinstance(target, int):
        part = Path(tempfile.gettempdir(), f"output.{os.urandom(8).hex()}")
        mode = 0o600
    else:
        part = target.with_name(f".{target.name[:64]}.{os.urandom(8).hex()}")
    _create(part, mode)
    return part


def _create(path: Path, mode: int) -> None:
    """Make an empty file. Raises FileExistsError: there is something of that name, a link too."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))


def _publish(part: Path, target: Path, force: bool) -> None:
    """Give the whole file its name. Raises FileExistsError where the name was taken meanwhile."""
    if force:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(part, stat.S_IMODE(target.stat().st_mode))
        os.replace(part, target)
        return
    try:
        os.link(part, target)  # unlike a rename, it never replaces a file
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        _create(target, 0o600)
        os.replace(part, target)

"""The output: an append-only journal of answers, of which one run at a time is the writer.

What it promises. Every whole line is one answer, and an answer is on disk (fsync) at most COMMIT_S and fsync's own time
after it came; before that it counts for nothing. Signal 9, a full disk or a power cut cost what was not on disk yet,
and nothing before it: what they left of a line, cut or as zeros, is taken out when the next run begins, so that no
answer is ever glued to another. A disk that says "written" before it is true can cost more, but no answer becomes
another row's: each line has the key of what was asked.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from workshop.batch.lines import Answer, is_torn, is_zeroed, read_answer
from workshop.batch.paths import Paths, cannot_read, cannot_write, replacement
from workshop.errors import BadInput, WorkshopError
from workshop.files import sync_folder
from workshop.servers.lock import flock, is_at

COMMIT_S = 0.5  # every answer is on disk this long after it came, and fsync's own time
_HOLDER = (
    "user.workshop.run"  # an attribute of the journal: who holds it, where the file system has such
)
_SCAN_BYTES = 1 << 20


class Lock:
    """An output that this run alone may write to; the system frees it when the process dies, however that was.

    It is on the journal itself: every name of that file, links too, is one lock. On a file system without locks
    nobody can hold one; there the journal notices another's lines (see `Journal`).

    Raises BadInput: something lies there that no batch wrote; WorkshopError: another run holds it, or writing fails.
    """

    def __init__(self, paths: Paths):
        paths.refuse_strangers()
        self.paths, self._made = paths, not paths.journal.exists()
        try:
            self._file = _open_locked(paths.journal)
        except OSError as error:
            raise cannot_write(paths.journal, error) from None
        try:
            with contextlib.suppress(OSError, AttributeError):
                os.setxattr(
                    self._file, _HOLDER, f"process {os.getpid()} on {os.uname().nodename}".encode()
                )
            if _has_zeros(paths.journal):
                self.replace(answer.raw for answer in scan(paths.journal))
        except BaseException:
            self.close()
            raise

    def replace(self, lines: Iterable[bytes]) -> None:
        """Put other lines in the journal's place, whole or not at all; the lock goes over to the new file."""
        with replacement(self.paths.journal) as file:
            flock(file.fileno())
            file.writelines(lines)
            new = os.dup(file.fileno())  # it shares the lock
        os.dup2(new, self._file)
        os.close(new)

    def close(self) -> None:
        """Let the next run in; a file that this one made and put nothing in goes with it."""
        with contextlib.suppress(OSError):
            if self._made and not os.fstat(self._file).st_size and not self.paths.meta.exists():
                self.paths.journal.unlink()
        os.close(self._file)


def _open_locked(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not flock(file):
                said = f"Another run writes to {path} already ({_holder(file)})."
                raise WorkshopError(said, "Wait for it, stop it, or give this run another output.")
            if is_at(file, path):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another run put a new file in its place just now


def _holder(file: int) -> str:
    with contextlib.suppress(OSError, AttributeError):
        return os.getxattr(file, _HOLDER).decode(errors="replace")
    return "another process"


def _has_zeros(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return any(b"\0" in chunk for chunk in iter(lambda: file.read(_SCAN_BYTES), b""))
    except OSError as error:
        raise cannot_read(path, error) from None


def scan(journal: Path) -> Iterator[Answer]:
    """Yield each whole answer; what a kill cut at the end, and what a power cut left as zeros, is left out.

    Raises BadInput: the file holds lines that no batch wrote, or cannot be read.
    """
    if not journal.exists():
        return
    end = 0
    try:
        with journal.open("rb", buffering=_SCAN_BYTES) as file:
            for number, raw in enumerate(file, 1):
                end += len(raw)
                if (answer := read_answer(raw, end)) is not None:
                    yield answer
                elif not is_zeroed(raw):
                    # the last line: cut, by a kill or a full disk
                    if is_torn(raw) and not file.read(1):
                        return
                    raise BadInput(f"Line {number:,} of {journal} is no answer of a batch.",
                                   "Give another output; this file is left as it is.")  # fmt: skip
    except OSError as error:
        raise cannot_read(journal, error) from None


class Journal:
    """Appends whole lines in group commits: `add` takes a line, `write(take())` returns when they are on disk.

    A commit that fails (full disk, quota) leaves the file as it was after the last one that succeeded. Nobody else
    may write to the file, remove it or put another in its place meanwhile: that ends the run at the next commit.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None):
        """Open for appending; `keep_bytes` cuts off what follows (None: nothing is cut; 0: begin anew)."""
        self.path, self._lines, self.committed = path, [], 0
        self._writing, self._closed = threading.Lock(), False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = os.fstat(self._file).st_size
            if keep_bytes is not None and keep_bytes < self._size:
                os.ftruncate(self._file, keep_bytes)
                self._size = keep_bytes
            os.fsync(self._file)
            sync_folder(path.parent)  # so that the file's name, too, outlives a power cut
        except OSError as error:
            raise cannot_write(path, error) from None

    def add(self, line: bytes) -> None:
        """Take one line, without its end; it is on disk after the next commit."""
        self._lines.append(line)

    def take(self) -> list[bytes]:
        """Return the lines that wait, for `write`; further ones wait for the next commit."""
        lines, self._lines = self._lines, []
        return lines

    def write(self, lines: list[bytes]) -> int:
        """Write lines and fsync; return how many that were. May run in another thread, one at a time."""
        if not lines:
            return 0
        data = b"\n".join([*lines, b""])
        with self._writing:
            if self._closed:  # its number may be another file's by now
                raise ValueError(f"{self.path} is closed")
            try:
                self._refuse_another()
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError as error:
                with contextlib.suppress(OSError):  # the next run cuts it off, if this one cannot
                    # the group counts as a whole, or not at all
                    os.ftruncate(self._file, self._size)
                raise cannot_write(self.path, error) from None
            self._size += len(data)
            self.committed += len(lines)
        return len(lines)

    def _refuse_another(self) -> None:
        there = is_at(self._file, self.path)
        if not there or os.fstat(self._file).st_size != self._size:
            what = (
                "written to by somebody else"
                if there
                else "removed, or another file was put in its place,"
            )
            said = f"{self.path} was {what} while this run wrote to it."
            raise WorkshopError(
                said, "Let one run at a time write to it, and run the same command again."
            )

    def close(self) -> None:
        """Commit what waits, and close."""
        try:
            self.write(self.take())
        finally:
            with self._writing:
                self._closed = True
                try:
                    os.close(self._file)
                except OSError as error:  # some network file systems report a full quota only now
                    raise cannot_write(self.path, error) from None

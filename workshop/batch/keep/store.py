"""The output: an append-only journal of answers, which one run at a time may write to.

Every whole line is one answer. An answer is on disk (fsync) at most COMMIT_S and the time of fsync
after it came, and does not count before that. Signal 9, a full disk or a power cut lose only what
was not on disk yet. The next run cuts off what they left at the end, and passes over a line with
zeros, so that no answer is ever joined to another. A disk that reports "written" too early can lose
more, but no answer becomes another row's: each line has the key of its request.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from workshop.batch.keep.lines import KeptAnswer, is_rest, read_answer
from workshop.batch.keep.paths import Paths, cannot_read, cannot_write, replacement
from workshop.errors import BadInput, WorkshopError
from workshop.files import sync_folder

COMMIT_S = 0.5  # every answer is on disk this long after it came, and fsync's own time
_SCAN_BYTES = 1 << 20


class Output:
    """An output that only this run writes to: its journal is locked, however the run ends.

    The lock is on the journal itself, so all names of that file, also links, share it; a lock that
    filelock takes by name would not. On a file system without locks nobody can hold one; there the
    journal notices the lines of another run (see `Journal`).

    Raises BadInput: something lies there that no batch wrote; WorkshopError: another run has locked
    it, or writing fails.
    """

    def __init__(self, paths: Paths):
        paths.refuse_strangers()
        self.paths = paths
        self._made = not paths.journal.exists()
        try:
            self._file = _open_locked(paths.journal)
        except OSError as error:
            raise cannot_write(paths.journal, error) from None

    def replace(self, lines: Iterable[bytes]) -> None:
        """Replace all lines of the journal, or none; the lock passes to the new file."""
        with replacement(self.paths.journal) as file:
            lock(file.fileno())
            file.writelines(lines)
            new = os.dup(file.fileno())  # it shares the lock
        os.dup2(new, self._file)
        os.close(new)

    def close(self) -> None:
        """Free the lock. Remove the journal if this run made it and wrote nothing to it."""
        with contextlib.suppress(OSError):
            if self._made and not os.fstat(self._file).st_size and not self.paths.meta.exists():
                self.paths.journal.unlink()
        os.close(self._file)


def _open_locked(path: Path) -> int:
    """Open a file and lock it; return its descriptor.

    Raises WorkshopError: another run holds the lock.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not lock(file):
                raise WorkshopError(
                    f"Another run writes to {path} already.",
                    "Wait for it, stop it, or give this run another output.",
                )
            if is_at(file, path):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # another run put a new file in its place just now


def lock(descriptor: int) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it.

    True also where nothing can be locked: on a page, and on a file system without locks.
    """
    if sys.platform == "emscripten":  # a page is one process
        return True
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:  # a file system without locks
        return True


def is_at(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of that name."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def scan(journal: Path) -> Iterator[KeptAnswer]:
    """Yield each whole answer, without a cut last line (a kill) and without zeros (a power cut).

    Raises BadInput: the file holds lines that no batch wrote, or cannot be read.
    """
    if not journal.exists():
        return
    end = 0
    try:
        with journal.open("rb", buffering=_SCAN_BYTES) as file:
            for number, raw in enumerate(file, 1):
                end += len(raw)
                # the last answer may be whole and its line end lost
                answer = read_answer(raw if raw.endswith(b"\n") else raw + b"\n", end)
                if answer is not None:
                    yield answer
                elif not is_rest(raw) or (b"\0" not in raw and file.read(1)):
                    # neither zeros nor the last line, which a kill or a full disk cut
                    raise BadInput(f"Line {number:,} of {journal} is no answer of a batch.",
                                   "Give another output; this file is left as it is.")  # fmt: skip
    except OSError as error:
        raise cannot_read(journal, error) from None


def newest(journal: Path) -> Iterator[KeptAnswer]:
    """Yield each whole answer that no later answer to the same request replaced (`--retry`).

    Reads the journal twice. Raises BadInput, as `scan` does.
    """
    ends: dict[bytes, int] = {}
    for answer in scan(journal):
        if answer.tokens_of_retry is not None:
            ends[answer.key] = answer.end
    for answer in scan(journal):
        if ends.get(answer.key, answer.end) == answer.end:
            yield answer


class Journal:
    """Appends whole lines in group commits: `add` takes a line, `write(take())` puts them on disk.

    A commit that fails (full disk, quota) leaves the file as it was after the last one that
    succeeded. If another process writes to the file, removes it or replaces it, the run ends at the
    next commit.
    """

    def __init__(self, path: Path, keep_bytes: int | None = None):
        """Open the file for appending.

        Args:
            keep_bytes: cut the file after so many bytes; None cuts nothing, 0 begins with an empty file.

        Raises WorkshopError: it cannot be opened.
        """
        self.path = path
        self._lines = []
        self.committed = 0
        self._writing = threading.Lock()
        self._closed = False
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = os.fstat(self._file).st_size
            if keep_bytes is not None and keep_bytes < self._size:
                os.ftruncate(self._file, keep_bytes)
                self._size = keep_bytes
            if self._size and os.pread(self._file, 1, self._size - 1) != b"\n":
                self._size += os.write(self._file, b"\n")  # see `scan`
            os.fsync(self._file)
            sync_folder(path.parent)  # so that the file's name, too, outlives a power cut
        except OSError as error:
            raise cannot_write(path, error) from None

    def add(self, line: bytes) -> None:
        """Take one line, without its end; it is on disk after the next commit."""
        self._lines.append(line)

    def take(self) -> list[bytes]:
        """Return the lines that wait, for `write`; further ones wait for the next commit."""
        lines = self._lines
        self._lines = []
        return lines

    def write(self, lines: list[bytes]) -> int:
        """Write lines and fsync; return their number. Other threads may call it, one at a time.

        Raises WorkshopError: writing fails, or another process changed the file.
        """
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
        """Raise WorkshopError if somebody else wrote to the file, removed it or replaced it."""
        is_there = is_at(self._file, self.path)
        if is_there and os.fstat(self._file).st_size == self._size:
            return
        change = "removed, or another file was put in its place,"
        if is_there:
            change = "written to by somebody else"
        problem = f"{self.path} was {change} while this run wrote to it."
        raise WorkshopError(
            problem, "Let one run at a time write to it, and run the same command again."
        )

    def close(self) -> None:
        """Write the lines that wait, and close the file.

        Raises WorkshopError: they cannot be written.
        """
        try:
            self.write(self.take())
        finally:
            with self._writing:
                self._closed = True
                try:
                    os.close(self._file)
                except OSError as error:  # some network file systems report a full quota only now
                    raise cannot_write(self.path, error) from None

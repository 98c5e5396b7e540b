"""The output: an append-only journal of answers in which every whole line is one answer, and what lies beside it.

OUTPUT (JSONL) or OUTPUT.jsonl (where OUTPUT is Parquet, which cannot be appended to) · OUTPUT.errors.jsonl: rows
without an answer, with the reason · OUTPUT.meta.json: what it came from · OUTPUT.lock: held by the run that writes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from workshop.errors import BadInput, WorkshopError

COMMIT_S = 0.5      # every answer is on disk this long after it came, and fsync's own time
_HEAD = re.compile(rb'\{"custom_id": ("(?:[^"\\]|\\.)*"), "key": "([0-9a-f]{32})", "row": (\d+), ')
_SCAN_BYTES = 1 << 22


class Paths:
    """Where everything of one output lies."""

    def __init__(self, output: str | Path):
        self.output = Path(output)
        if self.output.suffix not in (".jsonl", ".parquet"):
            raise BadInput(f"The output {output} ends in {self.output.suffix or 'nothing'}.",
                           "Call it .jsonl (OpenAI's batch format) or .parquet.")  # fmt: skip
        if self.output.is_dir():
            raise BadInput(f"The output {output} is a folder.", "Give the name of a file in it.")
        if not self.output.parent.is_dir():
            raise BadInput(f"The folder {self.output.parent} of the output is not there.", "Make it, or give another.")
        self.parquet = self.output.suffix == ".parquet"
        self.journal = self._beside(".jsonl") if self.parquet else self.output
        self.errors, self.meta, self.lock = (self._beside(end) for end in (".errors.jsonl", ".meta.json", ".lock"))

    def _beside(self, ending: str) -> Path:
        return self.output.with_name(self.output.name + ending)


class Lock:
    """Held as long as one run writes to an output; the system frees it when the process dies, however that was.

    Raises (when made):
        WorkshopError: another run holds it.
    """

    def __init__(self, path: Path):
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise cannot_write(path, error) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):    # a file system without locks: nobody can hold one
                return
            holder = os.read(self._file, 200).decode(errors="replace").strip() or "another process"
            os.close(self._file)
            raise WorkshopError(f"Another run writes to {path.with_suffix('')} already ({holder}).",
                                "Wait for it, stop it, or give this run another output.") from None
        os.ftruncate(self._file, 0)
        os.write(self._file, f"process {os.getpid()} on {os.uname().nodename}\n".encode())

    def release(self) -> None:
        """Let the next run in; the file stays, as removing it would let two in at once."""
        os.ftruncate(self._file, 0)
        os.close(self._file)


def scan(journal: Path) -> Iterator[tuple[str, bytes, int]]:
    """Yield (custom_id, key, where the line ends) of each whole answer; what a kill cut at the end is left out.

    Raises:
        BadInput: the file holds lines that no batch wrote.
    """
    if not journal.exists():
        return
    end = 0
    with journal.open("rb", buffering=_SCAN_BYTES) as file:
        for number, line in enumerate(file, 1):
            whole = line.endswith(b"}\n") and b"\0" not in line
            head = _HEAD.match(line) if whole else None
            if head is None:
                if _is_torn(line) and not file.read(1):     # the last line: cut, by a kill or a full disk
                    return
                raise BadInput(f"Line {number:,} of {journal} is no answer of a batch.",
                               "Give another output; this file is left as it is.")
            end += len(line)
            yield json.loads(head[1]), bytes.fromhex(head[2].decode()), end


def _is_torn(line: bytes) -> bool:
    """Whether a line can be the rest of an answer of ours: nobody else's file is ever cut."""
    start = b'{"custom_id": '
    return line.startswith(start) or start.startswith(line) or not line.strip(b"\0\n")


class Journal:
    """Appends whole lines in group commits: `add` takes a line, `write(take())` returns when they are on disk.

    A commit that fails (full disk, quota) leaves the file as it was after the last one that succeeded.
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
            _sync_folder(path.parent)        # so that the file's name, too, outlives a power cut
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
            if self._closed:                # its number may be another file's by now
                raise ValueError(f"{self.path} is closed")
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view):]
                os.fsync(self._file)
            except OSError as error:
                os.ftruncate(self._file, self._size)       # the group counts as a whole, or not at all
                raise cannot_write(self.path, error) from None
            self._size += len(data)
            self.committed += len(lines)
        return len(lines)

    def close(self) -> None:
        """Commit what waits, and close."""
        try:
            self.write(self.take())
        finally:
            with self._writing:
                self._closed = True
                os.close(self._file)


def answer_line(custom_id: str, key: bytes, row: int, answer: bytes, extra: dict) -> bytes:
    """Return one line of OpenAI's batch output, with `key`, `row` and the row's own fields added.

    Args:
        answer: the body of the server's answer, JSON.
    """
    answer = answer.strip()
    if b"\n" in answer or b"\r" in answer:
        answer = json.dumps(json.loads(answer)).encode()
    name, digest = json.dumps(custom_id), key.hex()
    fields = f', "metadata": {json.dumps(extra, default=str)}' if extra else ""
    return (f'{{"custom_id": {name}, "key": "{digest}", "row": {row}, "id": "batch_req_{digest}", "response": '
            f'{{"status_code": 200, "request_id": "{digest}", "body": ').encode() + answer + (
            f'}}, "error": null{fields}}}').encode()  # fmt: skip


def error_line(custom_id: str | None, row: int, place: int, status: int | None, code: str, message: str) -> bytes:
    """Return one line of the file of errors, in OpenAI's form."""
    return json.dumps({"custom_id": custom_id, "row": row, "place": place,
                       "response": {"status_code": status} if status else None,
                       "error": {"code": code, "message": message}, "time": round(time.time(), 3)}).encode()


def read_meta(paths: Paths) -> dict | None:
    """Return what lies beside an output; None if nothing does or it cannot be read."""
    try:
        found = json.loads(paths.meta.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def write_meta(paths: Paths, meta: dict) -> None:
    """Write it whole or not at all."""
    temporary = paths.meta.with_name(f".{paths.meta.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(meta, file, indent=1, ensure_ascii=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, paths.meta)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(paths.meta, error) from None


def cannot_write(path: Path, error: OSError) -> WorkshopError:
    """Turn an OSError of a write into one sentence and a remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return WorkshopError(f"No space is left to write {path} ({error.strerror}). All answers before it are kept.",
                             "Free some space or quota, and run the same command again: it goes on.")
    return WorkshopError(f"Cannot write {path} ({error.strerror}).", "Give an output that you may write.")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:      # some network file systems cannot
        pass
    finally:
        os.close(handle)

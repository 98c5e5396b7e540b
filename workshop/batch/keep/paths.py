"""The files of one output, and a check that no run overwrites a file that no batch wrote.

OUTPUT (JSONL) or OUTPUT.jsonl (where OUTPUT is Parquet, which cannot be appended to) ·
OUTPUT.errors.jsonl: rows without an answer, with the reason · OUTPUT.meta.json: what it came from.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from workshop import files
from workshop.errors import BadInput, WorkshopError

PARQUET_META = b"workshop.batch"  # the key of our record in a Parquet file's schema
_RECORD = {"input": dict, "sampling_parameters": dict, "runs": list}
_BESIDE = re.compile(r"\.parquet\.jsonl$|\.(jsonl|parquet)\.errors\.jsonl$")


class Paths:
    """The files of one output.

    A link is followed: the files beside an output are beside the file itself.

    Raises BadInput: there can be no output of that name, or it is one of the `others`, which are
    only read.
    """

    def __init__(self, output: str | Path, *others: str | Path):
        name = Path(output)
        try:
            self.output = name
            if name.is_symlink():
                self.output = Path(os.path.realpath(name))
            self._check_name(name)
            self.parquet = self.output.suffix == ".parquet"
            self.journal = self.output
            if self.parquet:
                self.journal = self._beside(".jsonl")
            self.errors = self._beside(".errors.jsonl")
            self.meta = self._beside(".meta.json")
            # the longest name: better refused now than when the answers have come
            _kind(files.part_of(self.meta))
            self._check_files(others)
        except BadInput:
            raise
        except (OSError, ValueError) as error:
            # too long a name, a folder nobody may look into, a NUL in it
            reason = getattr(error, "strerror", None) or error
            raise BadInput(
                f"The output {name} cannot be written ({reason}).", "Give another name or folder."
            ) from None

    def _beside(self, ending: str) -> Path:
        """Return the file beside the output whose name has this ending."""
        return self.output.with_name(self.output.name + ending)

    def _check_name(self, name: Path) -> None:
        """Raise BadInput if there can be no output of this name."""
        shown = str(name)
        if name != self.output:
            shown = f"{name} (a link to {self.output})"
        if self.output.suffix not in (".jsonl", ".parquet"):
            raise BadInput(f"The output {shown} ends in {self.output.suffix or 'nothing'}.",
                           "Call it .jsonl (OpenAI's batch format) or .parquet.")  # fmt: skip
        if _BESIDE.search(self.output.name):
            raise BadInput(f"The output {shown} has the name of a file that a batch keeps beside its output.",
                           "Give the output itself, or another name.")  # fmt: skip
        if not self.output.parent.is_dir():
            raise BadInput(
                f"The folder {self.output.parent} of the output is not there.",
                "Make it, or give another.",
            )

    def _check_files(self, others: tuple[str | Path, ...]) -> None:
        """Raise BadInput if one of the files is no plain file, or is one of the `others`."""
        files = {_identity(Path(other)): other for other in others}
        for path in dict.fromkeys([self.output, self.journal, self.errors, self.meta]):
            kind = _kind(path)
            if kind and not stat.S_ISREG(kind):
                what = "no plain file"
                if stat.S_ISDIR(kind):
                    what = "a folder"
                raise BadInput(
                    f"The output {path} is {what}.", "Give the name of a file that may be written."
                )
            other = files.setdefault(_identity(path), path)
            if other is not path:
                problem = f"{self.output} is input and output at once: {path} would be written,"
                problem += f" and is the same file as {other}."
                raise BadInput(problem, "Give another output.")

    def refuse_strangers(self) -> None:
        """Refuse to overwrite a file that no batch wrote.

        Raises BadInput: there is one; the text names it, and it is left as it is.
        """
        ours = read_meta(self) is not None
        for path in dict.fromkeys([self.meta, self.journal, self.errors, self.output]):
            if not path.exists() or not path.stat().st_size:
                continue
            if not ours:
                without = ""
                if path != self.meta:
                    without = f", or {self.meta.name}, which says what it came from, is lost"
                raise BadInput(f"{path} is there already, and no batch wrote it{without}.",
                               "Give another output; this file is left as it is.")  # fmt: skip
            is_foreign = path == self.errors and not _is_errors(path)
            if path.suffix == ".parquet" and parquet_meta(path) is None:
                is_foreign = True
            if is_foreign:
                raise BadInput(f"{path} is there already, and no batch wrote it.",
                               "Move it, or give another output; this file is left as it is.")  # fmt: skip


def read_meta(paths: Paths) -> dict | None:
    """Return the record beside an output; None if there is none, or it is not ours."""
    try:
        meta = json.loads(paths.meta.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(meta, dict):
        return None
    for name, kind in _RECORD.items():
        if not isinstance(meta.get(name), kind):
            return None
    return meta


def write_meta(paths: Paths, meta: dict) -> None:
    """Write the record, whole or not at all; in ASCII, as a file's name may be no UTF-8."""
    with replacement(paths.meta) as file:
        file.write(json.dumps(meta, indent=1).encode() + b"\n")


@contextlib.contextmanager
def replacement(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` at the end of the block, whole and on disk, or not at all.

    Raises WorkshopError: it cannot be written.
    """
    try:
        with files.replacement(path) as file:
            yield file
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> WorkshopError:
    """Return an OSError of a write as one sentence and a remedy."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        problem = (
            f"No space is left to write {path} ({error.strerror}). All answers before it are kept."
        )
        return WorkshopError(
            problem, "Free some space or quota, and run the same command again: it goes on."
        )
    return WorkshopError(
        f"Cannot write {path} ({error.strerror or error}).", "Give an output that you may write."
    )


def cannot_read(path: Path, error: OSError) -> BadInput:
    """Return an OSError of a read as one sentence and a remedy."""
    return BadInput(
        f"{path} cannot be read ({error.strerror or error}).", "Give a file that you may read."
    )


def _kind(path: Path) -> int:
    """Return the mode of a file (st_mode), which tells its kind; 0 if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _identity(path: Path) -> object:
    """Return a value that is equal for two names of one file, also if the file is not there yet."""
    try:
        status = path.stat()
        return status.st_dev, status.st_ino
    except FileNotFoundError:
        return os.path.realpath(path)


def _is_errors(path: Path) -> bool:
    """Return True if a file begins like a file of errors that a batch wrote."""
    with path.open("rb") as file:
        head = file.read(1 << 16).split(b"\n")[0]
    return head.startswith(b'{"custom_id": ') and b'"place": ' in head


def parquet_meta(path: Path) -> bytes | None:
    """Return the batch's record in a Parquet file; None if it has none, or is no Parquet file."""
    import pyarrow
    import pyarrow.parquet

    try:
        return (pyarrow.parquet.read_schema(path).metadata or {}).get(PARQUET_META)
    except (pyarrow.ArrowException, OSError):
        return None

"""Reads a file of prompts, a row at a time, whatever its format: the file may be larger than the memory.

.json a JSON array · .txt one prompt a line · .jsonl any fields, or OpenAI's batch format · .csv, .parquet a column.
No row is lost or changed in silence: what cannot be read whole is refused with its place, what a file leaves open is
said (`notes`).
"""

import codecs
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from workshop.batch import tables
from workshop.errors import BadInput, plain
from workshop.use import strict_json
from workshop.use.strict_json import Malformed

FORMATS = (".json", ".txt", ".jsonl", ".csv", ".parquet")
LOOK_BYTES = 1 << 20  # of the beginning, to see how it is written
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",  # the longer ones first
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
Raw = object  # what a format yields before it is decoded: bytes of a line, text of an item, a dict of a table


class Source:
    """An input file: `raws()` yields it row by row, `decode()` turns one raw row into a string or a dict.

    `notes` say how the file was understood where it could have been meant otherwise; `tell()` prints them.
    Raises BadInput: there is no such file, it is not UTF-8, or its name says no format that is read here.
    """

    def __init__(self, path: str | Path, column: str | None = None):
        self.path, self.column = Path(path), column
        if not self.path.exists():
            said = f"There is no input file {path}."
            raise BadInput(said, "Give a file of prompts: a JSON array, text lines, JSONL, CSV or Parquet.")
        if not self.path.is_file():
            raise BadInput(f"{path} is no file.", "Give one file; of many, make one JSONL, or run each to its output.")
        self.format = {".ndjson": ".jsonl"}.get(self.path.suffix.lower(), self.path.suffix.lower())
        if self.format not in FORMATS:
            said = f"{path} ends in {self.path.suffix or 'nothing'}, which names no format that is read here."
            raise BadInput(said, f"There are: {', '.join(FORMATS)}.")
        self.place = {".json": "item", ".parquet": "row"}.get(self.format, "line")  # what a row's position counts
        self.notes, self._told = [], set()
        self._cr_alone = self._look()
        self.table = self.format in tables.KINDS
        if self.table:
            self._table = tables.KINDS[self.format](self.path, column)
            self.column = tables.choose_column(self.path, self._table.names, column)
            self.notes += self._table.notes

    def raws(self) -> Iterator[tuple[int, Raw]]:
        """Yield (position from 1, raw row); positions are lines, items of an array, or rows of a table."""
        if self.format == ".json":
            yield from enumerate(strict_json.array_items(self.path), 1)
            return
        empty = 0
        for number, raw in self._table.rows() if self.table else self._lines():
            if raw or isinstance(raw, Malformed):
                yield number, raw
            else:
                empty += 1
        if empty and self.format != ".jsonl":
            lines, hold = ("lines", "hold") if empty > 1 else ("line", "holds")
            self._note(f"{empty:,} empty {lines} of {self.path} {hold} no prompt.")

    def decode(self, raw: Raw) -> object:
        """Turn a raw row into a prompt or a dict of fields. Raises Malformed: it is none."""
        if isinstance(raw, Malformed):
            raise raw
        if isinstance(raw, bytes):
            try:
                raw = raw.decode()
            except UnicodeDecodeError as error:
                raise Malformed(f"it is not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x})") from None
            if self.format == ".txt":
                return _one_line(raw)
        return strict_json.decode(raw) if isinstance(raw, str) else raw

    def tell(self) -> None:
        """Print the notes that were not printed yet, on stderr: what is printed on stdout may be data."""
        for note in self.notes:
            if note not in self._told:
                print(f"! {plain(note)}", file=sys.stderr)
                self._told.add(note)

    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def stamp(self) -> tuple[int, int]:
        """Return (bytes, modification time in ns): whether somebody writes to it meanwhile."""
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _look(self) -> bool:
        """Look at the beginning: refuse what is not UTF-8; return whether lines end in CR alone."""
        try:
            with self.path.open("rb") as file:
                head = file.read(LOOK_BYTES)
        except OSError as error:
            raise BadInput(f"{self.path} cannot be read ({error.strerror}).", "Is it yours to read?") from None
        if self.format == ".parquet":
            return False
        code = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        if code or b"\0" in head[:4]:
            begins = f"as {code} does" if code else "with a NUL byte, as UTF-16 without a mark does"
            remedy = f"Save it as UTF-8: iconv -f {code or 'UTF-16LE'} -t UTF-8 {self.path}"
            raise BadInput(f"{self.path} begins {begins}.", remedy)
        alone = b"\r" in head.rstrip(b"\r\n") and b"\n" not in head
        if alone and self.format != ".json":
            self._note(f"The lines of {self.path} end in CR alone, as old Macs wrote them, and are read so.")
        return alone

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (line from 1, its bytes without its end); '' is an empty line."""
        # Lines of bytes end in LF; for those that end in CR alone the text layer is needed, which keeps every byte so.
        with self.path.open(newline="\r" if self._cr_alone else "\n", encoding="latin-1") as file:
            for number, line in enumerate(file, 1):
                raw = line.encode("latin-1").removesuffix(b"\n").removesuffix(b"\r")
                raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                yield number, b"" if self.format == ".jsonl" and not raw.strip() else raw


def _one_line(text: str) -> str:
    """Return a line of text, or say what in it a line cannot hold."""
    for character, name in (("\0", "NUL byte"), ("\r", "carriage return (CR)"), ("\n", "line feed (LF)")):
        if character in text:
            raise Malformed(f"it holds a {name}: is the file UTF-8, with one kind of line ends?")
    return text

"""Reads a file of prompts, a row at a time, whatever its format: the file may be larger than the memory.

.json a JSON array · .txt one prompt a line · .jsonl any fields, or OpenAI's batch format · .csv, .parquet a column.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from workshop.batch.rows import Malformed, decode_json
from workshop.errors import BadInput

FORMATS = (".json", ".txt", ".jsonl", ".csv", ".parquet")
CHUNK_BYTES = 1 << 20
Raw = object    # what a format yields before it is decoded: bytes of a line, a dict of a table, a decoded JSON value


class Source:
    """An input file: `raws()` yields it row by row, `decode()` turns one raw row into a string or a dict.

    Raises (when made):
        BadInput: there is no such file, or its name says no format that is read here.
    """

    def __init__(self, path: str | Path, column: str | None = None):
        self.path, self.column = Path(path), column
        if not self.path.exists():
            raise BadInput(f"There is no input file {path}.", "Give a file of prompts: "
                           "a JSON array, text lines, JSONL, CSV or Parquet.")  # fmt: skip
        if self.path.is_dir():
            raise BadInput(f"{path} is a folder.", "Give one file; of many, make one JSONL, or run each to its output.")
        self.format = {".ndjson": ".jsonl"}.get(self.path.suffix.lower(), self.path.suffix.lower())
        if self.format not in FORMATS:
            raise BadInput(f"{path} ends in {self.path.suffix or 'nothing'}, which names no format that is read here.",
                           f"There are: {', '.join(FORMATS)}.")  # fmt: skip
        self.table = self.format in (".csv", ".parquet")
        if self.table:
            self.column = self._choose_column(self._csv_head() if self.format == ".csv" else
                                              self._parquet_file().schema_arrow.names)

    @property
    def place(self) -> str:
        """What a row's position counts, for messages."""
        return {".json": "item", ".csv": "line", ".parquet": "row"}.get(self.format, "line")

    def raws(self) -> Iterator[tuple[int, Raw]]:
        """Yield (position from 1, raw row); positions are lines, items of an array, or rows of a table."""
        return {".json": self._array, ".csv": self._csv, ".parquet": self._parquet}.get(self.format, self._lines)()

    def decode(self, raw: Raw) -> str | dict:
        """Turn a raw row into a prompt or a dict of fields.

        Raises:
            Malformed: it is none.
        """
        if isinstance(raw, Malformed):
            raise raw
        if isinstance(raw, bytes):
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise Malformed(f"it is not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x})") from None
            return decode_json(text) if self.format == ".jsonl" else text
        return raw

    def sha256(self) -> str:
        """Return the SHA-256 of the file's bytes, in hexadecimal."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def stamp(self) -> tuple[int, int]:
        """Return (bytes, modification time in ns): whether somebody writes to it meanwhile."""
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _lines(self) -> Iterator[tuple[int, Raw]]:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                line = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")
                if line.strip():
                    yield number, line

    def _array(self) -> Iterator[tuple[int, Raw]]:
        yield from enumerate(_array_items(self.path), 1)

    def _csv(self) -> Iterator[tuple[int, Raw]]:
        csv.field_size_limit(1 << 30)
        with self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            start = reader.line_num
            for cells in _csv_rows(reader):
                position, start = start + 1, reader.line_num
                yield position, _csv_row(head, cells)

    def _csv_head(self) -> list[str]:
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            return next(csv.reader(file), [])

    def _parquet(self) -> Iterator[tuple[int, Raw]]:
        number = 0
        for batch in self._parquet_file().iter_batches(batch_size=1024):
            for fields in batch.to_pylist():
                number += 1
                yield number, fields

    def _parquet_file(self):
        import pyarrow
        import pyarrow.parquet

        try:
            return pyarrow.parquet.ParquetFile(self.path)
        except (pyarrow.ArrowException, OSError) as error:
            raise BadInput(f"{self.path} is no Parquet file: {str(error).splitlines()[0]}", "Was it cut?") from None

    def _choose_column(self, names: list[str]) -> str | None:
        """Return the column of the prompts; None where a table holds OpenAI's requests whole."""
        if self.column is None and "body" in names:
            return None
        wanted = [self.column] if self.column else ["prompt", "messages", "text"] + (names if len(names) == 1 else [])
        for name in wanted:
            if name in names:
                return name
        said = f"has no column {self.column!r}" if self.column else "has no column called prompt"
        raise BadInput(f"{self.path} {said}.", f"Choose one with --column: {', '.join(names) or 'it has none'}.")


def _csv_rows(reader) -> Iterator[list[str] | Malformed]:
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Malformed(f"it is not CSV ({error})")
            continue
        if cells:
            yield cells


def _csv_row(head: list[str], cells: list[str] | Malformed) -> dict | Malformed:
    if isinstance(cells, Malformed):
        return cells
    if len(cells) != len(head):
        return Malformed(f"it has {len(cells)} cells, and the head has {len(head)}")
    if any("\udc80" <= character <= "\udcff" for cell in cells for character in cell):
        return Malformed("it is not UTF-8")
    return dict(zip(head, cells, strict=True))


def _array_items(path: Path) -> Iterator[Raw]:
    """Yield the items of a JSON array without holding more than one chunk and one item."""
    broken = "Give a JSON array: [\"first prompt\", \"second prompt\"]."
    decoder, buffer, at, ended, first = json.JSONDecoder(), "", 0, False, True
    with path.open(encoding="utf-8-sig") as file:
        def more() -> bool:
            nonlocal buffer, at, ended
            try:
                chunk = file.read(CHUNK_BYTES)
            except UnicodeDecodeError as error:
                raise BadInput(f"{path} is not UTF-8 ({error.reason}).", "Save it as UTF-8.") from None
            buffer, at, ended = buffer[at:] + chunk, 0, not chunk
            return bool(chunk)

        def skip_space() -> str:
            nonlocal at
            while True:
                while at < len(buffer) and buffer[at] in " \t\r\n":
                    at += 1
                if at < len(buffer) or not more():
                    return buffer[at:at + 1]

        if skip_space() != "[":
            raise BadInput(f"{path} begins with {buffer[at:at + 1]!r}, not with '['.", f"{broken} "
                           "Where each line is JSON of its own, call the file .jsonl.")  # fmt: skip
        at, count = at + 1, 0
        while (character := skip_space()) != "]":
            if not first:
                if character != ",":
                    raise BadInput(f"{path} is cut, or lacks a comma, after item {count:,}.", broken)
                at += 1
                skip_space()
            first, count = False, count + 1
            while True:
                try:
                    value, end = decoder.raw_decode(buffer, at)
                    if end < len(buffer) or ended:      # a number at the very end of a chunk may go on in the next
                        break
                except ValueError as error:
                    if ended:
                        raise BadInput(f"{path}: item {count:,} is not JSON ({error}).", broken) from None
                more()
            at = end
            yield value

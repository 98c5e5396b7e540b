"""Reads a file of prompts, one row at a time, in any of its formats.

All but a JSON array may be larger than the memory.

.json a JSON array · .txt one prompt a line · .jsonl any fields, or OpenAI's batch format · .csv,
.tsv, .parquet a column. All but Parquet may be compressed with gzip (.jsonl.gz). No row is lost or
changed in silence: what cannot be read whole is refused with its place, what a file leaves open is
said (`notes`).
"""

import codecs
import contextlib
import csv
import gzip
import hashlib
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from workshop.batch.keep.paths import cannot_read
from workshop.client import strict_json
from workshop.client.strict_json import Malformed
from workshop.errors import BadInput, plain

FORMATS = (".json", ".txt", ".jsonl", ".csv", ".tsv", ".parquet")
SEPARATORS = {",": "a comma", ";": "';'", "\t": "a tab", "|": "'|'"}
PROMPTS = ("prompt", "messages", "text")  # names of columns that hold prompts
REQUESTS = "body"  # … and of the one in which OpenAI's requests lie whole
_NOT_IN_LINES = {
    "\0": "NUL byte",
    "\r": "carriage return (CR)",
    "\n": "line feed (LF)",
}
# what a format yields before it is decoded: bytes of a line, text of an item, a dict of a table
Raw = object


class Source:
    """An input file, row by row.

    `raws()` yields raw rows; `decode()` turns one raw row into a string or a dict.

    `notes` say how the file was understood where it could have been meant otherwise; `tell()`
    prints them.
    Raises BadInput: there is no such file, it is not UTF-8, or its name says no format that is read
    here.
    """

    def __init__(self, path: str | Path, column: str | None = None):
        self.path = Path(path)
        self.column = column
        if not self.path.exists():
            problem = f"There is no input file {path}."
            raise BadInput(
                problem, "Give a file of prompts: a JSON array, text lines, JSONL, CSV or Parquet."
            )
        if not self.path.is_file():
            raise BadInput(
                f"{path} is no file.",
                "Give one file; of many, make one JSONL, or run each to its output.",
            )
        is_gzip = self.path.suffix.lower() == ".gz"
        ending = "".join(self.path.suffixes[-2:] if is_gzip else self.path.suffixes[-1:])
        self.format = ending.lower().removesuffix(".gz")
        if self.format == ".ndjson":
            self.format = ".jsonl"
        if self.format not in FORMATS or (is_gzip and self.format == ".parquet"):
            problem = (
                f"{path} ends in {ending or 'nothing'}, which names no format that is read here."
            )
            raise BadInput(
                problem, f"There are: {', '.join(FORMATS)}; .gz behind all but .parquet."
            )
        # what a row's position counts
        self.place = {".json": "item", ".parquet": "row"}.get(self.format, "line")
        self.notes: list[str] = []
        # called again and again while it is read; what it raises ends that
        self.poll = lambda: None
        self._refuse_utf_16()
        self.table = self.format in TABLES
        if self.table:
            self._table = TABLES[self.format](self.path, column)
            _refuse_repeated(self.path, self._table.names)
            self.column = choose_column(self.path, self._table.names, column)
            self.notes += self._table.notes

    def raws(self) -> Iterator[tuple[int, Raw]]:
        """Yield (position from 1, raw row); the position of a line, an item or a table's row."""
        if self.format == ".json":
            with _opened(self.path, "rb") as file:
                data = file.read()
            yield from enumerate(strict_json.array_items(data, self.path), 1)
            return
        empty = 0
        rows = self._lines()
        if self.table:
            rows = self._table.rows()
        for number, raw in rows:
            if raw or isinstance(raw, Malformed):
                yield number, raw
            else:
                empty += 1
        if empty and self.format != ".jsonl":
            lines, hold = ("lines", "hold") if empty > 1 else ("line", "holds")
            self.notes.append(f"{empty:,} empty {lines} of {self.path} {hold} no prompt.")

    def decode(self, raw: Raw) -> object:
        """Turn a raw row into a prompt or a dict of fields. Raises Malformed: it is none."""
        if isinstance(raw, Malformed):
            raise raw
        if isinstance(raw, bytes):
            try:
                raw = raw.decode()
            except UnicodeDecodeError as error:
                raise Malformed(
                    f"it is not UTF-8 (byte {error.start + 1}: 0x{raw[error.start]:02x})"
                ) from None
            if self.format == ".txt":
                return _one_line(raw)
        if isinstance(raw, str):
            return strict_json.decode(raw)
        return raw

    def tell(self) -> None:
        """Print the notes on stderr: what is printed on stdout may be data."""
        for note in self.notes:
            print(f"! {plain(note)}", file=sys.stderr)

    def sha256(self) -> str:
        """Return the SHA-256 of the file in hexadecimal."""
        digest = hashlib.sha256()
        with self.path.open("rb") as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                self.poll()
                digest.update(chunk)
        return digest.hexdigest()

    def stamp(self) -> tuple[int, int]:
        """Return (bytes, modification time in ns) of the file, both 0 if it is gone."""
        if not self.path.exists():
            return 0, 0
        stat = self.path.stat()
        return stat.st_size, stat.st_mtime_ns

    def _refuse_utf_16(self) -> None:
        """Raise BadInput if the file begins as UTF-16 or UTF-32 does, or cannot be read."""
        try:
            with _opened(self.path, "rb") as file:
                head = file.read(4)
        except OSError as error:
            raise cannot_read(self.path, error) from None
        if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or head.count(0) > 1:
            raise BadInput(
                f"{self.path} begins as UTF-16 does.",
                f"Save it as UTF-8: iconv -f UTF-16 -t UTF-8 {self.path}",
            )

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield (line from 1, its bytes without its end); '' is an empty line."""
        with _opened(self.path, "rb") as file:
            for number, line in enumerate(file, 1):
                raw = line.removesuffix(b"\n").removesuffix(b"\r")
                if number == 1:
                    raw = raw.removeprefix(codecs.BOM_UTF8)
                if self.format == ".jsonl" and not raw.strip():
                    raw = b""
                yield number, raw


@contextlib.contextmanager
def _opened(path: Path, mode: str, **options) -> Iterator[IO]:
    """Open an input as `open` does. One that ends in .gz is decompressed as it is read.

    Raises BadInput: it ends in .gz and is no gzip file, or was cut.
    """
    opener: Callable[..., Any] = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, mode, **options) as file:
        try:
            yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            remedy = "Compress it again; if it is not compressed, leave .gz out of its name."
            raise BadInput(f"{path} cannot be read as gzip: {error}.", remedy) from None


def _one_line(text: str) -> str:
    """Return a line of text. Raises Malformed: it holds a character that cannot be in a line."""
    for character, name in _NOT_IN_LINES.items():
        if character in text:
            raise Malformed(f"it holds a {name}: is the file UTF-8, with one kind of line ends?")
    return text


def choose_column(path: Path, names: list[str], column: str | None) -> str | None:
    """Return the column of the prompts; None where a table holds OpenAI's requests whole.

    Raises BadInput: it has none of that name, or several columns of which none is called so.
    """
    if column is None and REQUESTS in names:
        return None
    if column:
        candidates = [column]
        problem = f"has no column {column!r}"
    else:
        candidates = [*PROMPTS]
        problem = "has no column called prompt"
        if len(names) == 1:
            candidates.append(names[0])
    for name in candidates:
        if name in names:
            return name
    raise BadInput(
        f"{path} {problem}.", f"Choose one with --column: {', '.join(names) or 'it has none'}."
    )


def _refuse_repeated(path: Path, names: list[str]) -> None:
    """Raise BadInput if two columns have one name: a row would keep one of them."""
    repeated = [name for name, count in Counter(names).items() if name and count > 1]
    if repeated:
        raise BadInput(
            f"{path} has several columns called {repeated[0]!r}.", "Give each a name of its own."
        )


def _has_odd_bytes(text: str) -> bool:
    """Return True if a text that was read with `surrogateescape` holds bytes that are not UTF-8."""
    return not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text)


class Csv:
    """A CSV file whose first line names the columns.

    `names` are the names of the columns; `notes` say what the file left open.

    Rows come from the standard library's `csv` in its strict mode. pandas cannot take its place:
    with unmatched quotes its Python engine drops rows without an error, and its C engine joins
    them, so both break test_quotes_that_do_not_match_are_no_bad_rows_that_may_be_left_out and
    test_a_table_with_one_character_too_many_is_refused_or_holds_it. Neither tells the line of a bad
    row. The separator comes from the head alone, because csv.Sniffer also reads the prompts, whose
    punctuation misleads it (see test_the_separator_is_that_of_the_head_whatever_the_prompts_hold).
    """

    marks = (*SEPARATORS,)

    def __init__(self, path: Path, column: str | None):
        csv.field_size_limit(1 << 30)
        self._path = path
        self.notes = []
        heads = {mark: self._head(mark) for mark in self.marks}
        prompt_columns = {*PROMPTS, REQUESTS}
        if column:
            prompt_columns = {column}
        with_prompts = [mark for mark, names in heads.items() if prompt_columns & set(names)]
        with_several = [mark for mark, names in heads.items() if len(names) > 1]
        self._mark = [*with_prompts, *with_several, *self.marks][0]
        self.names = heads[self._mark]
        if _has_odd_bytes("".join(self.names)):
            raise BadInput(f"The first line of {path} is not UTF-8.", "Save it as UTF-8.")
        if self._mark != self.marks[0]:
            self.notes.append(f"{path} is read with {SEPARATORS[self._mark]} between its columns.")
        if len(self.names) == 1 and not prompt_columns & set(self.names):
            self.notes.append(
                f"{path} is read with {self.names[0]!r} as the name of its only column, not as a prompt."
            )

    def rows(self) -> Iterator[tuple[int, dict | Malformed]]:
        """Yield (line where it begins, fields by name or why there are none); an empty line is {}.

        Raises BadInput: quotes that do not match: where a row ends cannot be known from there on.
        """
        with self._open() as file:
            reader = csv.reader(file, delimiter=self._mark, strict=True)
            at = 1
            try:
                next(reader, None)
                at = reader.line_num + 1
                for cells in reader:
                    yield at, self._row(cells)
                    at = reader.line_num + 1
            except csv.Error as error:
                problem = f"the quotes of the row that begins here do not match ({error}). Nothing was started."
                remedy = 'Put a cell that holds quotes, commas or line ends into "…", and write "" for each quote in it.'
                raise BadInput(f"{self._path}, line {at:,}: {problem}", remedy) from None

    def _row(self, cells: list[str]) -> dict | Malformed:
        """Return the fields of a row by name, or why it has none."""
        if cells and len(cells) != len(self.names):
            return Malformed(f"it has {len(cells)} cells, and the head has {len(self.names)}")
        whole = "".join(cells)
        if _has_odd_bytes(whole):
            return Malformed("it is not UTF-8")
        if "\0" in whole:
            return Malformed("it holds a NUL byte")
        unnamed = [cell for name, cell in zip(self.names, cells, strict=False) if not name]
        if len(unnamed) > 1 and any(unnamed):
            return Malformed("it has a value in one of several columns without a name: name them")
        return dict(zip(self.names, cells, strict=False))

    def _open(self) -> contextlib.AbstractContextManager[IO[str]]:
        """Open the file, as the csv module wants it."""
        text = {"encoding": "utf-8-sig", "errors": "surrogateescape", "newline": ""}
        return _opened(self._path, "rt", **text)

    def _head(self, mark: str) -> list[str]:
        """Return the names in the head if `mark` separates them, or none if quotes do not match."""
        with self._open() as file:
            try:
                return next(csv.reader(file, delimiter=mark, strict=True), [])
            except csv.Error:
                return []


class Tsv(Csv):
    """A file of tab separated values, read as a CSV file is."""

    marks = ("\t",)


class Parquet:
    """A Parquet file; `names` and `notes` as of a CSV file."""

    def __init__(self, path: Path, column: str | None):
        self._path = path
        self.notes = []
        with self._sound():
            self.names = self._file().schema_arrow.names

    def rows(self) -> Iterator[tuple[int, dict]]:
        """Yield (row from 1, fields by name). Raises BadInput: the file is broken."""
        number = 0
        with self._sound():
            for batch in self._file().iter_batches(batch_size=1024):
                for fields in batch.to_pylist():
                    number += 1
                    yield number, fields

    def _file(self):
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(self._path, page_checksum_verification=True)

    @contextlib.contextmanager
    def _sound(self) -> Iterator[None]:
        """Raise BadInput if reading shows that the file is not sound."""
        import pyarrow

        try:
            yield
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            problem = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadInput(
                f"{self._path} cannot be read as Parquet: {problem}", "Was it cut?"
            ) from None


TABLES = {".csv": Csv, ".tsv": Tsv, ".parquet": Parquet}

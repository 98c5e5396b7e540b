"""Tables of prompts, CSV and Parquet: columns by their names, and what a file leaves open is said."""

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

from workshop.errors import BadInput
from workshop.use.strict_json import Malformed

SEPARATORS = {",": "a comma", ";": "';'", "\t": "a tab", "|": "'|'"}
PROMPTS = ("prompt", "messages", "text")  # names of columns that hold prompts
REQUESTS = "body"  # … and of the one in which OpenAI's requests lie whole


def choose_column(path: Path, names: list[str], column: str | None) -> str | None:
    """Return the column of the prompts; None where a table holds OpenAI's requests whole.

    Raises BadInput: it has none of that name, or several columns of which none is called so.
    """
    if column is None and REQUESTS in names:
        return None
    for name in [column] if column else [*PROMPTS, *(names if len(names) == 1 else [])]:
        if name in names:
            return name
    said = f"has no column {column!r}" if column else "has no column called prompt"
    raise BadInput(f"{path} {said}.", f"Choose one with --column: {', '.join(names) or 'it has none'}.")


def told_apart(names: list[str]) -> list[str]:
    """Return the names with .2, .3, … after those that were there already."""
    found: list[str] = []
    for name in names:
        numbered = (f"{name}.{number}" for number in itertools.count(2))
        found.append(next(each for each in itertools.chain([name], numbered) if each not in found))
    return found


class Csv:
    """A CSV file whose first line names the columns; `names` are those, `notes` say what the file left open."""

    def __init__(self, path: Path, column: str | None):
        csv.field_size_limit(1 << 30)
        self._path, self.notes = path, []
        heads = {mark: self._head(mark) for mark in SEPARATORS}
        wanted = {column} if column else {*PROMPTS, REQUESTS}
        found = [mark for mark, names in heads.items() if wanted & set(names)]
        self._mark = [*found, *(mark for mark, names in heads.items() if len(names) > 1), ","][0]
        written = heads[self._mark]
        if any("\udc80" <= character <= "\udcff" for name in written for character in name):
            raise BadInput(f"The first line of {path} is not UTF-8.", "Save it as UTF-8.")
        self.names = told_apart(written)
        if self._mark != ",":
            self.notes.append(f"{path} is read with {SEPARATORS[self._mark]} between its columns.")
        if self.names != written:
            self.notes.append(repeated(path, written, self.names))
        if len(written) == 1 and not wanted & set(written):
            self.notes.append(f"{path} is read with {written[0]!r} as the name of its only column, not as a prompt.")

    def rows(self) -> Iterator[tuple[int, dict | Malformed]]:
        """Yield (line where it begins, fields by name or why there are none); an empty line is {}.

        Raises BadInput: quotes that do not match: where a row ends cannot be known from there on.
        """
        with self._path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader, at = csv.reader(file, delimiter=self._mark, strict=True), 1
            try:
                next(reader, None)
                at = reader.line_num + 1
                for cells in reader:
                    yield at, self._row(cells)
                    at = reader.line_num + 1
            except csv.Error as error:
                raise BadInput(
                    f"{self._path}, line {at:,}: the quotes of the row that begins here do not match ({error}). "
                    "Nothing was started.",
                    'Put a cell that holds quotes, commas or line ends into "…", and write "" for each quote in it.',
                ) from None

    def _row(self, cells: list[str]) -> dict | Malformed:
        if cells and len(cells) != len(self.names):
            return Malformed(f"it has {len(cells)} cells, and the head has {len(self.names)}")
        whole = "".join(cells)
        if not whole.isascii() and any("\udc80" <= character <= "\udcff" for character in whole):
            return Malformed("it is not UTF-8")
        if "\0" in whole:
            return Malformed("it holds a NUL byte")
        return dict(zip(self.names, cells, strict=False))

    def _head(self, mark: str) -> list[str]:
        with self._path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            try:
                return next(csv.reader(file, delimiter=mark, strict=True), [])
            except csv.Error:
                return []


class Parquet:
    """A Parquet file; `names` and `notes` as of a CSV file."""

    def __init__(self, path: Path, column: str | None):
        self._path = path
        written = self._read(lambda: self._file().schema_arrow.names)
        self.names = told_apart(written)
        self.notes = [repeated(path, written, self.names)] if self.names != written else []

    def rows(self) -> Iterator[tuple[int, dict]]:
        """Yield (row from 1, fields by name). Raises BadInput: the file is broken."""
        import pyarrow

        batches, before = self._read(lambda: self._file().iter_batches(batch_size=1024)), 0
        while (batch := self._read(lambda: next(batches, None))) is not None:
            named = pyarrow.RecordBatch.from_arrays(batch.columns, names=self.names)
            yield from enumerate(self._read(named.to_pylist), before + 1)
            before += len(batch)

    def _file(self):
        import pyarrow.parquet

        return pyarrow.parquet.ParquetFile(self._path, page_checksum_verification=True)

    def _read(self, read):
        import pyarrow

        try:
            return read()
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadInput(f"{self._path} cannot be read as Parquet: {said}", "Was it cut?") from None


def repeated(path: Path, written: list[str], names: list[str]) -> str:
    """Say which columns have a name that came before, and what they are called."""
    pairs = [f"another {old!r} is called {new!r}" for old, new in zip(written, names, strict=True) if old != new]
    return f"{path} has columns of the same name: {', '.join(pairs)}."


KINDS = {".csv": Csv, ".parquet": Parquet}

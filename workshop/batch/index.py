"""Which rows there are and which are answered, on disk: one bit a row in memory, the rest in a temporary file.

The file is derived: it is made anew from input and output at every start, so it can be neither stale nor broken.
"""

import sqlite3
from hashlib import blake2b

from workshop.batch.rows import Row
from workshop.errors import WorkshopError

CACHE_KIB = 16_384
TABLES = (
    "CREATE TABLE ids (id BLOB PRIMARY KEY, key BLOB, row INTEGER, samples INTEGER, place INTEGER, body TEXT, "
    "times INTEGER) WITHOUT ROWID",
    "CREATE TABLE again (row INTEGER PRIMARY KEY, times INTEGER)",
)


class Bits:
    """A set of whole numbers, one bit each."""

    def __init__(self) -> None:
        self._bytes, self.count = bytearray(), 0

    def add(self, number: int) -> bool:
        """Add a number; return whether it was new."""
        at, bit = number >> 3, 1 << (number & 7)
        if at >= len(self._bytes):
            self._bytes.extend(bytes(max(at + 1 - len(self._bytes), 4096)))
        new = not self._bytes[at] & bit
        self._bytes[at] |= bit
        self.count += new
        return new

    def __contains__(self, number: int) -> bool:
        at = number >> 3
        return at < len(self._bytes) and bool(self._bytes[at] & 1 << (number & 7))


class Index:
    """Rows by their ids, for as long as one run lasts, in a temporary file that is unlinked already: no kill leaves it."""

    def __init__(self) -> None:
        # The empty name is SQLite's own temporary file.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE", f"cache_size=-{CACHE_KIB}"):
            self.do(f"PRAGMA {setting}")
        for line in (*TABLES, "BEGIN"):
            self.do(line)
        self.done, self.bad, self.other, self.rows = Bits(), Bits(), Bits(), 0
        self._repeats = False

    def do(self, line: str, *values: object) -> tuple | None:
        """Do what a line of SQL says; return its first row.

        Raises WorkshopError: there is no room, or folder, for the file.
        """
        try:
            return self._db.execute(line, values).fetchone()
        except sqlite3.Error as error:
            raise WorkshopError(
                f"The temporary file of this run cannot be written ({error}). All answers are kept.",
                "Free some space, or set TMPDIR to a folder that has some, and run the same command again: it goes on.",
            ) from None

    def close(self) -> None:
        """Remove the file; twice does no harm."""
        self._db.close()

    def again(self, row: int, first: str) -> int:
        """Count a row without an id, whose content the row with the id `first` had: 2 for the second; remember that."""
        self._repeats = True
        (times,) = self.do("UPDATE ids SET times = times + 1 WHERE id = ? RETURNING times", short(first))
        self.do("INSERT INTO again VALUES (?, ?)", row, times)
        return times

    def times(self, row: int) -> int:
        """Return what `again` said of that row, 1 if nothing."""
        found = self._repeats and self.do("SELECT times FROM again WHERE row = ?", row)
        return found[0] if found else 1

    def add(self, row: Row, body: str | None = None) -> bool:
        """Add a row, with its body if that is wanted back; return False if its id is there already."""
        values = short(row.custom_id), row.key, row.number, row.samples, row.place, body
        added = self.do("INSERT INTO ids VALUES (?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO NOTHING RETURNING 1", *values)
        return added is not None

    def place_of(self, custom_id: str) -> int:
        return self.do("SELECT place FROM ids WHERE id = ?", short(custom_id))[0]

    def find(self, custom_id: str) -> tuple[bytes, int, int, str | None]:
        """Return (key, row, samples, body) of an id; the key is empty if the input has no such row."""
        found = self.do("SELECT key, row, samples, body FROM ids WHERE id = ?", short(custom_id))
        return found or (b"", 0, 0, None)


def short(custom_id: str) -> bytes:
    """Return 16 bytes that stand for an id."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()

"""Checks every row before anything is sent, and finds the answers that the output already has.

The input is read once: the check keeps the requests in a temporary file, from which they are sent.
Memory holds only a few bits a row (of a `--retry`, more of each row that is asked again). The file is made from input and output at every start, so it can
be neither stale nor broken.
"""

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH, RETRY_FACTOR
from workshop.batch.keep.lines import KeptAnswer, metadata_text
from workshop.batch.keep.store import scan
from workshop.batch.read.inputs import Source
from workshop.batch.read.rows import Builder, Content, InputRow, Malformed, derived_id, key_of
from workshop.errors import BadInput, WorkshopError

SHOWN = 3  # bad rows that a message names
CACHE_KIB = 4_096
_TABLE = (
    "CREATE TABLE rows (row INTEGER PRIMARY KEY, id BLOB UNIQUE, place INTEGER, custom_id TEXT, "
    "url TEXT, request TEXT, key BLOB, samples INTEGER, metadata TEXT, times INTEGER)"
)
_INSERT_ROW = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 1) ON CONFLICT DO NOTHING"
_SELECT_ROW = "SELECT row, place, custom_id, url, request, key, samples, metadata FROM rows"


class Bits:
    """A set of whole numbers, one bit each."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self.count = 0

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
    """Rows by their ids, in a temporary file without a name, which vanishes with the process."""

    def __init__(self) -> None:
        # The empty name is SQLite's own temporary file.
        self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for setting in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "temp_store=FILE",
            f"cache_size=-{CACHE_KIB}",
        ):
            self.do(f"PRAGMA {setting}")
        self.do(_TABLE)
        self.do("BEGIN")
        self.done = Bits()
        self.bad = Bits()
        self.rows = 0

    def do(self, line: str, *values: object) -> tuple | None:
        """Execute a line of SQL; return the first row of its result.

        Raises WorkshopError: there is no space, or no folder, for the file.
        """
        return self._execute(line, values).fetchone()

    def _execute(self, line: str, values: tuple) -> sqlite3.Cursor:
        """Execute a line of SQL, as `do` does; return its cursor."""
        try:
            return self._db.execute(line, values)
        except sqlite3.Error as error:
            raise _cannot_use(error) from None

    def close(self) -> None:
        """Remove the file. A second call does no harm."""
        self._db.close()

    def add(self, row: InputRow) -> bool:
        """Keep a row until it is sent; return False if another row has its id already."""
        values = (
            row.number,
            short(row.custom_id),
            row.place,
            row.custom_id,
            row.url,
            row.request,
            row.key,
            row.samples,
            row.metadata,
        )
        return self._execute(_INSERT_ROW, values).rowcount == 1

    def again(self, first: str) -> int:
        """Record one more row that equals the one with the id `first`; return their number."""
        update = "UPDATE rows SET times = times + 1 WHERE id = ? RETURNING times"
        counted = self.do(update, short(first))
        assert counted is not None  # as that row is there
        return counted[0]

    def find(self, custom_id: str) -> InputRow | None:
        """Return the row with an id; None if the input has no such row."""
        record = self.do(f"{_SELECT_ROW} WHERE rows.id = ?", short(custom_id))
        if record is None:
            return None
        return InputRow(*record)

    def all_rows(self) -> Iterator[InputRow]:
        """Yield the rows in the order of the input.

        Raises WorkshopError: the temporary file cannot be used.
        """
        rows = self._execute(f"{_SELECT_ROW} ORDER BY row", ())
        try:
            for record in rows:
                yield InputRow(*record)
        except sqlite3.Error as error:
            raise _cannot_use(error) from None


def _cannot_use(error: sqlite3.Error) -> WorkshopError:
    """Return the error for a temporary file that there is no space for, or no folder."""
    problem = f"The temporary file of this run cannot be written ({error}). All answers are kept."
    space = "Free some space, or set TMPDIR to a folder that has some"
    return WorkshopError(problem, f"{space}, and run the same command again: it goes on.")


def short(custom_id: str) -> bytes:
    """Return 16 bytes that stand for an id."""
    return blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass
class Bad:
    """A malformed row: its number from 0, its place in the file, and what is wrong."""

    row: int
    place: int
    reason: str


class CutAnswer(NamedTuple):
    """The answer of a row that is asked again because it was cut."""

    max_tokens: int  # with which it was asked again; minus its own tokens, if it was not
    prompt_tokens: int
    finish_reasons: list[str]


@dataclass
class Work:
    """A checked input, with the rows that are still to be answered and those that are answered."""

    source: Source
    builder: Builder
    index: Index = field(default_factory=Index)
    bad: list[Bad] = field(default_factory=list)  # the first MANY; `index.bad` knows them all
    keep_bytes: int = 0  # of the journal: whole lines
    shard: tuple[int, int] = (1, 1)  # (which, of how many): every so-many-th row is this run's
    # answers of rows that read differently now, are gone, or are another shard's
    superseded: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)  # of the answers that count
    retry: bool = False  # ask rows again whose answer ended in length
    max_model_len: int | None = None  # of the server or the engine, once it is known
    cut_answers: dict[int, CutAnswer] = field(default_factory=dict)  # by row; with `retry`
    retried: int = 0  # rows that have their second answer
    read_journal: Callable[[Path], Iterator[KeptAnswer]] = scan
    full: int = 0  # rows that were not asked again: their context has no room for more
    stamp: tuple[int, int] = (0, 0)  # of the input when it was read

    MANY = 10_000

    def check(self, skip_bad: bool = False, tell: bool = True) -> None:
        """Read the whole input once, and check every row.

        Args:
            skip_bad: leave malformed rows out instead of refusing the input.
            tell: print the notes on how the input was understood.

        Raises BadInput: a row is malformed, or has the id of another; no row is left.
        """
        self.stamp = self.source.stamp()
        for number, (place, raw) in enumerate(self.source.raws()):
            self.source.poll()
            self.index.rows = number + 1
            try:
                self._add(number, place, raw)
            except Malformed as error:
                if skip_bad and not self._is_of_shard(number):  # its shard's errors have it
                    continue
                self.index.bad.add(number)
                if len(self.bad) < (self.MANY if skip_bad else SHOWN):
                    self.bad.append(Bad(number, place, str(error)))
        if tell:
            self.source.tell()
        if not self.index.rows:  # a shard may have none: there may be more of them than rows
            raise BadInput(f"{self.source.path} holds no prompt.", "Give at least one.")
        if self.index.bad.count and (not skip_bad or self.index.bad.count == self.index.rows):
            raise self._refusal()

    def _refusal(self) -> BadInput:
        """Return the error that names the first bad rows."""
        first, *others = self.bad[:SHOWN]
        more = self.index.bad.count - 1
        also = ""
        if more:
            places = ", ".join(f"{bad.place:,}" for bad in others)
            dots = " …" if more > len(others) else ""
            also = f" {more:,} more are bad: {self.source.place} {places}{dots}."
        problem = f"{self.source.path}, {self.source.place} {first.place:,}: {first.reason}.{also} Nothing was started."
        remedy = "Correct it"
        if self.index.rows > self.index.bad.count:  # there are good rows, too
            remedy += ", or leave such rows out with --skip-bad"
        return BadInput(problem, f"{remedy}.")

    def resume(self, *journals: Path) -> None:
        """Find the rows that the journals have an answer to."""
        for _ in self.answered(*journals):
            pass

    def answered(self, *journals: Path) -> Iterator[tuple[KeptAnswer, InputRow]]:
        """Yield each answer that counts, and its row.

        It must have all samples, and the key that its row has now; an equal id or number is not
        enough.
        """
        index = self.index
        for journal in journals:
            for answer in self.read_journal(journal):
                self.source.poll()
                self.keep_bytes = answer.end
                row = index.find(answer.custom_id)
                if row is not None and self._counts(answer, row) and index.done.add(row.number):
                    self._count(answer, row)
                    yield answer, row
                else:
                    self.superseded += 1

    def _counts(self, answer: KeptAnswer, row: InputRow) -> bool:
        """Return True if an answer is a whole one to what this row asks now."""
        is_of_row = self._is_of_shard(row.number) and row.key == answer.key
        return is_of_row and answer.has(row.samples)

    def _count(self, answer: KeptAnswer, row: InputRow) -> None:
        """Count how an answer ended; note its row for another attempt if it was cut and `retry`."""
        finish_reasons = finish_reasons_of(answer.choices)
        self.finish_reasons.update(finish_reasons)
        if self.retry and ENDED_IN_LENGTH in finish_reasons:
            tokens = answer.tokens_of_retry or 0
            prompt_tokens = _whole(answer.usage.get("prompt_tokens"))
            # for a row that names no limit: the server's own, which the answer has met
            generated = _whole(answer.usage.get("completion_tokens"))
            self.cut_answers[row.number] = CutAnswer(
                tokens or -generated, prompt_tokens, finish_reasons
            )

    def keep(self, row: InputRow, choices: list[dict]) -> None:
        """Record that a row has an answer with these choices."""
        if row.more_tokens is not None:
            self.finish_reasons.subtract(self.cut_answers[row.number].finish_reasons)
            self.retried += 1
        self.finish_reasons.update(finish_reasons_of(choices))
        self.index.done.add(row.number)

    @property
    def left(self) -> int:
        """The number of rows that are still to be answered, or to be answered again."""
        again = len(self.cut_answers) - self.retried - self.full
        return self.rows_of_shard - self.index.bad.count - self.index.done.count + again

    @property
    def rows_of_shard(self) -> int:
        """The number of rows that this run has to answer, bad ones included: those of its shard."""
        which, of = self.shard
        return len(range(which - 1, self.index.rows, of))

    def _is_of_shard(self, number: int) -> bool:
        """Return True if a row belongs to this run's shard."""
        which, of = self.shard
        return number % of == which - 1

    def rows(self) -> Iterator[InputRow | None]:
        """Yield the rows that are not answered yet.

        While it skips rows it yields None from time to time, so that other tasks may run.
        """
        index = self.index
        for row in index.all_rows():
            is_done = row.number in index.done and row.number not in self.cut_answers
            if is_done or not self._is_of_shard(row.number):
                if row.number % 256 == 0:
                    yield None
                continue
            if row.number in self.cut_answers and not self._give_more_tokens(row):
                continue
            yield row

    def _give_more_tokens(self, row: InputRow) -> bool:
        """Allow more tokens for a row that was cut; return False if its context has no room."""
        max_tokens, prompt_tokens, _ = self.cut_answers[row.number]
        if max_tokens <= 0:  # it is the row's first retry
            max_tokens = row.token_limit or -max_tokens
        more_tokens = RETRY_FACTOR * max_tokens
        if self.max_model_len is not None:
            more_tokens = min(more_tokens, self.max_model_len - prompt_tokens)
        if more_tokens <= max_tokens:
            self.full += 1
            return False
        row.more_tokens = more_tokens
        return True

    def _add(self, number: int, place: int, raw: object) -> None:
        """Keep a row. One without an id gets one, made of its content and the count of equal rows.

        Raises Malformed: it is malformed, or its id is another row's.
        """
        content = self.builder.content(self.source.decode(raw))
        custom_id = content.custom_id or derived_id(content.url, content.canonical, 1)
        is_new = self._add_as(custom_id, number, place, content)
        if not is_new and content.custom_id is None:
            times = self.index.again(custom_id)
            custom_id = derived_id(content.url, content.canonical, times)
            is_new = self._add_as(custom_id, number, place, content)
        if not is_new:
            first = self.index.find(custom_id)
            assert first is not None  # as it has taken the id
            place_of_first = f"{self.source.place} {first.place:,}"
            raise Malformed(f"its custom_id {custom_id!r} is that of {place_of_first} already")

    def _add_as(self, custom_id: str, number: int, place: int, content: Content) -> bool:
        """Keep a row under an id; return False if another row has the id already."""
        request = metadata = ""
        if self._is_of_shard(number):  # of other rows their ids alone matter
            request = content.request
            metadata = metadata_text(content.extra)
        key = key_of(custom_id, content.url, content.canonical)
        return self.index.add(
            InputRow(number, place, custom_id, content.url, request, key, content.samples, metadata)
        )


def _whole(count: object) -> int:
    """Return a server's count of tokens; 0 if it is none."""
    return count if type(count) is int else 0


def finish_reasons_of(choices: list[dict]) -> list[str]:
    """Return how the samples of a row ended; an embedding has no reason."""
    reasons = [choice.get("finish_reason") for choice in choices]
    return [str(reason) for reason in reasons if reason is not None]


def shard_of(text: str | None) -> tuple[int, int]:
    """Return (2, 8) for "2/8", the second of eight shards.

    Raises BadInput: the text names no shard.
    """
    match = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text or "1/1")
    which = int(match[1]) if match else 0
    of = int(match[2]) if match else 0
    if not 1 <= which <= of:
        raise BadInput(f"{text!r} is no shard.", "Give which one of how many, such as 2/8.")
    return which, of

"""Before anything is sent: every row of the input is checked, and what the output has already is found."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from workshop.batch.index import Index
from workshop.batch.inputs import Source
from workshop.batch.lines import Answer
from workshop.batch.rows import Builder, Malformed, Row, derived_id
from workshop.batch.store import scan
from workshop.errors import BadInput

SHOWN = 3  # bad rows that a message names


@dataclass
class Bad:
    row: int
    place: int
    reason: str


@dataclass
class Work:
    """A checked input: what is to do, and what is done."""

    source: Source
    builder: Builder
    index: Index = field(default_factory=Index)
    bad: list[Bad] = field(default_factory=list)  # the first MANY; `index.bad` knows them all
    keep_bytes: int = 0  # of the journal: whole lines
    shard: tuple[int, int] = (1, 1)  # (which, of how many): every so-many-th row is this run's
    superseded: int = 0  # answers of rows that read differently now, are gone, or are another shard's
    keep_bodies: bool = False  # so that answers come with what was asked

    MANY = 10_000

    def check(self, skip_bad: bool = False, tell: bool = True) -> None:
        """Read the whole input once; `tell` what it leaves open.

        Raises BadInput: a row is malformed, or has the id of another; with `skip_bad` they are left out instead.
        """
        for number, (place, raw) in enumerate(self.source.raws()):
            self.index.rows = number + 1
            try:
                self._add(number, place, raw)
                if not self._mine(number):
                    self.index.other.add(number)
            except Malformed as error:
                if skip_bad and not self._mine(number):  # another shard's file of errors has it
                    self.index.other.add(number)
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
        first, *others = self.bad[:SHOWN]
        more, places = self.index.bad.count - 1, ", ".join(f"{bad.place:,}" for bad in others)
        dots = " …" if more > len(others) else ""
        also = f" {more:,} more are bad: {self.source.place} {places}{dots}." if more else ""
        said = f"{self.source.path}, {self.source.place} {first.place:,}: {first.reason}.{also} Nothing was started."
        good = self.index.rows - self.index.bad.count
        return BadInput(said, "Correct it" + ", or leave such rows out with --skip-bad" * (good > 0) + ".")

    def resume(self, *journals: Path) -> None:
        for _ in self.answered(*journals):
            pass

    def answered(self, *journals: Path) -> Iterator[tuple[Answer, int, str | None]]:
        """Yield each answer that counts, the number of its row as it is now, and that row's body (None: not kept).

        It has all samples, under the key that its row has now; an id or a row's number is not enough.
        """
        for journal in journals:
            for answer in scan(journal):
                self.keep_bytes = answer.end
                key, number, samples, body = self.index.find(answer.custom_id)
                sound = key == answer.key and number not in self.index.other and answer.has(samples)
                if sound and self.index.done.add(number):
                    yield answer, number, body
                else:
                    self.superseded += 1

    @property
    def left(self) -> int:
        """How many rows are still to be asked."""
        return self.mine - self.index.bad.count - self.index.done.count

    @property
    def mine(self) -> int:
        """How many rows of the input this run is to answer, bad ones included."""
        return self.index.rows - self.index.other.count

    def _mine(self, number: int) -> bool:
        which, of = self.shard
        return number % of == which - 1

    def rows(self) -> Iterator[Row | None]:
        """Yield the rows that are not answered yet; None now and then while it skips, so that others may run."""
        index = self.index
        before = index.done.count  # rows answered from now on are ahead of nobody
        for number, (place, raw) in enumerate(self.source.raws()):
            if number >= index.rows:
                return  # the input grew since it was checked
            if number in index.other or number in index.bad or (before and number in index.done):
                if number % 256 == 0:
                    yield None
                continue
            try:
                row = self._row(number, place, raw)
            except Malformed:  # the input changed since; the caller sees that by its stamp
                continue
            if index.find(row.custom_id)[:3] == (row.key, number, row.samples):  # else it changed, too
                yield row

    def _add(self, number: int, place: int, raw: object) -> None:
        custom_id, url, body, extra = self.builder.content(self.source.decode(raw))
        row = Row(number, place, custom_id or derived_id(url, body, 1), url, body, extra)
        kept = body if self.keep_bodies else None
        new = self.index.add(row, kept)
        if not new and custom_id is None:  # an equal row came before
            times = self.index.again(number, row.custom_id)
            row = Row(number, place, derived_id(url, body, times), url, body, extra)
            new = self.index.add(row, kept)
        if not new:
            before = self.index.place_of(row.custom_id)
            raise Malformed(f"its custom_id {row.custom_id!r} is that of {self.source.place} {before:,} already")

    def _row(self, number: int, place: int, raw: object) -> Row:
        custom_id, url, body, extra = self.builder.content(self.source.decode(raw))
        custom_id = custom_id or derived_id(url, body, self.index.times(number))
        return Row(number, place, custom_id, url, body, extra)


def shard_of(text: str | None) -> tuple[int, int]:
    """Read "2/8": the second of eight shards."""
    found = re.fullmatch("([0-9]{1,9})/([0-9]{1,9})", text or "1/1")
    which, of = map(int, found.groups()) if found else (0, 0)
    if not 1 <= which <= of:
        raise BadInput(f"{text!r} is no shard.", "Give which one of how many, such as 2/8.")
    return which, of

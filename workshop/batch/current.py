"""Which answers of an output count: those to the rows of its input as it is now.

They are found by their keys, the hashes of what was asked. An id does not tell: its row may have read otherwise once,
and may again. Nor does a row's number: rows may have been put in front of it since.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from workshop.batch.index import Temporary, short
from workshop.batch.inputs import Source
from workshop.batch.lines import Answer
from workshop.batch.prepare import Work, shard_of
from workshop.batch.rows import Builder
from workshop.batch.store import scan
from workshop.errors import BadInput, WorkshopError


class Current:
    """The answers that count, of one journal or of those of shards.

    Where the input is not there as it was, all answers count, as long as there is one version of each row.

    Args:
        meta: the record beside the output.
        input: where the input lies now, if not where it was.
        shard: which of the input's rows, of how many parts.

    Raises:
        BadInput: `input` is not the one that was answered.
        WorkshopError: the input changed between runs, and is not there: nobody can tell which answers count.
    """

    def __init__(
        self, meta: dict, journals: list[Path], input: str | Path | None = None, shard: tuple[int, int] | None = None
    ):
        self._journals, self._facts = journals, meta["input"]
        self._tables = Temporary(
            "CREATE TABLE answers (key BLOB PRIMARY KEY, id BLOB UNIQUE, row INTEGER UNIQUE, "
            "samples INTEGER, prompt TEXT, journal INTEGER, end INTEGER) WITHOUT ROWID"
        )
        work = _work(meta, input, shard)
        if work is None and input:
            raise BadInput(f"{input} is not the input that was answered.", f"Give {self._facts.get('path')} as it was.")
        if work is None and self._facts.get("changed"):
            raise self._ambiguous()
        find = self._all if work is None else self._asked
        if work is not None:
            self._add_rows(work)
        for number, journal in enumerate(journals):
            for answer in scan(journal):
                find(answer, number)

    @property
    def count(self) -> int:
        """How many rows have an answer that counts."""
        return self._tables.do("SELECT COUNT(end) FROM answers")[0]

    def answers(self) -> Iterator[tuple[Answer, int, object]]:
        """Yield each answer that counts, the number of its row, and its prompt or messages (None: not known)."""
        for number, journal in enumerate(self._journals):
            for answer in scan(journal):
                found = self._tables.do(
                    "SELECT row, prompt FROM answers WHERE key = ? AND journal = ? AND end = ?",
                    answer.key,
                    number,
                    answer.end,
                )
                if found:
                    yield answer, found[0], found[1] and json.loads(found[1])

    def _add_rows(self, work: Work) -> None:
        for row in work.rows():
            if row is not None:
                body = json.loads(row.body)
                self._tables.do(
                    "INSERT INTO answers VALUES (?, ?, ?, ?, ?, NULL, NULL)",
                    row.key,
                    short(row.custom_id),
                    row.number,
                    row.samples,
                    json.dumps(body.get("prompt", body.get("messages"))),
                )
        work.index.close()

    def _asked(self, answer: Answer, journal: int) -> None:
        found = self._tables.do("SELECT samples FROM answers WHERE key = ?", answer.key)
        if found and answer.has(found[0]):
            self._tables.do("UPDATE answers SET journal = ?, end = ? WHERE key = ?", journal, answer.end, answer.key)

    def _all(self, answer: Answer, journal: int) -> None:
        try:
            self._tables.do(
                "INSERT INTO answers VALUES (?, ?, ?, NULL, NULL, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                "journal = excluded.journal, end = excluded.end",
                answer.key,
                short(answer.custom_id),
                answer.row,
                journal,
                answer.end,
            )
        except sqlite3.IntegrityError:  # an id with two keys, or a row with two ids
            raise self._ambiguous() from None

    def _ambiguous(self) -> WorkshopError:
        return WorkshopError(
            f"{self._journals[0]} has answers to several versions of its input, and {self._facts.get('path')} is not "
            "there as it was last: which of them count cannot be told.",
            "Put it back, say where it lies (load's argument `input`), or run the batch again.",
        )


def _work(meta: dict, input: str | Path | None, shard: tuple[int, int] | None) -> Work | None:
    """Return the checked input; None: it is not there, or is not as it was."""
    facts = meta["input"]
    try:
        path = Path(input or facts["path"])
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            return None
        source = Source(path, facts.get("column"))
        if source.sha256() != facts["sha256"]:
            return None
        builder = Builder(meta["sampling_parameters"], source.column, bool(facts.get("chat")), table=source.table)
        work = Work(source, builder, shard=shard or shard_of(facts.get("shard")))
        work.check(skip_bad=True, tell=False)
    except (BadInput, OSError, KeyError, TypeError, ValueError):
        return None
    return work

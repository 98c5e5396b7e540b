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


def current(
    meta: dict, journals: list[Path], input: str | Path | None = None, shard: tuple[int, int] | None = None
) -> Iterator[tuple[Answer, int, object]]:
    """Yield each answer that counts, the number of its row, and its prompt or messages (None: not known).

    Where the input is not there as it was, all answers count, as long as there is one version of each row.

    Args:
        meta: the record beside the output.
        journals: one, or those of shards.
        input: where the input lies now, if not where it was.
        shard: which of the input's rows, of how many parts.

    Raises:
        BadInput: `input` is not the one that was answered.
        WorkshopError: the input changed between runs, and is not there: nobody can tell which answers count.
    """
    work = _work(meta, input, shard)
    if work is None:
        if input:
            raise BadInput(
                f"{input} is not the input that was answered.", f"Give {meta['input'].get('path')} as it was."
            )
        yield from _every(meta, journals)
        return
    try:
        for answer, row, body in work.answered(*journals):
            asked = json.loads(body)
            yield answer, row, asked.get("prompt", asked.get("messages"))
    finally:
        work.index.close()


def _every(meta: dict, journals: list[Path]) -> Iterator[tuple[Answer, int, None]]:
    """Without the input: the last answer of each key, if no id has two keys, and no row two ids."""
    ambiguous = WorkshopError(
        f"{journals[0]} has answers to several versions of its input, and {meta['input'].get('path')} is not there as "
        "it was last: which of them count cannot be told.",
        "Put it back, say where it lies (load's argument `input`), or run the batch again.",
    )
    if meta["input"].get("changed"):
        raise ambiguous
    tables = Temporary(
        "CREATE TABLE answers (key BLOB PRIMARY KEY, id BLOB UNIQUE, row INTEGER UNIQUE, journal INTEGER, end INTEGER) "
        "WITHOUT ROWID"
    )
    for number, journal in enumerate(journals):
        for answer in scan(journal):
            try:
                tables.do(
                    "INSERT INTO answers VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET "
                    "journal = excluded.journal, end = excluded.end",
                    *(answer.key, short(answer.custom_id), answer.row, number, answer.end),
                )
            except sqlite3.IntegrityError:
                raise ambiguous from None
    for number, journal in enumerate(journals):
        for answer in scan(journal):
            if tables.do("SELECT 1 FROM answers WHERE (key, journal, end) = (?, ?, ?)", answer.key, number, answer.end):
                yield answer, answer.row, None
    tables.close()


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
        work = Work(source, builder, shard=shard or shard_of(facts.get("shard")), keep_bodies=True)
        work.check(skip_bad=True, tell=False)
    except (BadInput, OSError, KeyError, TypeError, ValueError):
        return None
    return work

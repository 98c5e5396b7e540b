"""Reads an output, JSONL or Parquet, into a DataFrame, and decides which answers count.

An answer counts if its key, the hash of the request, is that of a row of the present input. An id
is not enough, because its row may have been changed. Nor is a row's number, because rows may have
been added in front of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.batch.keep.lines import KeptAnswer
from workshop.batch.keep.paths import PARQUET_META, Paths, parquet_meta, read_meta, replacement
from workshop.batch.keep.store import newest, scan
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Bits, Work, shard_of
from workshop.batch.read.rows import Builder
from workshop.errors import BadInput, WorkshopError

if TYPE_CHECKING:
    import pandas

GROUP_ROWS = 10_000
COLUMNS = ("custom_id", "row", "sample", "prompt", "text", "reasoning", "tool_calls", "refusal", "finish_reason", "stop_reason", "prompt_tokens",
           "completion_tokens", "logprobs", "prompt_logprobs", "embedding", "request_id", "model", "key", "metadata")  # fmt: skip
WHOLE = ("row", "sample", "prompt_tokens", "completion_tokens")
NESTED = ("tool_calls", "logprobs", "prompt_logprobs", "embedding", "metadata")
# Columns that a frame has only if something stands in them.
OPTIONAL = (
    "prompt",
    "reasoning",
    "tool_calls",
    "refusal",
    "stop_reason",
    "logprobs",
    "prompt_logprobs",
    "embedding",
)


def load(output: str | Path, input: str | Path | None = None) -> pandas.DataFrame:
    """Return the answers of an output: a row for each sample, in the order of the input.

    Columns: custom_id, row (of the input, from 0), sample (of the prompt, from 0), prompt, text,
    reasoning, tool_calls (a list, as OpenAI's API gives it), refusal, finish_reason, stop_reason,
    prompt_tokens, completion_tokens (of the whole request), and the input's other fields by their
    names. A column in which nothing stands is left out.
    Where a row of the input was changed, the answer to what it says now is here, and no other. A
    batch that still runs may be read, too.

    Prompts are there if the input is, unchanged.

    input: where the input lies now, if it was moved.

    Raises:
        BadInput: there is no such output, or it is none of a batch.
        WorkshopError: the input changed between runs and is not there any more: which answers count
            cannot be told.
    """
    import pandas

    paths = Paths(output)
    meta = read_meta(paths)
    if paths.parquet and paths.output.exists() and _is_newest(paths, meta):
        frame = pandas.read_parquet(paths.output)
        for name in NESTED:
            frame[name] = [_decoded(value) for value in frame[name]]
    elif paths.journal.exists() and meta:
        frame = pandas.DataFrame(_records(current(meta, [paths.journal], input)), columns=COLUMNS)
    else:
        problem = f"There is no output {output}"
        if paths.journal.exists():
            problem += f" of a batch: {paths.meta}, which says what it came from, is not beside it"
        raise BadInput(f"{problem}.",
                       "Give the OUTPUT of a `workshop batch`, with what lies beside it.")  # fmt: skip
    return _tidy(frame)


def _decoded(value: object) -> object:
    """Return what a cell of JSON holds; None where there is none."""
    if isinstance(value, str):
        return json.loads(value)
    return None


def _is_newest(paths: Paths, meta: dict | None) -> bool:
    """Return True if the Parquet file has every answer of its journal.

    Raises BadInput: it is no output of a batch.
    """
    try:
        parquet_record = json.loads(parquet_meta(paths.output) or b"")
    except ValueError:
        raise BadInput(
            f"{paths.output} is no output of a batch.", "Give the OUTPUT of a `workshop batch`."
        ) from None
    if not paths.journal.exists() or not meta:
        return True
    if parquet_record.get("journal_bytes") not in (None, paths.journal.stat().st_size):
        return False
    return parquet_record["input"].get("sha256") == meta["input"].get("sha256")


def _tidy(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Return the frame with a column for each field of the input, and without empty columns."""
    # By a row's label: sorting moves the labels along.
    extras: dict[Hashable, dict | None] = frame.pop("metadata").to_dict()
    frame = frame.sort_values(["row", "sample"], kind="stable", ignore_index=False)
    names: dict[str, None] = {}
    for extra in extras.values():
        names.update(dict.fromkeys(extra or {}))
    for name in names:
        column = name
        while column in frame:
            column = f"input_{column}"
        frame[column] = [(extras[index] or {}).get(name) for index in frame.index]
    filled = frame[list(OPTIONAL)].dropna(axis="columns", how="all")
    empty = [name for name in OPTIONAL if name not in filled]
    return frame.drop(columns=empty).reset_index(drop=True)


def _object_of(value: object) -> dict:
    """Return a JSON object as it is, and an empty one for any other value."""
    return value if isinstance(value, dict) else {}


def _records(answers: Iterable[tuple[KeptAnswer, int, object]]) -> Iterator[dict]:
    """Yield a flat record for each choice of each answer."""
    for answer, row, prompt in answers:
        line = answer.line
        body = line["response"]["body"]
        usage = _object_of(body.get("usage"))
        for number, choice in enumerate(answer.choices):
            message = _object_of(choice.get("message"))
            yield {
                "custom_id": line["custom_id"],
                "row": row,
                "sample": choice.get("index", number),
                "prompt": prompt,
                "text": choice["text"] if "text" in choice else message.get("content"),
                "reasoning": message.get("reasoning") or message.get("reasoning_content"),
                "tool_calls": message.get("tool_calls") or None,
                "refusal": message.get("refusal"),
                "finish_reason": choice.get("finish_reason"),
                "stop_reason": choice.get("stop_reason"),
                "logprobs": choice.get("logprobs"),
                "prompt_tokens": usage.get("prompt_tokens"),
                "completion_tokens": usage.get("completion_tokens"),
                "prompt_logprobs": choice.get("prompt_logprobs") or body.get("prompt_logprobs"),
                "embedding": choice.get("embedding"),
                "request_id": body.get("id"),
                "model": body.get("model"),
                "key": line["key"],
                "metadata": _object_of(line.get("metadata")),
            }


def write_parquet(paths: Paths) -> None:
    """Write the Parquet output from the journal, a group of rows at a time, whole or not at all.

    Raises WorkshopError: it cannot be written, or the input is not there to tell which answers
    count.
    """
    import pyarrow
    import pyarrow.parquet

    types = dict.fromkeys(COLUMNS, pyarrow.string()) | dict.fromkeys(WHOLE, pyarrow.int64())
    schema = pyarrow.schema(types)
    meta = read_meta(paths)
    if meta is None:
        problem = f"{paths.meta}, which says what {paths.output.name} came from, is gone."
        raise WorkshopError(problem, "Run the same command again: all answers are kept.")
    parquet_record = meta | {"journal_bytes": paths.journal.stat().st_size}
    schema = schema.with_metadata({PARQUET_META: json.dumps(parquet_record).encode()})
    with (
        replacement(paths.output) as file,
        pyarrow.parquet.ParquetWriter(file, schema) as writer,
    ):
        group: list[dict] = []
        for record in _records(current(meta, [paths.journal])):
            group.append({name: _cell(name, value) for name, value in record.items()})
            if len(group) == GROUP_ROWS:
                writer.write_table(pyarrow.Table.from_pylist(group, schema))
                group = []
        writer.write_table(pyarrow.Table.from_pylist(group, schema))


def _cell(name: str, value: object) -> object:
    """Return a value as its Parquet column, which has one type, can hold it.

    Nested values become JSON. A value that is no whole number of 64 bits is left out of a column of
    such numbers.
    """
    if name in WHOLE:
        if type(value) is int and abs(value) < 1 << 63:
            return value
        return None
    if name in NESTED and not value:
        return None
    if name not in NESTED and isinstance(value, str | None):
        return value
    return json.dumps(value)


def current(
    meta: dict,
    journals: list[Path],
    input: str | Path | None = None,
    shard: tuple[int, int] | None = None,
) -> Iterator[tuple[KeptAnswer, int, object]]:
    """Yield each answer that counts, its row's number, and its prompt or messages (None: unknown).

    Where the input is not there as it was (`input`: where it lies now), all answers count, as long
    as there is one version of each row.

    Raises:
        BadInput: `input` is not the one that was answered.
        WorkshopError: the input changed between runs, and is not there: nobody can tell which
            answers count.
    """
    work = _work(meta, input, shard)
    # a retry that was killed, or that still runs: the later of two answers counts
    reader = newest if meta.get("retrying") else scan
    if work is None:
        if input:
            remedy = f"Give {meta['input'].get('path')} as it was."
            raise BadInput(f"{input} is not the input that was answered.", remedy)
        yield from _every(meta, journals, reader)
        return
    with contextlib.closing(work.index):
        work.read_journal = reader
        for answer, row in work.answered(*journals):
            request = json.loads(row.request)
            prompt = request.get("prompt", request.get("messages"))
            yield answer, row.number, request.get("input", prompt)


def _every(
    meta: dict, journals: list[Path], reader: Callable[[Path], Iterator[KeptAnswer]]
) -> Iterator[tuple[KeptAnswer, int, None]]:
    """Yield every answer, for an input that is missing.

    Raises WorkshopError: it changed, or a row has two answers.
    """
    facts = meta["input"]
    answered_rows = Bits()
    for answer in itertools.chain.from_iterable(map(reader, journals)):
        is_new = answer.row < facts.get("rows", 0) and answered_rows.add(answer.row)
        if facts.get("changed") or not is_new:
            problem = (
                f"{journals[0]} has answers to several versions of its input, and"
                f" {facts.get('path')} is not there as it was last: which of them count cannot be"
                " told."
            )
            raise WorkshopError(
                problem,
                "Put it back, say where it lies (load's argument `input`), or run the batch again.",
            )
        yield answer, answer.row, None


def _work(meta: dict, input: str | Path | None, shard: tuple[int, int] | None) -> Work | None:
    """Return the checked input; None if it is missing or was changed."""
    facts = meta["input"]
    try:
        path = Path(input or facts["path"])
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            return None
        source = Source(path, facts.get("column"))
        if source.sha256() != facts["sha256"]:
            return None
        builder = Builder(
            meta["sampling_parameters"], source.column, bool(facts.get("chat")), table=source.table
        )
        work = Work(source, builder, shard=shard or shard_of(facts.get("shard")))
        work.check(skip_bad=True, tell=False)
    except (BadInput, OSError, KeyError, TypeError, ValueError):
        return None
    return work

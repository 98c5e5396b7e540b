"""Reads an output, JSONL or Parquet, into a DataFrame: one line an answer."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from workshop.batch.progress import COMPLETE
from workshop.batch.store import Journal, Lock, Paths, cannot_write, read_meta, scan, write_meta
from workshop.errors import BadInput

if TYPE_CHECKING:
    import pandas

GROUP_ROWS = 10_000
COLUMNS = ("custom_id", "row", "sample", "prompt", "text", "finish_reason", "stop_reason", "prompt_tokens",
           "completion_tokens", "logprobs", "prompt_logprobs", "request_id", "model", "key", "metadata")


def load(output: str | Path, prompts: bool = True) -> pandas.DataFrame:
    """Return the answers of an output: a row for each sample, in the order of the input.

    Columns: custom_id, row (of the input, from 0), sample (of the prompt, from 0), prompt, text, finish_reason,
    stop_reason, prompt_tokens, completion_tokens (of the whole request), and the input's other fields by their names.
    Where a row of the input was changed and answered anew, only the newest answer is here. A batch that still runs
    may be read, too.

    Args:
        prompts: add the prompts, if the input lies where it was and is unchanged.

    Raises:
        BadInput: there is no such output, or it is none of a batch.
    """
    import pandas

    paths = Paths(output)
    if paths.parquet and paths.output.exists():
        frame = pandas.read_parquet(paths.output)
        for name in ("logprobs", "prompt_logprobs"):
            if name in frame:
                frame[name] = [json.loads(value) if isinstance(value, str) else None for value in frame[name]]
        frame["metadata"] = [json.loads(value) if isinstance(value, str) else {} for value in frame["metadata"]]
    elif paths.journal.exists():
        frame = pandas.DataFrame(_newest(paths, prompts), columns=COLUMNS)
    else:
        raise BadInput(f"There is no output {output}.", "Give the OUTPUT of a `workshop batch`.")
    return _tidy(frame)


def _tidy(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Give the input's own fields columns of their own, and drop columns that nothing stands in."""
    extras = frame.pop("metadata")
    frame = frame.sort_values(["row", "sample"], kind="stable", ignore_index=False)
    names = list(dict.fromkeys(name for extra in extras if extra for name in extra))
    for name in names:
        column = name if name not in frame else f"input_{name}"
        frame[column] = [(extras[index] or {}).get(name) for index in frame.index]
    empty = [name for name in ("logprobs", "prompt_logprobs", "stop_reason", "prompt") if frame[name].isna().all()]
    return frame.drop(columns=empty).reset_index(drop=True)


def _newest(paths: Paths, prompts: bool) -> list[dict]:
    """Return the records of the journal, the newest answer of each id."""
    last = {custom_id: end for custom_id, _, end in scan(paths.journal)}
    return list(_records(paths, set(last.values()), dict(_prompts(paths)) if prompts else {}))


def _records(paths: Paths, ends: set[int] | None, prompts: dict | OnDisk) -> Iterator[dict]:
    at = 0
    with paths.journal.open("rb") as file:
        for line in file:
            at += len(line)
            if ends is None or at in ends:
                yield from records_of(json.loads(line), prompts)


def records_of(line: dict, prompts: dict | OnDisk) -> Iterator[dict]:
    """Yield a flat record for each choice of one answer."""
    body = line["response"]["body"]
    usage = body.get("usage") or {}
    for choice in body["choices"]:
        text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
        yield {
            "custom_id": line["custom_id"], "row": line["row"], "sample": choice.get("index", 0),
            "prompt": prompts.get(line["row"]), "text": text, "finish_reason": choice.get("finish_reason"),
            "stop_reason": choice.get("stop_reason"), "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"), "logprobs": choice.get("logprobs"),
            "prompt_logprobs": choice.get("prompt_logprobs") or body.get("prompt_logprobs"),
            "request_id": body.get("id"), "model": body.get("model"), "key": line["key"],
            "metadata": line.get("metadata") or {}}


def _prompts(paths: Paths) -> Iterator[tuple[int, object]]:
    """Yield (row, prompt or messages) of the input; nothing if it is not there any more, or reads differently."""
    from workshop.batch.inputs import Source
    from workshop.batch.rows import Builder, Malformed

    facts = (read_meta(paths) or {}).get("input", {})
    path = Path(facts.get("path", ""))
    if not path.is_file() or path.stat().st_size != facts.get("bytes"):
        return
    source = Source(path, facts.get("column"))
    if source.sha256() != facts.get("sha256"):
        return
    builder = Builder(column=source.column, chat=facts.get("chat", False), table=source.table)
    for number, (_, raw) in enumerate(source.raws()):
        try:
            body = json.loads(builder.content(source.decode(raw))[2])
            yield number, body.get("prompt", body.get("messages"))
        except Malformed:
            continue


def write_parquet(paths: Paths, unique: bool = False) -> None:
    """Make the Parquet output from the journal, whole or not at all, a group of rows at a time.

    Args:
        unique: no row of the journal has two answers, so that none need be looked for.
    """
    import pyarrow
    import pyarrow.parquet

    text, whole = pyarrow.string(), pyarrow.int64()
    schema = pyarrow.schema([(name, whole if name in ("row", "sample", "prompt_tokens", "completion_tokens") else text)
                             for name in COLUMNS])
    ends = None if unique else set({custom_id: end for custom_id, _, end in scan(paths.journal)}.values())
    temporary = paths.output.with_name(f".{paths.output.name}.{os.getpid()}")
    meta = {b"workshop.batch": json.dumps(read_meta(paths) or {}).encode()}
    try:
        with pyarrow.parquet.ParquetWriter(temporary, schema.with_metadata(meta)) as writer:
            group: list[dict] = []
            for record in _records(paths, ends, OnDisk(_prompts(paths))):
                group.append({name: _cell(name, value) for name, value in record.items()})
                if len(group) == GROUP_ROWS:
                    writer.write_table(pyarrow.Table.from_pylist(group, schema))
                    group = []
            writer.write_table(pyarrow.Table.from_pylist(group, schema))
        os.replace(temporary, paths.output)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(paths.output, error) from None


def merge(folder: str | Path, output: str | Path) -> int:
    """Put the outputs of shards (every .jsonl of a folder that a batch wrote) together; return how many answers.

    Each row is there once: the shards have no row in common, and of a row answered twice the newest counts.

    Raises:
        BadInput: the folder holds no output, or one that is not complete.
        WorkshopError: somebody writes to `output`.
    """
    paths, parts = Paths(output), []
    for meta_path in sorted(Path(folder).glob("*.meta.json")):
        part = Paths(meta_path.with_name(meta_path.name.removesuffix(".meta.json")))
        meta = read_meta(part) or {}
        if part.output.resolve() == paths.output.resolve() or "runs" not in meta:
            continue
        if meta["runs"][-1].get("state") != COMPLETE:
            raise BadInput(f"{part.output} is not complete ({meta['runs'][-1].get('state')}).",
                           "Run that shard again, then merge.")
        parts.append((part, meta))
    shards = sorted(meta["input"].get("shard", "1/1") for _, meta in parts)
    of = int(shards[0].split("/")[1]) if shards else 0
    if not parts or sorted(shards) != sorted(f"{which}/{of}" for which in range(1, of + 1)):
        raise BadInput(f"{folder} holds the shards {', '.join(shards) or 'of nothing'}.",
                       f"All of 1/{of} to {of}/{of} are needed." if of else "Give the folder of the shards' outputs.")
    lock = Lock(paths.lock)
    try:
        journal, count = Journal(paths.journal, 0), 0
        for part, _ in parts:
            newest = set({custom_id: end for custom_id, _, end in scan(part.journal)}.values())
            at = 0
            with part.journal.open("rb") as file:
                for line in file:
                    at += len(line)
                    if at in newest:
                        journal.add(line.rstrip(b"\n"))
                        count += 1
            journal.write(journal.take())
        journal.close()
        merged = {**parts[0][1], "output": paths.output.name, "merged_from": [part.output.name for part, _ in parts],
                  "runs": [run for _, meta in parts for run in meta["runs"]]}
        write_meta(paths, merged | {"input": {**merged["input"], "shard": "1/1"}})
        if paths.parquet:
            write_parquet(paths)
    finally:
        lock.release()
    return count


def _cell(name: str, value: object) -> object:
    """Parquet's columns have one type: what is nested goes in as JSON."""
    if name in ("logprobs", "prompt_logprobs", "metadata"):
        return json.dumps(value) if value else None
    return json.dumps(value) if isinstance(value, list) or (name == "stop_reason" and isinstance(value, int)) else value


class OnDisk:
    """A look-up of many texts in a temporary file: a million prompts need not be in memory to be joined."""

    def __init__(self, items: Iterable[tuple[int, object]]):
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute("CREATE TABLE texts (row INTEGER PRIMARY KEY, text TEXT)")
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO texts VALUES (?, ?)", ((row, json.dumps(text)) for row, text in items))

    def get(self, row: int) -> object:
        """Return what belongs to a row, or None."""
        found = self._db.execute("SELECT text FROM texts WHERE row = ?", (row,)).fetchone()
        return json.loads(found[0]) if found else None

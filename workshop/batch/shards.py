"""Puts the outputs of shards together: all of them, each once, and only if they answer one input in one way."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from workshop.batch.answers import current, write_parquet
from workshop.batch.paths import Paths, read_meta, write_meta
from workshop.batch.progress import COMPLETE
from workshop.batch.store import Journal, Lock
from workshop.errors import BadInput

Part = tuple[Paths, dict]
# What shards must have in common, by its name in their records or in the records' input.
ALIKE = {"model": "model", "revision": "revision", "sampling parameters": "sampling_parameters",
         "input (SHA-256)": "sha256", "number of rows": "rows", "column": "column", "chat": "chat"}  # fmt: skip


def merge(folder: str | Path, output: str | Path) -> int:
    """Put the outputs of shards (every one of a folder that a batch wrote) together; return how many answers.

    Each row is there once, with its number in the input as it is. `output` may be that of an earlier merge, which is
    replaced when the new one is whole; rows without an answer are in its file of errors.

    Raises:
        BadInput: the folder does not hold all shards of one batch, each once and complete, or `output` is no merge's.
        WorkshopError: somebody writes to `output`, or it cannot be written.
    """
    parts = _parts(Path(folder))
    _refuse_incomplete(Path(folder), parts)
    _refuse_unlike(parts)
    paths = Paths(
        output,
        *(
            path
            for part, _ in parts
            for path in (part.output, part.journal, part.errors, part.meta)
        ),
    )
    with contextlib.closing(Lock(paths)) as lock:
        if (read_meta(paths) or {"merged_from": []}).get("merged_from") is None:
            raise BadInput(
                f"{paths.output} is the output of a batch, not of a merge.", "Give another output."
            )
        first = parts[0][1]
        changed = any(meta["input"].get("changed") for _, meta in parts)
        given = {**first, "input": {**first["input"], "changed": changed}}
        counted, count = sum(meta["runs"][-1].get("answered", 0) for _, meta in parts), 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for answer, row, _ in current(given, [part.journal for part, _ in parts], shard=(1, 1)):
                count += 1
                yield answer.renumbered(row)
            if count < counted:
                said = f"The shards in {folder} hold {count:,} answers; their runs counted {counted:,}."
                raise BadInput(said, "Run them again: rows without an answer are asked anew.")
            write_meta(paths, _merged(paths, parts))  # before the answers take their place

        lock.replace(lines())
        _copy_errors(paths, parts)
        if paths.parquet:
            write_parquet(paths)
    return count


def _merged(paths: Paths, parts: list[Part]) -> dict:
    first = parts[0][1]
    return {
        **first,
        "output": paths.output.name,
        "merged_from": [part.output.name for part, _ in parts],
        "runs": [run for _, meta in parts for run in meta["runs"]],
        "input": {**first["input"], "shard": "1/1", "changed": False},
    }


def _parts(folder: Path) -> list[Part]:
    """Return every output of a batch in a folder, but those that merges made."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.", "Give the folder of the shards' outputs.")
    found = []
    for path in sorted(folder.glob("*.meta.json")):
        name = path.name.removesuffix(".meta.json")
        if Path(name).suffix in (".jsonl", ".parquet"):
            part = Paths(path.with_name(name))
            meta = read_meta(part)
            if meta and "merged_from" not in meta:
                found.append((part, meta))
    return found


def _refuse_incomplete(folder: Path, parts: list[Part]) -> None:
    for part, meta in parts:
        state = meta["runs"][-1].get("state") if meta["runs"] else "never run"
        if state != COMPLETE:
            raise BadInput(
                f"{part.output} is not complete ({state}).", "Run that shard again, then merge."
            )
    shards = [str(meta["input"].get("shard", "1/1")) for _, meta in parts]
    of = shards[0].split("/")[-1] if shards else "0"
    wanted = [f"{which}/{of}" for which in range(1, int(of) + 1)] if of.isdigit() else []
    if sorted(shards) != sorted(wanted) or not shards:
        raise BadInput(f"{folder} holds the shards {', '.join(sorted(shards)) or 'of nothing'}.",
                       f"Each of 1/{of} to {of}/{of} is needed, once." if shards else
                       "Give the folder of the shards' outputs.")  # fmt: skip


def _refuse_unlike(parts: list[Part]) -> None:
    (first, meta), *others = parts
    for name, key in ALIKE.items():
        for part, other in others:
            one, another = ({**each, **each["input"]}.get(key) for each in (meta, other))
            if one != another:
                said = f"The shards differ in {name}: {first.output.name} has {one}, {part.output.name} has {another}."
                raise BadInput(said, "Run all shards with the same input, model and parameters.")


def _copy_errors(paths: Paths, parts: list[Part]) -> None:
    files = [part.errors for part, _ in parts if part.errors.exists()]
    if not files:
        return paths.errors.unlink(missing_ok=True)
    errors = Journal(paths.errors, 0)
    errors.write([line for file in files for line in file.read_bytes().splitlines()])
    errors.close()

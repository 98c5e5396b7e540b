"""Merges the outputs of all shards of one input, each once, if they answer in the same way."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from workshop.batch.keep.answers import current, write_parquet
from workshop.batch.keep.paths import Paths, read_meta, write_meta
from workshop.batch.keep.store import Journal, Output
from workshop.batch.progress import COMPLETE
from workshop.errors import BadInput

Part = tuple[Paths, dict]
# What shards must have in common, by its name in their records or in the records' input.
ALIKE = {"model": "model", "revision": "revision", "sampling parameters": "sampling_parameters",
         "input (SHA-256)": "sha256", "number of rows": "rows", "column": "column", "chat": "chat"}  # fmt: skip


def merge(folder: str | Path, output: str | Path) -> int:
    """Merge the outputs of all shards in a folder into one output; return the number of answers.

    Each row is there once, with its number in the present input. `output` may be that of an earlier
    merge, which is replaced when the new one is whole. Rows without an answer are in its file of
    errors.

    Raises:
        BadInput: the folder does not hold all shards of one batch, each once and complete, or
            `output` is no merge's.
        WorkshopError: somebody writes to `output`, or it cannot be written.
    """
    parts = _parts(Path(folder))
    _refuse_incomplete(Path(folder), parts)
    _refuse_unlike(parts)
    files_of_parts: list[Path] = []
    for part, _ in parts:
        files_of_parts += [part.output, part.journal, part.errors, part.meta]
    paths = Paths(output, *files_of_parts)
    with contextlib.closing(Output(paths)) as locked_output:
        if (read_meta(paths) or {"merged_from": []}).get("merged_from") is None:
            raise BadInput(
                f"{paths.output} is the output of a batch, not of a merge.", "Give another output."
            )
        first = parts[0][1]
        changed = any(meta["input"].get("changed") for _, meta in parts)
        record = {**first, "input": {**first["input"], "changed": changed}}
        journals = [part.journal for part, _ in parts]
        counted = sum(meta["runs"][-1].get("answered", 0) for _, meta in parts)
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for answer, row, _ in current(record, journals, shard=(1, 1)):
                count += 1
                yield answer.renumbered(row)
            if count < counted:
                problem = f"The shards in {folder} hold {count:,} answers; their runs counted {counted:,}."
                raise BadInput(problem, "Run them again: rows without an answer are asked anew.")
            write_meta(paths, _merged(paths, parts))  # before the answers take their place

        locked_output.replace(lines())
        _copy_errors(paths, parts)
        if paths.parquet:
            write_parquet(paths)
    return count


def _merged(paths: Paths, parts: list[Part]) -> dict:
    """Return the record of the merged output."""
    first = parts[0][1]
    return {
        **first,
        "output": paths.output.name,
        "merged_from": [part.output.name for part, _ in parts],
        "runs": [run for _, meta in parts for run in meta["runs"]],
        "input": {**first["input"], "shard": "1/1", "changed": False},
    }


def _parts(folder: Path) -> list[Part]:
    """Return every output of a batch in a folder, without those that merges made."""
    if not folder.is_dir():
        raise BadInput(f"There is no folder {folder}.", "Give the folder of the shards' outputs.")
    parts = []
    for path in sorted(folder.glob("*.meta.json")):
        name = path.name.removesuffix(".meta.json")
        if Path(name).suffix in (".jsonl", ".parquet"):
            part = Paths(path.with_name(name))
            meta = read_meta(part)
            if meta and "merged_from" not in meta:
                parts.append((part, meta))
    return parts


def _refuse_incomplete(folder: Path, parts: list[Part]) -> None:
    """Raise BadInput unless each shard is there once and complete."""
    for part, meta in parts:
        state = "never run"
        if meta["runs"]:
            state = meta["runs"][-1].get("state")
        if state != COMPLETE:
            raise BadInput(
                f"{part.output} is not complete ({state}).", "Run that shard again, then merge."
            )
    shards = [str(meta["input"].get("shard", "1/1")) for _, meta in parts]
    if not shards:
        raise BadInput(
            f"{folder} holds the shards of nothing.", "Give the folder of the shards' outputs."
        )
    of = shards[0].split("/")[-1]
    complete = []
    if of.isdigit():
        complete = [f"{which}/{of}" for which in range(1, int(of) + 1)]
    if sorted(shards) != sorted(complete):
        raise BadInput(
            f"{folder} holds the shards {', '.join(sorted(shards))}.",
            f"Each of 1/{of} to {of}/{of} is needed, once.",
        )


def _refuse_unlike(parts: list[Part]) -> None:
    """Raise BadInput if two shards differ in something that they must have in common."""
    first, first_meta = parts[0]
    first_facts = {**first_meta, **first_meta["input"]}
    for name, key in ALIKE.items():
        expected = first_facts.get(key)
        for part, meta in parts[1:]:
            value = {**meta, **meta["input"]}.get(key)
            if value != expected:
                problem = f"The shards differ in {name}: {first.output.name} has {expected}, {part.output.name} has {value}."
                raise BadInput(problem, "Run all shards with the same input, model and parameters.")


def _copy_errors(paths: Paths, parts: list[Part]) -> None:
    """Write the rows of all shards without an answer to the file of errors, or remove it."""
    files = [part.errors for part, _ in parts if part.errors.exists()]
    if not files:
        return paths.errors.unlink(missing_ok=True)
    errors = Journal(paths.errors, 0)
    lines: list[bytes] = []
    for file in files:
        lines += file.read_bytes().splitlines()
    errors.write(lines)
    errors.close()

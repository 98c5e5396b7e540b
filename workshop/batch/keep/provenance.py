"""The record of where an output came from: model, version, parameters, input and times.

It also decides whether a later run may continue the output.
"""

import contextlib
import os
import re
from dataclasses import replace
from pathlib import Path

from workshop import this_package, timestamps
from workshop.batch.keep.answers import write_parquet
from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH
from workshop.batch.keep.paths import Paths, read_meta, write_meta
from workshop.batch.progress import COMPLETE, FAILED, Summary
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work
from workshop.errors import BadInput, WorkshopError

FORMAT = 1
OF_A_RUN = (
    "state",
    "new",
    "answered",
    "errors",
    "bad",
    "prompt_tokens",
    "completion_tokens",
    "reason",
    "finish_reasons",
    "retried",
)


def begin(paths: Paths, source: Source, work: Work, facts: dict, sampling: dict) -> dict:
    """Write the record of the output before anything is sent; return it.

    facts: of the engine: model, model_path, max_model_len, vllm_version, and its address.

    Raises BadInput: the output was begun with another model, other sampling parameters, or as
    another shard.
    """
    before = (paths.journal.exists() and work.keep_bytes and read_meta(paths)) or {}
    digest = source.sha256()
    which, of = work.shard
    shard = f"{which}/{of}"
    revision = revision_of(facts.get("model_path"))
    if before:
        _refuse_another(paths, before, facts["model"], revision, sampling, shard)
    run = {
        "began": timestamps.now(),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "vllm_version": facts.get("vllm_version"),
        "state": "running",
    }
    version = {"sha256": digest, "column": source.column, "chat": work.builder.chat}
    # True: the output has answers to other versions of the input, or to another column of it, too
    input_before = before.get("input", {})
    changed = bool(input_before.get("changed"))
    for name, value in version.items():
        if input_before.get(name, value) != value:
            changed = True
    if work.retry:
        run["retry"] = ENDED_IN_LENGTH
    meta = {
        "format": FORMAT,
        "output": paths.output.name,
        "model": facts["model"],
        "revision": revision,
        **{key: facts[key] for key in facts if key != "model"},
        "sampling_parameters": sampling,
        "input": {
            "path": str(source.path.resolve()),
            **version,
            "bytes": source.stamp()[0],
            "rows": work.index.rows,
            "shard": shard,
            "changed": changed,
        },
        "workshop_version": this_package.VERSION,
        "began": before.get("began") or timestamps.now(),
        "ended": None,
        "retrying": work.retry,  # the journal may hold two answers to a row: the later one counts
        "runs": [*before.get("runs", []), run],
    }
    write_meta(paths, meta)
    return meta


def end(
    paths: Paths, meta: dict, summary: Summary, limits: list[int], failure: WorkshopError | None
) -> tuple[Summary, WorkshopError | None]:
    """Write the Parquet file and the run's outcome. Return (summary, first error or None)."""
    try:
        if not failure and paths.parquet and summary.state == COMPLETE:
            write_parquet(paths)
    except WorkshopError as error:
        failure = error
        summary = replace(summary, state=FAILED, reason=error.message)
    meta["ended"] = timestamps.now()
    meta["runs"][-1] |= {name: getattr(summary, name) for name in OF_A_RUN}
    meta["runs"][-1] |= {
        "ended": meta["ended"],
        "seconds": round(summary.seconds, 3),
        "concurrency": limits,
    }
    try:
        write_meta(paths, meta)
    except WorkshopError as error:
        failure = failure or error
    return summary, failure


def _refuse_another(
    paths: Paths, before: dict, model: str, revision: str | None, sampling: dict, shard: str
) -> None:
    """Raise BadInput if the output is of another model, of other parameters or of another shard.

    `before` is the output's record, the others are this run's.
    """
    remedy = "Give this run another output, or the same {} as before."
    for name, noun, value in (
        ("model", "", model),
        ("revision", "the model's revision ", revision),
    ):
        if value and before.get(name) not in (None, value):
            difference = f"answers of {noun}{before[name]}, and this run would ask {value}"
            raise BadInput(f"{paths.output} holds {difference}.", remedy.format(name))
    sampling_before = before["sampling_parameters"]
    differences = []
    for name in sorted({*sampling_before, *sampling}):
        if sampling_before.get(name) != sampling.get(name):
            value_before = sampling_before.get(name, "not given")
            value_now = sampling.get(name, "not given")
            differences.append(f"{name} {value_before}, now {value_now}")
    if differences:
        problem = (
            f"{paths.output} was begun with other sampling parameters: {', '.join(differences)}."
        )
        raise BadInput(problem, remedy.format("parameters"))
    shard_before = before["input"].get("shard", shard)
    if shard_before != shard:
        problem = f"{paths.output} holds shard {shard_before}, and this run would answer {shard}."
        raise BadInput(
            problem, "Give each shard an output of its own, and put them together with --merge."
        )


def revision_of(model_path: object) -> str | None:
    """Return the commit of a model's folder: of the Hub's cache or a download; None if unknown."""
    if not isinstance(model_path, str):
        return None
    commit = re.search(r"/snapshots/([0-9a-f]{40})", model_path)
    if commit:
        return commit[1]
    downloads = sorted(Path(model_path).glob(".cache/huggingface/download/*.metadata"))
    # `hf download --local-dir` writes the commit into their first lines
    with contextlib.suppress(OSError, IndexError):
        first = downloads[0].read_text(encoding="utf-8").splitlines()[0]
        if re.fullmatch(r"[0-9a-f]{40}", first):
            return first
    return None

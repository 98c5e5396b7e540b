"""What an output came from: model, revision, vLLM's version, sampling parameters, input, when; and what may go on."""

import contextlib
import os
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import workshop
from workshop.batch.answers import write_parquet
from workshop.batch.inputs import Source
from workshop.batch.paths import Paths, read_meta, write_meta
from workshop.batch.prepare import Work
from workshop.batch.progress import COMPLETE, FAILED, Summary
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
)


def begin(paths: Paths, source: Source, work: Work, facts: dict, sampling: dict) -> dict:
    """Write what the output will have come from, before anything is sent; return it.

    facts: of the engine: model, model_path, max_model_len, vllm_version, and where it is.
    Raises BadInput: the output was begun with another model, other sampling parameters, or as another shard.
    """
    before = (paths.journal.exists() and work.keep_bytes and read_meta(paths)) or {}
    digest, shard, revision = (
        source.sha256(),
        "{}/{}".format(*work.shard),
        revision_of(facts.get("model_path")),
    )
    if before:
        _refuse_another(paths, before, facts["model"], revision, sampling, shard)
    then, run = (
        before.get("input", {}),
        {"began": now(), "host": os.uname().nodename, "pid": os.getpid()},
    )
    run |= {"vllm_version": facts.get("vllm_version"), "state": "running"}
    read = {"sha256": digest, "column": source.column, "chat": work.builder.chat}
    meta = {
        "format": FORMAT,
        "output": paths.output.name,
        "model": facts["model"],
        "revision": revision,
        **{key: facts[key] for key in facts if key != "model"},
        "sampling_parameters": sampling,
        # changed: the output has answers to other versions of the input, or to another column of it, too
        "input": {
            "path": str(source.path.resolve()),
            **read,
            "bytes": source.stamp()[0],
            "rows": work.index.rows,
            "shard": shard,
            "changed": bool(then.get("changed"))
            or any(then.get(name, read[name]) != read[name] for name in read),
        },
        "workshop_version": workshop.__version__,
        "began": before.get("began") or now(),
        "ended": None,
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
        failure, summary = error, replace(summary, state=FAILED, reason=error.message)
    meta["ended"] = now()
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
    other = "Give this run another output, or the same {} as before."
    for name, whose, asked in (
        ("model", "", model),
        ("revision", "the model's revision ", revision),
    ):
        if asked and before.get(name) not in (None, asked):
            said = f"answers of {whose}{before[name]}, and this run would ask {asked}"
            raise BadInput(f"{paths.output} holds {said}.", other.format(name))
    then = before["sampling_parameters"]
    if differ := sorted(
        name for name in {*then, *sampling} if then.get(name) != sampling.get(name)
    ):
        told = [
            f"{name} {then.get(name, 'not given')}, now {sampling.get(name, 'not given')}"
            for name in differ
        ]
        said = f"{paths.output} was begun with other sampling parameters: {', '.join(told)}."
        raise BadInput(said, other.format("parameters"))
    if (part := before["input"].get("shard", shard)) != shard:
        said = f"{paths.output} holds shard {part}, and this run would answer {shard}."
        raise BadInput(
            said, "Give each shard an output of its own, and put them together with --merge."
        )


def revision_of(model_path: object) -> str | None:
    """Return the revision that a model's folder tells: the commit in a Hub cache's path, or of its download."""
    if not isinstance(model_path, str):
        return None
    if found := re.search(r"/snapshots/([0-9a-f]{40})", model_path):
        return found[1]
    downloads = sorted(Path(model_path).glob(".cache/huggingface/download/*.metadata"))
    # `hf download --local-dir` writes the commit into their first lines
    with contextlib.suppress(OSError, IndexError):
        first = downloads[0].read_text(encoding="utf-8").splitlines()[0]
        return first if re.fullmatch(r"[0-9a-f]{40}", first) else None
    return None


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")

"""What an output came from: model, revision, vLLM's version, sampling parameters, input, when; and what may go on."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import workshop
from workshop.batch.inputs import Source
from workshop.batch.prepare import Work
from workshop.batch.progress import Summary
from workshop.batch.store import Paths, read_meta, write_meta
from workshop.errors import BadInput

FORMAT = 1


def begin(paths: Paths, source: Source, work: Work, facts: dict, sampling: dict) -> dict:
    """Write what the output will have come from, before anything is sent; return it.

    Args:
        facts: of the engine: model, model_path, max_model_len, vllm_version, and where it is.

    Raises:
        BadInput: the output was begun with another model or other sampling parameters.
    """
    before = read_meta(paths) if paths.journal.exists() and work.keep_bytes else None
    if before:
        _refuse_another(paths, before, facts["model"], sampling)
    meta = {
        "format": FORMAT, "output": paths.output.name, "model": facts["model"],
        "revision": revision_of(facts.get("model_path")), **{key: facts[key] for key in facts if key != "model"},
        "sampling_parameters": sampling,
        "input": {"path": str(source.path.resolve()), "sha256": source.sha256(), "bytes": source.stamp()[0],
                  "rows": work.index.rows, "shard": "{}/{}".format(*work.shard), "column": source.column,
                  "chat": work.builder.chat},
        "workshop_version": workshop.__version__,
        "began": (before or {}).get("began") or now(), "ended": None,
        "runs": [*(before or {}).get("runs", []), {
            "began": now(), "host": os.uname().nodename, "pid": os.getpid(),
            "vllm_version": facts.get("vllm_version"), "state": "running"}],
    }
    write_meta(paths, meta)
    return meta


def end(paths: Paths, meta: dict, summary: Summary, limits: list[int]) -> None:
    """Add how this run ended."""
    meta["ended"] = now()
    meta["runs"][-1] |= {
        "ended": now(), "state": summary.state, "new": summary.new, "answered": summary.answered,
        "errors": summary.errors, "bad": summary.bad, "seconds": round(summary.seconds, 3), "concurrency": limits,
        "prompt_tokens": summary.prompt_tokens, "completion_tokens": summary.completion_tokens,
        "reason": summary.reason}
    write_meta(paths, meta)


def _refuse_another(paths: Paths, before: dict, model: str, sampling: dict) -> None:
    if before.get("model") not in (None, model):
        raise BadInput(f"{paths.output} holds answers of {before['model']}, and this run would ask {model}.",
                       "Give this run another output, or the same model as before.")
    then = before.get("sampling_parameters", {})
    if then != sampling:
        names = sorted(name for name in {*then, *sampling} if then.get(name) != sampling.get(name))
        told = ", ".join(f"{name} {then.get(name, 'not given')}, now {sampling.get(name, 'not given')}"
                         for name in names)
        raise BadInput(f"{paths.output} was begun with other sampling parameters: {told}.",
                       "Give this run another output, or the same parameters as before.")


def revision_of(model_path: object) -> str | None:
    """Return the revision that a model's folder tells: the commit in a Hub cache's path, or of its download."""
    if not isinstance(model_path, str):
        return None
    if found := re.search(r"/snapshots/([0-9a-f]{40})", model_path):
        return found[1]
    downloads = sorted(Path(model_path).glob(".cache/huggingface/download/*.metadata"))
    if downloads:       # `hf download --local-dir` writes the commit into the first line of each
        try:
            first = downloads[0].read_text(encoding="utf-8").splitlines()[:1]
            return first[0] if first and re.fullmatch(r"[0-9a-f]{40}", first[0]) else None
        except OSError:
            return None
    return None


def now() -> str:
    """Return the time as ISO 8601, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")

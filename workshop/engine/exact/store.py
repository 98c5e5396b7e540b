"""The answers that vLLM's classes gave on this machine, each in a file of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_planner.answer.builds import digest

from workshop.engine.exact import ask
from workshop.errors import WorkshopError
from workshop.files import read_json
from workshop.home import home, write_private

WORKER_FILE = Path(__file__).with_name("worker.py")
LARGEST_ANSWER_BYTES = 16 << 20


def answers_folder() -> Path:
    """Return the folder of the answers that vLLM's classes gave on this machine."""
    return home() / "exact"


def answer_file(job: Mapping[str, Any]) -> Path:
    """Return the file of the answer to a job; a digest of all that the answer depends on names it."""
    key = dict(job)
    # The blocks of a request follow from kv_cache.layout, so one answer serves every length.
    for name in ("max_model_len", "max_num_batched_tokens"):
        key.pop(name, None)
    key["version"] = ask.version()
    key["python"] = ask.python()
    key["worker"] = hashlib.sha256(WORKER_FILE.read_bytes()).hexdigest()
    return answers_folder() / f"{digest(key)}.json"


def store_answer(file: Path, answer: Mapping[str, Any]) -> None:
    """Write an answer as a whole file. If that is impossible, the next plan asks again."""
    with contextlib.suppress(OSError, WorkshopError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, json.dumps(answer))


def stored_answer(file: Path) -> Any:
    """Return what a file of an answer holds.

    Raises OSError or ValueError: there is none yet, or it is damaged.
    """
    return read_json(file, LARGEST_ANSWER_BYTES)

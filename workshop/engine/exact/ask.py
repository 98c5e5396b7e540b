"""The worker process that builds vLLM's model classes, its jobs, and what its refusals mean."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inference_planner.catalog.config import ModelConfig
from inference_planner.releases.registries import lacks
from inference_planner.split.deployment import Deployment

from workshop import python_process
from workshop.errors import BadInput
from workshop.vllm_package import installed

if TYPE_CHECKING:
    from workshop.worker_process import WorkerProcess

WORKER_MODULE = "workshop.engine.exact.worker"  # runs in the engine's Python
# a phrase of vLLM's refusal -> what it means
REFUSALS = {
    "trust_remote_code": "the config asks for code of the model's own (trust_remote_code), "
    "which is never run here",
    "does not recognize this architecture": "its Transformers does not know the model_type "
    "{model_type}",
    "are not supported for now": "it does not know the architecture {architecture}",
    "No module named 'torch'": "its Python has no torch",
}
ANSWER_S = 300.0  # to build one split; the largest take 40 s
LONGEST_REASON = 500


def python() -> str:
    """Return the interpreter that has vLLM: WORKSHOP_VLLM_PYTHON's, else this one, else ""."""
    configured = os.environ.get("WORKSHOP_VLLM_PYTHON")
    if configured:
        return configured
    if version():
        return python_process.PYTHON
    return ""


def version() -> str:
    """Return the version of the vLLM beside us, or "" if there is none."""
    return installed()[1]


class UnknownArchitecture(BadInput):
    """The vLLM beside us does not have the model's architecture."""


class ExactWorker:
    """A worker process that builds vLLM's model classes, as a context manager.

    It stays while a plan is made: its imports take longer than building a class. It starts with the
    first job, and a new one starts after a failure.
    """

    def __init__(self) -> None:
        self._process: WorkerProcess | None = None

    def __enter__(self) -> ExactWorker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.end()
            self._process = None

    def build(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the worker's answer to a job (`worker.run`), or {"error": the reason}."""
        from workshop.worker_process import JsonLines, NoAnswer, WorkerProcess

        if not self._process:
            try:
                self._process = WorkerProcess(WORKER_MODULE, JsonLines(), python=python())
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                return {"error": f"{python()} ended without an answer: it cannot be run ({reason})"}
        with contextlib.suppress(NoAnswer):
            answer = self._process.ask(dict(job), ANSWER_S)
            if isinstance(answer, dict):
                return answer
        failure = self._process.failure()
        self.__exit__()
        return {"error": failure}


def job(deployment: Deployment) -> dict[str, Any]:
    """Return the worker's job for a deployment: config, split, and settings that decide sizes."""
    result: dict[str, Any] = {
        "config": dict(deployment.model.raw),
        "tp": deployment.tp,
        "pp": deployment.pp,
        "dtype": deployment.model.dtype,
        "kv_cache_dtype": deployment.settings.kv_cache_dtype,
        "max_model_len": deployment.settings.max_model_len,
        "max_num_batched_tokens": deployment.settings.max_num_batched_tokens,
    }
    if deployment.expert_split:
        result["dp"] = deployment.dp
        result["ep"] = deployment.ep
    return result


def refusal(model: ModelConfig, answer: Mapping[str, Any]) -> BadInput:
    """Return an error that says in a sentence why vLLM cannot build a model."""
    error = answer["error"]
    vllm_version = answer.get("vllm", version())
    reason = _first_reason(error)
    for phrase, meaning in REFUSALS.items():
        if phrase in error:
            reason = (
                meaning.format(model_type=model.model_type, architecture=model.architecture)
                or reason
            )
            break
    message = f"vLLM {vllm_version} cannot build {model.name}: {reason}."
    remedy = "Without --exact the plan is an estimate from the config alone."
    missing = ""
    if vllm_version:
        missing = lacks(model.architecture, vllm_version)
    if not missing:
        return BadInput(message, remedy)
    remedy = f"{missing} {remedy}".lstrip()
    if "vllm" not in answer:
        return BadInput(message, remedy)
    return UnknownArchitecture(message, remedy)


def _first_reason(error: str) -> str:
    """Return the line of an error that says what is wrong: pydantic's "Value error", or the first."""
    lines = error.splitlines()
    reason = lines[0]
    for line in lines:
        if "Value error" in line:
            reason = line
            break
    return reason.split("[type=")[0].strip()[:LONGEST_REASON]

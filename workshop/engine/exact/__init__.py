"""Exact planning: ask vLLM's own model class for its weights and KV cache, and store the answer.

`worker.py` builds the class in a process of its own, so that nothing here imports torch.
Activations, CUDA graphs and kernels keep the planner's formulas. Answers are stored in
WORKSHOP_HOME by config, vLLM version and split. The planner brings recorded answers for machines
without vLLM (inference_planner/answer/builds.py).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_planner.answer import builds
from inference_planner.answer.builds import built, digest, with_builds, with_records
from inference_planner.answer.choose import Split
from inference_planner.answer.choose import choose as choose_split
from inference_planner.answer.command import Unservable
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.parallelism import plan as planner_plan
from inference_planner.catalog.architectures import keeps_no_cache
from inference_planner.catalog.config import Built, ModelConfig
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.gpus import GPU
from inference_planner.ground.basis import explain_sizes
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.releases.registries import lacks
from inference_planner.request import PlanRequest, request_of, with_settings
from inference_planner.split.deployment import Deployment
from inference_planner.split.measured_start import Start

from workshop import python_process
from workshop.engine.reconcile.learned import starts
from workshop.errors import BadInput, WorkshopError
from workshop.files import read_json
from workshop.home import home, write_private
from workshop.vllm_package import installed

if TYPE_CHECKING:
    from workshop.worker_process import WorkerProcess

WORKER_MODULE = "workshop.engine.exact.worker"  # runs in the engine's Python
WORKER_FILE = Path(__file__).with_name("worker.py")
# a phrase of vLLM's refusal -> what it means
REFUSALS = {
    "trust_remote_code": "the config asks for code of the model's own (trust_remote_code), "
    "which is never run here",
    "does not recognize this architecture": "its Transformers does not know the model_type "
    "{model_type}",
    "are not supported for now": "it does not know the architecture {architecture}",
    "No module named 'torch'": "its Python has no torch",
}

LARGEST_ANSWER_BYTES = 16 << 20
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


def answers_folder() -> Path:
    """Return the folder of the answers that vLLM's classes gave on this machine."""
    return home() / "exact"


def answer_file(job: Mapping[str, Any]) -> Path:
    """Return the file of the answer to a job; a digest of all that the answer depends on names it."""
    import hashlib

    key = dict(job)
    # The blocks of a request follow from kv_cache.layout, so one answer serves every length.
    for name in ("max_model_len", "max_num_batched_tokens"):
        key.pop(name, None)
    key["version"] = version()
    key["python"] = python()
    key["worker"] = hashlib.sha256(WORKER_FILE.read_bytes()).hexdigest()
    return answers_folder() / f"{digest(key)}.json"


def store_answer(file: Path, answer: Mapping[str, Any]) -> None:
    """Write an answer as a whole file. If that is impossible, the next plan asks again."""
    with contextlib.suppress(OSError, WorkshopError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_private(file, json.dumps(answer))


def attach(deployment: Deployment, worker: ExactWorker, **vllm_arguments: object) -> Deployment:
    """Return the deployment with the sizes of vLLM's class, from a stored answer or the worker.

    Args:
        vllm_arguments: further arguments of vLLM, such as enable_prefix_caching.

    Raises:
        BadInput: vLLM cannot build the model, or the model has no KV cache; the sentence gives the
            reason.
    """
    question = {**job(deployment), **vllm_arguments}
    file = answer_file(question)
    try:
        answer = read_json(file, LARGEST_ANSWER_BYTES)
        split = _built(answer, deployment)
    except (OSError, ValueError, KeyError, TypeError):  # not stored yet, or damaged
        answer = {**worker.build(question), "tp": deployment.tp, "pp": deployment.pp}
        answer["kv_bytes_each"] = kv_dtype_bytes(
            deployment.model, deployment.settings.kv_cache_dtype
        )
        split = _built(answer, deployment)
        if "vllm" in answer:  # vLLM itself answered, also if it refused
            store_answer(file, answer)
    if not split:
        raise refusal(deployment.model, answer)
    if not split.groups:
        architecture = deployment.model.architecture[:80]
        message = f"{deployment.model.name} keeps no KV cache: {architecture} is an encoder or an embedding model."
        raise Unservable(message, "Leave --exact out: the plan sizes its weights alone.")
    return with_builds(deployment, "exact", answer["vllm"], [split])


def _built(answer: Mapping[str, Any], deployment: Deployment) -> Built | None:
    """Return what an answer says of the deployment's split; None for an error."""
    if "error" in answer:
        return None
    return built(answer, deployment.expert_split)


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


@with_settings
def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU | None = None,
    *,
    exact: bool | None = None,
    learned: Sequence[Start] | None = None,
    **settings: Any,
) -> Plan:
    """Return the planner's plan; without formulas, vLLM's own classes give weights and KV cache.

    The names are vLLM's own, and None means vLLM's default.

    >>> from workshop import plan
    >>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
    >>> p.fits, p.gpus, p.tensor_parallel_size
    (True, 2, 2)

    Args:
        model: a catalog name, a folder or file with a config.json, or a ModelConfig.
        gpu: a name of the catalog (`list_gpus`), or a GPU; None with gpu_memory_gib.
        exact: True asks vLLM's classes. None asks them if the architecture has no formulas and vLLM
            is installed.
        learned: what starts measured; None takes the starts of this site
            (`workshop reconcile LOG`).
        settings: those of `PlanRequest`.

    Raises:
        BadInput: an unknown name or keyword, a number out of range, sizes that cannot split the
            model, or a model that vLLM cannot build.
    """
    request_of(plan, settings)
    return planner_plan(
        model,
        gpu,
        learned=kept_starts(exact) if learned is None else learned,
        find_split=lambda deployment, request: choose(deployment, request, exact),
        **settings,
    )


def kept_starts(exact: bool | None = None) -> tuple[Start, ...]:
    """Return what starts on this site measured, for plans with the same `exact`.

    `workshop serve`, a job of SLURM and `workshop reconcile LOG` keep them.
    """

    def predict(model: ModelConfig, gpu: GPU, options: dict[str, Any]) -> Plan:
        return plan(model, gpu, **options, exact=exact, learned=())

    return starts(predict, mode=str(exact))


def choose(deployment: Deployment, request: PlanRequest, exact: bool | None) -> Split:
    """Return the requested or the best split, with the best available knowledge of the model.

    Args:
        request: what the user gave.
        exact: True asks vLLM's classes. None asks them if the architecture has no formulas and vLLM
            is here, and falls back to recorded or estimated sizes if vLLM cannot build the model.
            False never asks.

    Raises:
        BadInput: sizes that cannot split the model, a model without a KV cache, or, if exact is
            True, a missing vLLM or a model that it cannot build.
    """
    deployment = with_records(deployment)
    if exact and not python():
        remedy = (
            "Install it (make workshop), or set WORKSHOP_VLLM_PYTHON to the Python that has it."
        )
        raise BadInput("There is no vLLM here, whose classes --exact asks.", remedy)
    if exact is None:
        has_family = deployment.model.architecture in FAMILIES
        asks = not has_family and bool(python()) and not is_recorded(deployment.model)
        asks = asks and not keeps_no_cache(deployment.model.architecture)
    else:
        asks = exact
    if not asks:
        return builds.choose(deployment, request)
    try:
        return _choose_exactly(deployment, request)
    except BadInput as error:
        if exact or isinstance(error, Unservable):
            raise
        refused = ""
        if isinstance(error, UnknownArchitecture):
            refused = error.message
        return builds.choose(replace(deployment, refused=refused), request, error.message)


def _choose_exactly(deployment: Deployment, request: PlanRequest) -> Split:
    """Return the split with the sizes of vLLM's own class. Raises BadInput, as `attach`."""
    with ExactWorker() as worker:
        if not request.tensor_parallel_size and not request.pipeline_parallel_size:
            # The plan's own choice needs the sizes of the whole model first.
            deployment = attach(deployment, worker)
        split = choose_split(deployment, request)
        split = replace(split, deployment=attach(split.deployment, worker))
    return replace(split, reasons=[*split.reasons, *explain_sizes(split.deployment)])


def is_recorded(model: ModelConfig) -> bool:
    """Return True if the planner's record holds what the vLLM beside us would say."""
    return bool(model.exact and model.exact.basis == "recorded" and model.exact.source == version())

"""Exact planning: ask vLLM's own model class for its weights and KV cache, and store the answer.

`worker.py` builds the class in a process of its own, so that nothing here imports torch; `ask.py`
talks to it, and `store.py` keeps its answers in WORKSHOP_HOME by config, vLLM version and split.
Activations, CUDA graphs and kernels keep the planner's formulas. The planner brings recorded
answers for machines without vLLM (inference_planner/answer/builds.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference_planner.answer.builds import built, with_builds
from inference_planner.answer.command import Unservable
from inference_planner.catalog.config import Built
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.split.deployment import Deployment

from workshop.engine.exact.ask import ExactWorker, job, refusal
from workshop.engine.exact.store import answer_file, store_answer, stored_answer


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
        answer = stored_answer(file)
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

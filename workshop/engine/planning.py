"""`plan()`: the planner's plan, with what vLLM's classes say and what starts here measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_planner.answer.builds import choose_with_records, with_records
from inference_planner.answer.choose import Split, choose
from inference_planner.answer.command import Unservable
from inference_planner.answer.parallelism import Plan
from inference_planner.answer.parallelism import plan as planner_plan
from inference_planner.catalog.architectures import keeps_no_cache
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.gpus import GPU
from inference_planner.ground.basis import explain_sizes
from inference_planner.request import PlanRequest, request_of, with_settings
from inference_planner.split.deployment import Deployment
from inference_planner.split.measured_start import Start

from workshop.engine.exact import ask, attach
from workshop.engine.reconcile.learned import starts
from workshop.errors import BadInput


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
    # For its refusal of a wrong name: it may suggest `exact`, which the planner's own cannot.
    request_of(plan, settings)
    return planner_plan(
        model,
        gpu,
        learned=kept_starts(exact) if learned is None else learned,
        find_split=lambda deployment, request: choose_with_classes(deployment, request, exact),
        **settings,
    )


def kept_starts(exact: bool | None = None) -> tuple[Start, ...]:
    """Return what starts on this site measured, for plans with the same `exact`.

    `workshop serve`, a job of SLURM and `workshop reconcile LOG` keep them.
    """

    def predict(model: ModelConfig, gpu: GPU, options: dict[str, Any]) -> Plan:
        return plan(model, gpu, **options, exact=exact, learned=())

    return starts(predict, mode=str(exact))


def choose_with_classes(deployment: Deployment, request: PlanRequest, exact: bool | None) -> Split:
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
    if exact and not ask.python():
        remedy = (
            "Install it (make workshop), or set WORKSHOP_VLLM_PYTHON to the Python that has it."
        )
        raise BadInput("There is no vLLM here, whose classes --exact asks.", remedy)
    if exact is None:
        has_family = deployment.model.architecture in FAMILIES
        asks = not has_family and bool(ask.python()) and not is_recorded(deployment.model)
        asks = asks and not keeps_no_cache(deployment.model.architecture)
    else:
        asks = exact
    if not asks:
        return choose_with_records(deployment, request)
    try:
        return _choose_exactly(deployment, request)
    except BadInput as error:
        if exact or isinstance(error, Unservable):
            raise
        refused = ""
        if isinstance(error, ask.UnknownArchitecture):
            refused = error.message
        return choose_with_records(replace(deployment, refused=refused), request, error.message)


def _choose_exactly(deployment: Deployment, request: PlanRequest) -> Split:
    """Return the split with the sizes of vLLM's own class. Raises BadInput, as `attach`."""
    with ask.ExactWorker() as worker:
        if not request.tensor_parallel_size and not request.pipeline_parallel_size:
            # The plan's own choice needs the sizes of the whole model first.
            deployment = attach(deployment, worker)
        split = choose(deployment, request)
        split = replace(split, deployment=attach(split.deployment, worker))
    return replace(split, reasons=[*split.reasons, *explain_sizes(split.deployment)])


def is_recorded(model: ModelConfig) -> bool:
    """Return True if the planner's record holds what the vLLM beside us would say."""
    return bool(
        model.exact and model.exact.basis == "recorded" and model.exact.source == ask.version()
    )

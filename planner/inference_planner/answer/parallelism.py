"""`plan()`: choose the split, and compute what fits, how fast it is, and the command."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_planner.answer import builds
from inference_planner.answer.advise import advise
from inference_planner.answer.choose import Split
from inference_planner.answer.command import command_of
from inference_planner.answer.plan_result import Plan, has_speed
from inference_planner.answer.reasons import reasons
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU, split_count
from inference_planner.errors import BadInput
from inference_planner.ground.basis import ground
from inference_planner.memory.fit import fit
from inference_planner.memory.learned import speed_ratio
from inference_planner.refusals import check
from inference_planner.request import PlanRequest, request_of, with_settings
from inference_planner.speed import roofline as speed
from inference_planner.split.communication import traffic
from inference_planner.split.deployment import Deployment, deployment_of
from inference_planner.split.free_memory import CONTEXT_GIB, UNIFIED_OFTEN_FREE, share_of_free
from inference_planner.split.measured_start import Start
from inference_planner.split.ranks import ranks

__all__ = ["FindSplit", "Plan", "plan", "plan_of"]

FindSplit = Callable[[Deployment, PlanRequest], Split]


@with_settings
def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU | None = None,
    *,
    learned: Sequence[Start] = (),
    find_split: FindSplit = builds.choose_with_records,
    **settings: Any,
) -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    The names are vLLM's own, and None means vLLM's default.

    >>> from inference_planner import plan
    >>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
    >>> p.fits, p.gpus, p.tensor_parallel_size
    (True, 2, 2)

    Args:
        model: a catalog name, a folder or file with a config.json, or a ModelConfig.
        gpu: a name of the catalog (`list_gpus`), or a GPU; "h100:4" is four of them in a node. None
            with gpu_memory_gib, where bandwidth and link are unknown, and so is the speed.
        learned: what starts on this site measured; the workshop keeps it (`workshop serve`, a job of
            SLURM, `workshop reconcile LOG`).
        find_split: finds the split of a deployment, from the formulas and the records; the workshop
            gives one that also asks vLLM's own classes.
        settings: those of `PlanRequest`.

    Raises:
        BadInput: an unknown name or keyword, a number out of range, or sizes that cannot split the
            model.
    """
    request = request_of(plan, settings)
    if isinstance(gpu, str):
        gpu, request = counted(gpu, request)
    split = find_split(deployment_of(model, gpu, request, learned), request)
    notes = card_notes(split.deployment, request.gpu_memory_gib)
    return plan_of(replace(split, reasons=[*notes, *split.reasons]))


def counted(gpu: str, request: PlanRequest) -> tuple[str, PlanRequest]:
    """Return the GPU's name, and the request with as many GPUs in a node as `h100:4` has.

    Raises BadInput: another number of GPUs is asked for as well.
    """
    name, count = split_count(gpu)
    if count is None:
        return name, request
    if request.gpus_per_node not in (count, PlanRequest.gpus_per_node):
        raise BadInput(
            f"{gpu} has {count} GPUs in a node, and --gpus-per-node {request.gpus_per_node}.",
            "Give the number once.",
        )
    return name, replace(request, gpus_per_node=count)


def card_notes(deployment: Deployment, gpu_memory_gib: float | None) -> list[str]:
    """Return what a plan says of a card with a given memory, or of one that is partly taken."""
    gpu, free_gib = deployment.gpu, deployment.free_gib
    notes: list[str] = []
    if not gpu.has_known_speed:
        notes.append(
            "Only the memory of this card is known: there are no speed figures, "
            "and what it has kernels for was not checked."
        )
    elif gpu_memory_gib is not None:
        notes.append(
            f"This is {gpu.title} with {gpu.engine_gib:.2f} GiB, at its bandwidth and link."
        )
    if gpu.unified_memory and free_gib is None:
        notes.append(
            f"The CPU and the system use the same {gpu.engine_gib:.1f} GiB. vLLM starts only if "
            "its share of them is free: give --free-gib what the system shows as available."
        )
        share = deployment.settings.gpu_memory_utilization
        if share > UNIFIED_OFTEN_FREE:
            notes.append(
                f"gpu_memory_utilization {share:g} starts on some of these machines alone: others "
                f"never have more than {UNIFIED_OFTEN_FREE:g} of it free."
            )
    if free_gib is not None:
        largest = share_of_free(gpu, free_gib)
        notes.append(
            f"{free_gib:g} of {gpu.engine_gib:.2f} GiB are free on each GPU, of which CUDA "
            f"itself takes up to {CONTEXT_GIB:g}. vLLM refuses to start if "
            f"gpu_memory_utilization asks for more than the rest: {largest:g} fits, and the plan "
            f"has {deployment.settings.gpu_memory_utilization:g}."
        )
    return notes


def plan_of(split: Split) -> Plan:
    """Return the plan of a chosen split: its memory, speed, reasons, advice and command."""
    deployment = split.deployment
    memory = fit(deployment)
    times: list[speed.Term] = []
    learners_at_once = 0
    if memory.holds_a_request and has_speed(deployment):
        pace = speed_ratio(deployment)  # that a start on this site had
        times = [replace(term, ms=term.ms / pace) for term in speed.decode_terms(deployment)]
        learners_at_once = speed.learners_at_once(deployment, memory.capacity.tokens)
    result = Plan(
        deployment=deployment,
        fit=memory,
        communication=traffic(deployment) if deployment.gpu.has_known_speed else [],
        ranks=ranks(deployment, memory.loaded),
        ground=ground(deployment),
        refusals=check(deployment),
        decode=times,
        learners_at_once=learners_at_once,
        world_size=split.world_size,
        reasons=split.reasons,
    )
    return replace(
        result,
        reasons=reasons(result),
        advice=advise(result),
        command=command_of(deployment),
    )

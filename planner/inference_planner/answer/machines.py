"""Find the rented machines that hold a model, in a catalog of common cloud VMs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from inference_planner.answer.parallelism import Plan, plan
from inference_planner.catalog import ModelConfig, load_model
from inference_planner.errors import BadInput, PlannerError
from inference_planner.model import weights

GB = 10**9
SPARE_BYTES = 1 << 30  # a download leaves that much free
# settings of a plan that a machine has of its own
HARDWARE = ("gpu_memory_gib", "free_gib", "gpus_per_node", "nodes", "network")


@dataclass(frozen=True)
class Machine:
    """One kind of VM: memory_gib is the host's, local_disk_gb (10**9 bytes) without the OS disk."""

    name: str
    provider: str
    gpu: str
    gpus: int
    vcpus: int
    memory_gib: int
    local_disk_gb: int
    source: str
    date: str  # when the source was last changed or read


@dataclass(frozen=True)
class Offer:
    """A machine and the plan on it; None if the GPU cannot run the model, with the reason."""

    machine: Machine
    plan: Plan | None
    why: str

    @property
    def fits(self) -> bool:
        return bool(self.plan and self.plan.fits)


@lru_cache(maxsize=1)
def list_machines() -> tuple[Machine, ...]:
    """Return the catalog, smallest GPU memory in all first."""
    text = (Path(__file__).parents[1] / "catalog" / "machines.json").read_text(encoding="utf-8")
    machines: list[Machine] = []
    for name, entry in json.loads(text)["machines"].items():
        machines.append(Machine(name=name, **entry))
    return tuple(machines)


def offers(
    model: str | ModelConfig, make_plan: Callable[..., Plan] = plan, **settings: object
) -> list[Offer]:
    """Return every machine with the plan on it, those that hold the model first.

    Args:
        make_plan: `plan`, or a function with the same arguments.
        settings: those of plan(); those of the hardware are the machine's.

    Raises:
        BadInput: the model or a setting is unknown.
    """
    load_model(model)
    plan_settings = {name: value for name, value in settings.items() if name not in HARDWARE}
    rows: list[Offer] = []
    for machine in list_machines():
        rows.append(_offer(model, machine, plan_settings, make_plan))
    if not any(offer.plan for offer in rows):
        # the reason is not the machines: the plan's own error names it
        largest = rows[-1].machine
        make_plan(model, largest.gpu, gpus_per_node=largest.gpus, nodes=1, **plan_settings)
    return sorted(rows, key=lambda offer: not offer.fits)


def check_any_fits(offers: list[Offer], model: str) -> None:
    """Raise PlannerError if no machine holds the model."""
    if not any(offer.fits for offer in offers):
        remedy = "Several nodes may: plan MODEL with --gpu h100 --nodes 2, for SLURM or Kubernetes."
        raise PlannerError(f"None of these {len(offers)} machines holds {model}.", remedy)


def _offer(
    model: str | ModelConfig,
    machine: Machine,
    settings: dict[str, Any],
    make_plan: Callable[..., Plan],
) -> Offer:
    try:
        result = make_plan(model, machine.gpu, gpus_per_node=machine.gpus, nodes=1, **settings)
    except BadInput as error:
        return Offer(machine, None, error.message)
    if result.fits:
        length = result.deployment.settings.max_model_len
        reason = f"{result.max_concurrency:.1f} requests of {length:,} tokens at once"
        if result.gpus != machine.gpus:
            reason += f" on {result.gpus} of its {machine.gpus} GPUs"
        return Offer(machine, result, reason)
    return Offer(machine, result, result.advice[0])


def checkpoint_bytes(model: str) -> int:
    """Return the bytes of the weights as they are downloaded."""
    return weights.weight_bytes(load_model(model))


def disk_problem(model: str, disk_gb: float) -> str:
    """Return why a disk of `disk_gb` · 10**9 bytes cannot hold the model's weights, or ""."""
    needed = checkpoint_bytes(model)
    if needed + SPARE_BYTES <= disk_gb * GB:
        return ""
    disk = f"a disk of {disk_gb:g} GB cannot hold it even when it is empty"
    return f"{load_model(model).name} takes {needed / GB:.1f} GB on disk, and {disk}."

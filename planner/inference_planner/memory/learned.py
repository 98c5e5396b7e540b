"""The parts that a plan takes from the nearest start that was measured on a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.families import reads_images
from inference_planner.catalog.gpus import GIB
from inference_planner.memory.overheads import ACTIVATIONS, GRAPHS, KERNELS, Overhead
from inference_planner.model.attention import has_states, main_kind
from inference_planner.releases.versions import same_minor
from inference_planner.split.deployment import Deployment
from inference_planner.split.measured_start import Correction, Likeness, Start, StartKind

# Cards of one kind report totals that differ by less than this share: drivers and platforms leave
# other amounts.
SAME_CARD = 0.05
# A total that was given (--gpu-memory) is the same card's within this share.
SAME_TOTAL = 0.006
LEAST_SPEED, MOST_SPEED = 0.5, 1.5  # beyond, the log's seconds were not those of decoding


def start_kind(model: ModelConfig) -> StartKind:
    """Return the kind of a model."""
    quantization = model.quantization.method if model.quantization else ""
    return StartKind(
        attention=main_kind(model).key,
        experts=bool(model.moe),
        states=has_states(model),
        images=reads_images(model.architecture),
        quantization=quantization,
    )


def shape_of(model: ModelConfig) -> tuple[str | int, ...]:
    """Return what identifies a model whatever its name; tuned models are as their base."""
    experts = model.moe.num_experts if model.moe else 0
    return (
        model.architecture,
        model.num_hidden_layers,
        model.hidden_size,
        model.intermediate_size,
        model.vocab_size,
        experts,
    )


def split_of(deployment: Deployment) -> tuple[int, int, int, bool]:
    """Return the tensor, pipeline and data parallel sizes, and whether experts stay whole."""
    return deployment.tp, deployment.pp, deployment.dp, deployment.ep


def settings_of(deployment: Deployment) -> tuple[int, int, str]:
    """Return the settings by which the nearest of several starts is found."""
    settings = deployment.settings
    return settings.max_num_batched_tokens, settings.max_num_seqs, settings.kv_cache_dtype


def correction(deployment: Deployment) -> Correction | None:
    """Return what the nearest start adds to the formulas; None if no start is like it."""
    nearest: tuple[tuple[int, int, int, str], Start] | None = None
    for start in deployment.learned:
        likeness = _likeness(deployment, start)
        if likeness is None:
            continue
        same = sum(
            ours == theirs
            for ours, theirs in zip(settings_of(deployment), start.settings, strict=True)
        )
        eager = int(start.enforce_eager == deployment.settings.enforce_eager)
        rank = (int(likeness), eager, same, start.day)
        if nearest is None or rank >= nearest[0]:
            nearest = rank, start
    if nearest is None:
        return None
    return _parts(deployment, nearest[1], Likeness(nearest[0][0]))


def _likeness(deployment: Deployment, start: Start) -> Likeness | None:
    """Return what a start and a deployment have in common; None if the start says nothing of it."""
    same_formulas = start.vllm_version == deployment.settings.version.name
    same_version = same_formulas and same_minor(
        start.logged_version, deployment.settings.vllm_version
    )
    if not same_version or start.split != split_of(deployment) or not _same_card(deployment, start):
        return None
    if start.kind == start_kind(deployment.model):
        if start.shape == shape_of(deployment.model):
            return Likeness.MODEL
        return Likeness.KIND
    if start.has_parts:
        return Likeness.CARD
    return None


def _same_card(deployment: Deployment, start: Start) -> bool:
    if start.gpu != deployment.gpu.name:
        return False
    tolerance = SAME_CARD if is_of_catalog(deployment) else SAME_TOTAL
    return abs(start.engine_bytes / deployment.gpu.engine_bytes - 1) <= tolerance


def is_of_catalog(deployment: Deployment) -> bool:
    """Return True if the memory of the card is the catalog's, and not one that the user gave."""
    return deployment.gpu.name in list_gpus() and deployment.gpu == load_gpu(deployment.gpu.name)


def _parts(deployment: Deployment, start: Start, likeness: Likeness) -> Correction:
    same_kind = likeness >= Likeness.KIND
    same_graphs = (
        same_kind
        and start.enforce_eager == deployment.settings.enforce_eager
        and deployment.settings.compilation.is_default
    )
    weights = activations = graphs = 0
    speed = 1.0
    if likeness == Likeness.MODEL:
        weights = start.weights
    if same_kind:
        activations = start.activations
        speed = start.speed or 1.0
    if same_graphs:
        graphs = start.graphs
    return Correction(
        start=start,
        likeness=likeness,
        weights=weights,
        activations=activations,
        graphs=graphs,
        other=start.other,
        speed=speed,
    )


def engine_bytes(deployment: Deployment, measured: Correction | None) -> int:
    """Return the card's memory as the engine saw it here, else the catalog's or the given one."""
    if measured is not None and is_of_catalog(deployment):
        return measured.start.engine_bytes
    return deployment.gpu.engine_bytes


def speed_ratio(deployment: Deployment) -> float:
    """Return measured over predicted tokens/s of one stream; 1.0 without a start like it."""
    measured = correction(deployment)
    return measured.speed if measured else 1.0


def corrected(items: Sequence[Overhead], measured: Correction) -> tuple[Overhead, ...]:
    """Return the overheads of a rank with what was measured; none of them falls below zero."""
    changes = {
        ACTIVATIONS: measured.activations,
        GRAPHS: measured.graphs,
        KERNELS: measured.other,
    }
    rest = 0
    result: list[Overhead] = []
    for item in items:
        change = changes.pop(item.name, 0)
        if not change:
            result.append(item)
            continue
        size = max(0, item.bytes + change)
        rest += item.bytes + change - size
        reason = f"{item.reason}; {change / GIB:+.2f} GiB by a start that was measured here"
        result.append(replace(item, bytes=size, reason=reason))
    # what no item of the plan stands for, and what was more than an item had
    rest += sum(changes.values())
    for place, item in enumerate(result):
        size = max(0, item.bytes + rest)
        rest += item.bytes - size
        result[place] = replace(item, bytes=size)
    return tuple(result)

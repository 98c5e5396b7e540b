"""The measurements of starts on a site, and the parts that a plan takes from them.

A `Start` holds the differences between vLLM's own log and the formulas, on one rank. They are added
to the plan of a run that is like it: on the same card, with the same version and the same split.
What another model has in common with it decides which parts are taken (`Likeness`). This module
reads no files: `plan(..., learned=...)` gets the starts.
"""

# d: a deployment
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from inference_planner.attention import has_states, main_kind
from inference_planner.catalog import list_gpus, load_gpu
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.families import reads_images
from inference_planner.catalog.gpus import GIB
from inference_planner.versions import same_minor

if TYPE_CHECKING:
    from inference_planner.deployment import Deployment
    from inference_planner.overheads import Overhead
    from inference_planner.plan_result import Plan

# Cards of one kind report totals that differ by less than this share: drivers and platforms leave
# other amounts.
SAME_CARD = 0.05
# A total that was given (--gpu-memory) is the same card's within this share.
SAME_TOTAL = 0.006
SHOWN_BYTES = GIB // 100  # a smaller change is not named
LEAST_SPEED, MOST_SPEED = 0.5, 1.5  # beyond, the log's seconds were not those of decoding


class Likeness(IntEnum):
    """The likeness of a plan and a start: how much they have in common.

    The larger, the more parts of the start are taken.
    """

    CARD = 1  # card, version and split: memory outside of PyTorch
    KIND = 2  # also attention, experts and quantization: activations, CUDA graphs and speed
    MODEL = 3  # also the shape of the model: weights


@dataclass(frozen=True)
class Kind:
    """The properties in which two models agree if the activations of one hold for the other."""

    attention: str
    experts: bool
    states: bool
    images: bool
    quantization: str  # "" for weights that are not quantized


@dataclass(frozen=True)
class Start:
    """One start that was measured on this site.

    Differences are bytes on one rank, measured less predicted.

    Attributes:
        gpu: the card's name in the catalog.
        engine_bytes: the card's memory as the engine saw it.
        vllm_version: the row of versions.py whose formulas were compared.
        logged_version: vLLM's version by the log.
        shape: what identifies a model, by `shape_of`.
        split: tensor, pipeline and data parallel sizes, and whether experts stay whole.
        has_parts: False if the log gave the overhead as one sum, which then stands in
            `activations`.
        speed: measured over predicted tokens/s of one stream; None if the log has none.
        settings: max_num_batched_tokens, max_num_seqs, kv_cache_dtype; a start with the same ones
            is taken first.
        kept: the day on which it was kept, as in 2026-11-25.
    """

    gpu: str
    engine_bytes: int
    vllm_version: str
    logged_version: str
    model: str
    shape: tuple[str | int, ...]
    kind: Kind
    split: tuple[int, int, int, bool]
    settings: tuple[int, int, str]
    enforce_eager: bool
    has_parts: bool
    weights: int
    activations: int
    graphs: int
    other: int
    speed: float | None
    day: str  # when it was kept


@dataclass(frozen=True)
class Correction:
    """The parts of a start that a plan takes, in bytes on one rank."""

    start: Start
    likeness: Likeness
    weights: int
    activations: int
    graphs: int
    other: int
    speed: float

    @property
    def overhead(self) -> int:
        return self.activations + self.graphs + self.other


def kind_of(model: ModelConfig) -> Kind:
    """Return the kind of a model."""
    quantization = model.quantization.method if model.quantization else ""
    return Kind(
        attention=main_kind(model).key,
        experts=bool(model.moe),
        states=has_states(model),
        images=reads_images(model.architecture),
        quantization=quantization,
    )


def shape_of(model: ModelConfig) -> tuple[str | int, ...]:
    """Return what identifies a model whatever its name.

    Tuned models have the shape of their base.
    """
    experts = model.moe.num_experts if model.moe else 0
    return (
        model.architecture,
        model.num_hidden_layers,
        model.hidden_size,
        model.intermediate_size,
        model.vocab_size,
        experts,
    )


def split_of(d: Deployment) -> tuple[int, int, int, bool]:
    """Return the tensor, pipeline and data parallel sizes, and whether experts stay whole."""
    return d.tp, d.pp, d.dp, d.ep


def settings_of(d: Deployment) -> tuple[int, int, str]:
    """Return the settings by which the nearest of several starts is found."""
    s = d.settings
    return s.max_num_batched_tokens, s.max_num_seqs, s.kv_cache_dtype


def correction(d: Deployment) -> Correction | None:
    """Return what the nearest start adds to the formulas of this deployment.

    The result is None if no start is like it.
    """
    nearest: tuple[tuple[int, int, int, str], Start] | None = None
    for start in d.learned:
        likeness = _likeness(d, start)
        if likeness is None:
            continue
        same = sum(
            ours == theirs for ours, theirs in zip(settings_of(d), start.settings, strict=True)
        )
        eager = int(start.enforce_eager == d.settings.enforce_eager)
        rank = (int(likeness), eager, same, start.day)
        if nearest is None or rank >= nearest[0]:
            nearest = rank, start
    if nearest is None:
        return None
    return _parts(d, nearest[1], Likeness(nearest[0][0]))


def _likeness(d: Deployment, start: Start) -> Likeness | None:
    """Return what a start and a deployment have in common; None if the start says nothing of it."""
    same_formulas = start.vllm_version == d.settings.version.name
    same_version = same_formulas and same_minor(start.logged_version, d.settings.vllm_version)
    if not same_version or start.split != split_of(d) or not _same_card(d, start):
        return None
    if start.kind == kind_of(d.model):
        if start.shape == shape_of(d.model):
            return Likeness.MODEL
        return Likeness.KIND
    if start.has_parts:
        return Likeness.CARD
    return None


def _same_card(d: Deployment, start: Start) -> bool:
    if start.gpu != d.gpu.name:
        return False
    tolerance = SAME_CARD if is_of_catalog(d) else SAME_TOTAL
    return abs(start.engine_bytes / d.gpu.engine_bytes - 1) <= tolerance


def is_of_catalog(d: Deployment) -> bool:
    """Return True if the memory of the card is the catalog's, and not one that the user gave."""
    return d.gpu.name in list_gpus() and d.gpu == load_gpu(d.gpu.name)


def _parts(d: Deployment, start: Start, likeness: Likeness) -> Correction:
    same_kind = likeness >= Likeness.KIND
    same_graphs = same_kind and start.enforce_eager == d.settings.enforce_eager
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


def engine_bytes(d: Deployment, measured: Correction | None) -> int:
    """Return the memory of the card in bytes.

    It is as the engine saw it here, or else the catalog's or the one that was given.
    """
    if measured is not None and is_of_catalog(d):
        return measured.start.engine_bytes
    return d.gpu.engine_bytes


def speed_ratio(d: Deployment) -> float:
    """Return measured over predicted tokens/s of one stream.

    It is 1.0 if no start like this one had any.
    """
    measured = correction(d)
    return measured.speed if measured else 1.0


def corrected(items: Sequence[Overhead], measured: Correction) -> tuple[Overhead, ...]:
    """Return the overheads of a rank with what was measured; none of them falls below zero."""
    changes = {
        "activations": measured.activations,
        "CUDA graphs": measured.graphs,
        "CUDA kernels": measured.other,
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


def sentence(plan: Plan) -> str:
    """Return the reason that says what the plan took from a start; empty if it took nothing."""
    measured = plan.fit.measured
    if measured is None:
        return ""
    gpu_bytes = engine_bytes(plan.deployment, measured)
    start = measured.start
    parts: list[str] = []
    if abs(measured.overhead) >= SHOWN_BYTES:
        parts.append(f"{measured.overhead / GIB:+.2f} GiB of overhead")
    if abs(measured.weights) >= SHOWN_BYTES:
        parts.append(f"{measured.weights / GIB:+.2f} GiB of weights")
    if abs(gpu_bytes - plan.deployment.gpu.engine_bytes) >= SHOWN_BYTES:
        parts.append(f"{start.engine_bytes / GIB:.2f} GiB on each GPU")
    if measured.speed != 1.0:
        parts.append(f"{(measured.speed - 1) * 100:+.0f} % tokens/s of one stream")
    result = "agrees with the formulas"
    if parts:
        result = f"changes the formulas by {', '.join(parts)}"
    return (
        f"Measured here: a start of {start.model} with vLLM {start.logged_version}, kept on "
        f"{start.day}, {result}. `workshop reconcile --forget-all` removes what was kept."
    )

"""Say what a plan rests on: the nearest measurement, and where the sizes come from."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.architectures import GRAPH_SUMS
from inference_planner.catalog.config import ModelConfig, Quantization, SizesFrom
from inference_planner.catalog.families import FAMILIES
from inference_planner.catalog.gpus import GPU
from inference_planner.catalog.quantization import from_name
from inference_planner.catalog.read import from_dict
from inference_planner.memory.learned import correction
from inference_planner.model.attention import kinds
from inference_planner.releases.moe_backends import AUTO
from inference_planner.releases.registries import lacks
from inference_planner.releases.versions import is_outside
from inference_planner.split.deployment import Deployment
from inference_planner.split.measured_start import Likeness

RUNS = Path(__file__).parents[1] / "data" / "runs"

# How far a case is from measured ground, the nearest first.
Basis = Literal[
    "measured here",
    "measured on this kind of GPU",
    "same generation",
    "never measured",
]
MEASURED_HERE: Final = "measured here"
EIGHT_BITS = 8
SIXTEEN_BITS = "16 bit"
ENCODERS = ("vision_config", "audio_config", "thinker_config")


@lru_cache(maxsize=2)
def runs(folder: Path = RUNS) -> list[dict[str, Any]]:
    """Return every recorded run.

    A run has model (a catalog name), config (fields that differ), tp, pp, settings, and what was
    measured.

    "vllm_version" is that of its file: the first of "software", which says "vllm 0.32.0, torch …".
    "gpu" is a GPU's name, h200 where the run says nothing else.
    """
    result: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        version = re.split("[ ,]", record["software"])[1]
        for run in record["runs"]:
            result.append({"vllm_version": version, "gpu": "h200", **run})
    return result


def model_of(run: dict[str, Any]) -> ModelConfig:
    """Return the run's model as its config.json was."""
    config = run.get("config", {})
    if not config:
        return load_model(run["model"])
    base: dict[str, Any] = {}
    if "architectures" not in config:
        base = dict(load_model(run["model"]).raw)
    return from_dict({**base, **config}, name=run["name"])


@dataclass(frozen=True)
class MeasuredKind:
    """The properties of two cases if the measurement of one holds for the other.

    Attributes:
        attention: the keys of the kinds of attention layers, sorted.
        experts: the model has routed experts.
        weights: how the weights are stored, which decides the kernels: "16 bit", "8 bit", "4 bit
            awq" …
        encoder: an encoder of images or sound is loaded.
        split: which ways of splitting are in use: "" on one GPU, "tensor", "tensor, pipeline" …
        extras: what runs beside the model or in the host's memory, and kernels that were asked for:
            "draft", "adapters", "offloaded weights", "experts by marlin".
    """

    attention: tuple[str, ...]
    experts: bool
    weights: str
    encoder: bool
    split: str
    extras: tuple[str, ...] = ()


@lru_cache(maxsize=512)
def measured_kind_of_model(model: ModelConfig, split: str = "") -> MeasuredKind:
    """Return the kind of a model that is split in these ways."""
    attention = tuple(sorted({kind.key for kind in kinds(model)}))
    encoder = not model.text_only and any(model.raw.get(name) for name in ENCODERS)
    return MeasuredKind(
        attention, model.moe is not None, weight_format(model.quantization), encoder, split
    )


def weight_format(quantization: Quantization | None) -> str:
    """Return how weights are stored, as far as it decides the kernels that multiply them."""
    if quantization is None:
        return SIXTEEN_BITS
    bits = quantization.weight_bits
    if bits < EIGHT_BITS:
        return f"{bits} bit {quantization.method}"
    result = f"{bits} bit"
    if quantization.block:
        result += " in blocks"
    if quantization.integers:
        result += " integers"
    if quantization.activation_bits != EIGHT_BITS:
        result += " unpacked"
    return result


def split_name(tp: int, pp: int, dp: int, *, ep: bool = False, dcp: int = 1, nodes: int = 1) -> str:
    """Return the ways of splitting that are in use, as `MeasuredKind.split` has them."""
    uses = {
        "tensor": tp > 1,
        "pipeline": pp > 1,
        "data and experts": dp > 1 or ep,
        "context": dcp > 1,
        "nodes": nodes > 1,
    }
    return ", ".join(name for name, is_used in uses.items() if is_used)


def measured_kind(deployment: Deployment) -> MeasuredKind:
    """Return the kind of a deployment."""
    extras: list[str] = []
    if deployment.settings.draft is not None:
        extras.append("draft")
    if deployment.settings.adapters is not None:
        extras.append("adapters")
    if deployment.model.moe and deployment.settings.moe_backend != AUTO:
        extras.append(f"experts by {deployment.settings.moe_backend}")
    if not deployment.settings.compilation.is_default:
        extras.append("compilation settings")
    if deployment.settings.offload_bytes:
        extras.append("offloaded weights")
    split = split_name(
        deployment.tp,
        deployment.pp,
        deployment.dp,
        ep=deployment.ep,
        dcp=deployment.dcp,
        nodes=deployment.nodes,
    )
    kind = measured_kind_of_model(deployment.model, split)
    if not extras:
        return kind
    return replace(kind, extras=tuple(extras))


@dataclass(frozen=True)
class Mark:
    """One kind of model that was measured on a card under a version of vLLM, by one of its classes."""

    gpu: GPU
    vllm_version: str
    kind: MeasuredKind
    gpus: int
    architecture: str


@lru_cache(maxsize=1)
def marks() -> frozenset[Mark]:
    """Return what the recorded runs (data/runs) measured."""
    run_marks: set[Mark] = set()
    for run in runs():
        model = model_of(run)
        quantization = run["extra"].get("quantization")
        if quantization:
            model = model.with_quantization(from_name(quantization))
        tp, pp, dp = run["tp"], run["pp"], run.get("dp", 1)
        kind = measured_kind_of_model(model, split_name(tp, pp, dp))
        gpus = tp * pp * dp
        run_marks.add(
            Mark(load_gpu(run["gpu"]), run["vllm_version"], kind, gpus, model.architecture)
        )
    return frozenset(run_marks)


@dataclass(frozen=True)
class Ground:
    """The distance of a case from what was measured, as a named level and its grounds.

    Attributes:
        basis: the level.
        same_kind: this kind of model was measured on this card, under some version.
        same_version: this version was measured on some card.
        same_weights: weights stored like these were measured on a card of this generation, where
            they are laid out alike; those of 16 bit are the same everywhere.
        same_formulas: the formulas are those of the version; False for a release that has none of
            its own.
        memory_basis: the level of the memory, which depends less on kernels and on how many GPUs
            there are: any measurement of the card counts.
        same_class: vLLM's class of the model was run on some card: what it keeps in its graphs is
            known.
        learned: figures of this site's own start are in the plan (`workshop reconcile LOG`).
    """

    basis: Basis
    same_kind: bool = False
    same_version: bool = False
    same_weights: bool = False
    same_formulas: bool = True
    same_class: bool = True
    learned: bool = False
    memory_basis: Basis = "never measured"


# The ground of a case for which this site kept a log of the same card, version and kind of model.
LEARNED = Ground(MEASURED_HERE, True, True, True, learned=True, memory_basis=MEASURED_HERE)


def major_capability(gpu: GPU) -> int | None:
    """Return the major compute capability; None for another vendor's or an unknown card."""
    if math.isfinite(gpu.capability):
        return int(gpu.capability)
    return None


@lru_cache(maxsize=1024)
def ground(deployment: Deployment) -> Ground:
    """Return how far a deployment is from the recorded runs and this site's own starts.

    "measured here" takes the same card with all of its memory, the same version, the same kind of
    model and as many GPUs; of memory, vLLM's class of the model as well. "measured on this kind of GPU" takes a card whose runs had such kernels,
    such kinds of attention and so many GPUs.
    """
    start = correction(deployment)
    if start is not None and start.likeness >= Likeness.KIND:
        return LEARNED
    kind = measured_kind(deployment)
    version = deployment.settings.vllm_version
    on_card = [mark for mark in marks() if mark.gpu == deployment.gpu]
    of_generation = [
        mark for mark in marks() if major_capability(mark.gpu) == major_capability(deployment.gpu)
    ]
    same_kind = any(mark.kind == kind for mark in on_card)
    measured_weights = {mark.kind.weights for mark in of_generation}
    same_weights = kind.weights == SIXTEEN_BITS or kind.weights in measured_weights
    same_version = any(mark.vllm_version == version for mark in marks())
    basis: Basis = "never measured"
    memory_basis: Basis = "never measured"
    if of_generation:
        basis = memory_basis = "same generation"
    if on_card:
        memory_basis = "measured on this kind of GPU"
    if _has_measured_parts(kind, deployment.gpus, on_card):
        basis = "measured on this kind of GPU"
    here = [mark for mark in on_card if mark.vllm_version == version and mark.kind == kind]
    same_class = deployment.model.architecture in _classes()
    if here and same_class:
        memory_basis = MEASURED_HERE
    if any(mark.gpus == deployment.gpus for mark in here):
        basis = MEASURED_HERE
    return Ground(
        basis=basis,
        memory_basis=memory_basis,
        same_kind=same_kind,
        same_version=same_version,
        same_weights=same_weights,
        same_formulas=not is_outside(version),
        same_class=same_class,
    )


@lru_cache(maxsize=1)
def _classes() -> frozenset[str]:
    """Return the classes of vLLM that were run on some card."""
    return frozenset({mark.architecture for mark in marks()} | set(GRAPH_SUMS))


def _has_measured_parts(kind: MeasuredKind, gpus: int, on_card: list[Mark]) -> bool:
    """Return True if kernels, attention and number of GPUs were measured, if not in one run."""
    attention: set[str] = set()
    kernels: set[tuple[str, bool]] = set()
    numbers: set[int] = set()
    for mark in on_card:
        attention |= set(mark.kind.attention)
        kernels.add((mark.kind.weights, mark.kind.experts))
        numbers.add(mark.gpus)
    has_kernels = (kind.weights, kind.experts) in kernels
    return has_kernels and gpus in numbers and attention.issuperset(kind.attention)


def sizes_from(deployment: Deployment) -> SizesFrom:
    """Return where the sizes of weights and KV cache come from."""
    model = deployment.model
    experts = deployment.expert_split
    if experts:  # no formula was compared with experts shared out so
        if model.exact and model.exact.weights_of(deployment.tp, deployment.pp, experts):
            return model.exact.basis
        return "estimate"
    if model.exact and model.exact.of(deployment.tp, deployment.pp):
        return model.exact.basis
    if model.architecture in FAMILIES:
        return "formulas"
    return "estimate"


def explain_sizes(deployment: Deployment, why: str = "") -> Iterator[str]:
    """Say where a model without formulas has its sizes; `why` no class of vLLM was asked."""
    model = deployment.model
    source = sizes_from(deployment)
    name = model.architecture[:80]
    lacking = lacks(model.architecture, deployment.settings.vllm_version)
    if lacking:
        yield lacking
    if model.raw.get("auto_map") and model.architecture not in FAMILIES:
        yield (
            "Its config.json names code of its own (auto_map), which was not run: its fields "
            "alone were read. vLLM runs it with --trust-remote-code only."
        )
    if source in ("exact", "recorded") and model.exact and not ground(deployment).same_kind:
        says = "said when it was recorded"
        if source == "exact":
            says = "says"
        yield (
            f"Weights and KV cache are what vLLM {model.exact.source}'s own class of "
            f"{name} {says}; activations and kernels are estimated, within the "
            "interval that stands beside each figure."
        )
    elif source == "estimate" and model.architecture not in FAMILIES:
        size = "the sizes in the config alone"
        if model.exact:
            size = model.exact.source
        reason = why or "--exact asks vLLM where it is installed."
        yield (
            f"An estimate: there are no formulas for {name}, whose weights are taken from {size}, "
            f"and its KV cache from its heads. {reason}"
        )

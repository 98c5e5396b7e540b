"""A start that was measured on a site, and the parts of it that a plan takes.

A `Start` holds the differences between vLLM's own log and the formulas, on one rank. They are added
to the plan of a run that is like it: on the same card, with the same version and the same split.
What another model has in common with it decides which parts are taken (`Likeness`).
`plan(..., learned=...)` gets the starts; nothing is read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Likeness(IntEnum):
    """The likeness of a plan and a start: the larger, the more parts of the start are taken."""

    CARD = 1  # card, version and split: memory outside of PyTorch
    KIND = 2  # also attention, experts and quantization: activations, CUDA graphs and speed
    MODEL = 3  # also the shape of the model: weights


@dataclass(frozen=True)
class StartKind:
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
        day: on which it was kept, as in 2026-11-25.
    """

    gpu: str
    engine_bytes: int
    vllm_version: str
    logged_version: str
    model: str
    shape: tuple[str | int, ...]
    kind: StartKind
    split: tuple[int, int, int, bool]
    settings: tuple[int, int, str]
    enforce_eager: bool
    has_parts: bool
    weights: int
    activations: int
    graphs: int
    other: int
    speed: float | None
    day: str


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

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from workshop.course.exercises.judging import called
from workshop.course.exercises.sets import texts

RANKS, EXPERTS_OF_A_RANK = 4, 2
ASKED = texts("e13_scale_out")["scale.which"]
WAYS, SERVICES = ASKED["ways"], ASKED["services"]
RIGHT, WHY_NOT = ASKED["right"], ASKED["why_not"]


class Toy(NamedTuple):
    """A small mixture of experts.

    Shapes: x [12 tokens, 4], router [4, 8 experts], W1 [8, 4, 6], W2 [8, 6, 4].
    """

    x: np.ndarray
    router: np.ndarray
    W1: np.ndarray
    W2: np.ndarray


def toy() -> Toy:
    """Return the notebook's small mixture of experts."""
    rng = np.random.default_rng(13)
    count = RANKS * EXPERTS_OF_A_RANK
    shapes = ((12, 4), (4, count), (count, 4, 6), (count, 6, 4))
    return Toy(*(rng.normal(size=shape) for shape in shapes))


def pieces() -> np.ndarray:
    """Return what each expert adds to each token, gates included: [8 experts, 12 tokens, 4]."""
    x, router, w1, w2 = toy()
    scores = np.exp(x @ router)
    weakest = np.sort(scores, axis=1)[:, -2:-1]
    gates = np.where(scores >= weakest, scores, 0)
    gates /= gates.sum(axis=1, keepdims=True)  # [tokens, experts], 0 where an expert was not chosen
    outputs = np.maximum(x @ w1, 0) @ w2  # [experts, tokens, 4]
    return gates.T[:, :, None] * outputs


def experts(answer: object) -> str | None:
    x, _, w1, w2 = toy()
    by_rank = pieces().reshape(RANKS, EXPERTS_OF_A_RANK, *x.shape).sum(axis=1)
    if not isinstance(answer, Iterable):
        return "give a list of four arrays, one for each rank"
    try:
        parts = [np.asarray(part, dtype=float) for part in answer]
    except (TypeError, ValueError):
        return "give a list of four arrays, one for each rank"
    if len(parts) != RANKS or any(part.shape != x.shape for part in parts):
        return f"give a list of {RANKS} arrays, each of the shape of x, {x.shape}"
    if np.allclose(parts, by_rank):
        return None
    whole = by_rank.sum(axis=0)
    if any(np.allclose(part, whole) for part in parts):
        return "one of them is the whole already: a rank has only two of the eight experts"
    if np.allclose(sum(parts), whole):
        return "they add up, but rank 0 has the experts 0 and 1, rank 1 has 2 and 3, and so on"
    outputs = np.maximum(x @ w1, 0) @ w2
    if np.allclose(sum(parts), outputs.sum(axis=0)):
        return "each expert has answered every token; a token goes to its two chosen experts only"
    if np.allclose(sum(parts), np.where(pieces() != 0, outputs, 0).sum(axis=0)):
        return "the gates are missing: each expert's output counts as much as its gate says"
    return "their sum is not what the whole layer gives"


def which(answer: dict) -> str | None:
    for name, right in RIGHT.items():
        way = called(answer[name], WAYS)
        if way not in WAYS:
            return f"{name} is {way!r}; choose one of {', '.join(WAYS)}"
        if way != right:
            return f"{name}: {WHY_NOT[name][way]}"
    return None

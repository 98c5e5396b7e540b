"""Judges of notebook 13's exercises that ask for more than a number. Their words: e13_scale_out.toml."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from workshop.learn.judging import not_a_number

RANKS, EXPERTS_OF_A_RANK, ENOUGH_PERCENT = 4, 2, 95
WAYS = {
    "replicas": "whole copies behind a router that knows prefixes",
    "TP": "tensor parallel over all GPUs of a node",
    "DP + EP": "data parallel, the experts shared out",
    "apart": "some servers for prefill, others for decode",
}
SERVICES = {
    "A": ("Llama 3.1 8B on 4 H100", "300 students; each question begins with one of 32 handbooks"),
    "B": ("DeepSeek V3 on 8 H200", "one researcher at a time, who waits for each answer"),
    "C": ("DeepSeek V3 on 8 H200", "hundreds of users with long conversations"),
    "D": ("Llama 3.3 70B on 16 H100", "voices: no pause between two tokens, while others send long documents"),
}
RIGHT = {"A": "replicas", "B": "TP", "C": "DP + EP", "D": "apart"}
WHY_NOT = {
    (
        "A",
        "TP",
    ): "A: 8B fits one GPU, and splitting it gives no more room for handbooks than copies do; think of who has read which",
    ("A", "DP + EP"): "A: a dense model has no experts to share out",
    ("A", "apart"): "A: then the same handbook is read for each question; what saves this work?",
    ("B", "replicas"): "B: one H200 is too small for a copy of it",
    ("B", "DP + EP"): "B: look at the tokens/s of one stream in the table",
    ("B", "apart"): "B: with one user nobody's prompt disturbs anybody",
    ("C", "replicas"): "C: one H200 is too small for a copy of it",
    ("C", "TP"): "C: there every GPU keeps the same copy of each latent; look at the KV tokens in the table",
    ("C", "apart"): "C: eight GPUs hold it once; there is no second server",
    ("D", "replicas"): "D: in each copy a long document still shares its steps with somebody's answer",
    ("D", "TP"): "D: with more GPUs the steps of a long document are shorter, but answers still share them",
    ("D", "DP + EP"): "D: a dense model has no experts to share out",
}


class Toy(NamedTuple):
    """A small mixture of experts: x [12 tokens, 4], router [4, 8 experts], W1 [8, 4, 6], W2 [8, 6, 4]."""

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
    """Return what each (token, expert) pair adds to each token, gates included: [8 experts, 12 tokens, 4]."""
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
    try:
        given = [np.asarray(part, dtype=float) for part in answer]
    except (TypeError, ValueError):
        return "give a list of four arrays, one for each rank"
    if len(given) != RANKS or any(part.shape != x.shape for part in given):
        return f"give a list of {RANKS} arrays, each of the shape of x, {x.shape}"
    if all(np.allclose(part, mine) for part, mine in zip(given, by_rank, strict=True)):
        return None
    if any(np.allclose(part, by_rank.sum(axis=0)) for part in given):
        return "one of them is the whole already: a rank has only two of the eight experts"
    if np.allclose(sum(given), by_rank.sum(axis=0)):
        return "they add up, but rank 0 has the experts 0 and 1, rank 1 has 2 and 3, and so on"
    outputs = np.maximum(x @ w1, 0) @ w2
    if np.allclose(sum(given), outputs.sum(axis=0)):
        return "each expert has answered every token; a token goes to its two chosen experts only"
    if np.allclose(sum(given), np.where(pieces() != 0, outputs, 0).sum(axis=0)):
        return "the gates are missing: each expert's output counts as much as its gate says"
    return "their sum is not what the whole layer gives"


def which(answer: object) -> str | None:
    if not isinstance(answer, dict) or set(answer) != set(RIGHT):
        return f"give all of {', '.join(RIGHT)}, each with one of {', '.join(WAYS)}"
    for name, right in RIGHT.items():
        way = answer[name]
        if way not in WAYS:
            return f"{name} is {way!r}; choose one of {', '.join(WAYS)}"
        if way != right:
            return WHY_NOT[name, way]
    return None


def service(answer: object) -> str | None:
    if not isinstance(answer, list | tuple) or len(answer) != 4 or not isinstance(answer[2], dict):
        return "give (people, every_s, sizes, your number of replicas)"
    people, every_s, sizes, chosen = answer
    if problem := not_a_number(chosen, "replicas"):
        return problem
    if chosen not in sizes:
        return f"{chosen:g} replicas were not simulated; {', '.join(map(str, sizes))} were"
    asked, came = people / every_s, sizes[chosen]["requests_per_s"]
    chance = 0.1 + 4 / math.sqrt(sizes[chosen]["requests"])  # arrivals are drawn: few of them vary much
    if abs(came - asked) > chance * asked:
        return f"your group asks {asked:.3g} times a second, and {came:.3g} a second were simulated: run the simulation again"
    enough = [count for count, row in sizes.items() if row["within_limits_percent"] >= ENOUGH_PERCENT]
    if not enough:
        return f"no row keeps the limits for {ENOUGH_PERCENT} of 100 requests: simulate more replicas"
    if chosen not in enough:
        within = sizes[chosen]["within_limits_percent"]
        return f"with {chosen:g} only {within:g} of 100 requests stay within the limits; {ENOUGH_PERCENT} have to"
    return None if chosen == min(enough) else f"fewer are enough: {min(enough)} keep the limits, too"

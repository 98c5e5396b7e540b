from itertools import combinations

import numpy as np

from workshop.course.exercises.sets import texts

CLUSTERS = texts("e02_parallelism")["parallelism.decide"]["clusters"]
DECIDED = {"A": (1, 1), "B": (4, 1), "C": (8, 2), "D": (1, 4)}  # by the rule of vLLM's guide

ROUNDED = 0.011  # two digits after the point, in each of two parts
GIVE_BOTH = "give both partial results, as (y0, y1)"


def decide(answer: dict) -> str | None:
    for name, (tp, pp) in DECIDED.items():
        split = ()
        if isinstance(answer[name], list | tuple):
            split = tuple(answer[name])
        if len(split) != 2:
            pair = "(tensor_parallel_size, pipeline_parallel_size)"
            return f"{name} is {answer[name]!r}; give {pair}"
        # two of the T4 hold it already
        if split == (tp, pp) or (name == "D" and split in ((1, 2), (1, 3))):
            continue
        if name == "A":
            return (
                "A: one H100 holds it, so nothing is split; "
                "four copies answer four times as many requests"
            )
        if split == (1, 1):
            return f"{name}: one GPU is too small for it; all that you have share it"
        if name == "D" and split[0] == 1:
            return f"D: PP alone is right, but the node has 4 GPUs, and {split[1]} would be needed"
        if name == "D":
            return "D: 71 heads can only be divided by 1 and 71; split by layers instead"
        if name == "B" and split == (2, 1):
            return (
                "B: two hold the weights, with little room for KV cache; "
                "the rule takes all GPUs of the node"
            )
        if split == (16, 1):
            return (
                "C: that works on a fast network; the rule keeps TP inside a node, and PP = nodes"
            )
        if split == (pp, tp):
            rule = "tensor parallel inside the node, pipeline parallel over nodes"
            return f"{name}: the other way round: {rule}"
        rule = "tensor_parallel_size = GPUs of a node, pipeline_parallel_size = nodes"
        return f"{name}: {rule}; not {split}"
    return None


def partial_sums(answer: object) -> str | None:
    x, w1, w2 = toy()
    hidden = np.maximum(x @ w1, 0)
    expected = hidden @ w2
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return GIVE_BOTH
    try:
        first, second = (np.asarray(part, dtype=float) for part in answer)
    except (TypeError, ValueError):
        return GIVE_BOTH
    if first.shape != expected.shape or second.shape != expected.shape:
        return f"each GPU's partial result has the shape of the whole, {expected.shape}"
    if _close(first, expected) or _close(second, expected):
        return "one of them is the whole already: each GPU has only half of the hidden numbers"
    if _close(first + second, x @ w1 @ w2):
        return (
            "f is missing: each GPU makes its negative hidden numbers 0 "
            "before it multiplies by its rows of W2"
        )
    if not _close(first + second, expected):
        return (
            "their sum is not what one GPU would compute: "
            "the rows of W2 must match the columns of W1"
        )
    if _close(first, second):
        return "both are the same, but each GPU has other columns of W1 and other rows of W2"
    for columns in combinations(range(8), 4):
        half = list(columns)
        if _close(first, hidden[:, half] @ w2[half]):
            return None
    return (
        "they add up, but each has to be what four of the hidden numbers give, "
        "with their four rows of W2"
    )


def _close(first: np.ndarray, second: np.ndarray) -> bool:
    """Return True if two arrays agree, also if they were rounded to two digits after the point."""
    return np.allclose(first, second, rtol=0, atol=ROUNDED)


def toy():
    """Return x, W1, W2 of the notebook's small MLP: [2, 4], [4, 8], [8, 4]."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(2, 4)), rng.normal(size=(4, 8)), rng.normal(size=(8, 4))

"""Exercises of notebook 02: how a model is split over GPUs, what that costs, and what the engine's log then says."""

from __future__ import annotations

from collections.abc import Mapping

from workshop.learn.exercises import Exercise, close_to

CLUSTERS = {  # what the exercise "decide" asks; the rule is that of vLLM's guide
    "A": ("Llama 3.1 8B", "1 node with 1 H100"),
    "B": ("Llama 3.3 70B", "1 node with 4 H100"),
    "C": ("Llama 3.1 405B", "2 nodes with 8 H100 each"),
    "D": ("Falcon 7B, which has 71 heads", "1 node with 4 T4, each too small"),
}
DECIDED = {"A": (1, 1), "B": (4, 1), "C": (8, 2), "D": (1, 4)}


def _decide(answer: object) -> str | None:
    if not isinstance(answer, Mapping) or set(answer) != set(DECIDED):
        return f"give all of {', '.join(DECIDED)}, each as (tensor_parallel_size, pipeline_parallel_size)"
    for name, (tp, pp) in DECIDED.items():
        given = answer[name]
        if not isinstance(given, tuple | list) or len(given) != 2:
            return f"{name} is {given!r}; give (tensor_parallel_size, pipeline_parallel_size)"
        if tuple(given) == (tp, pp):
            continue
        if name == "A":
            return "A: the model fits on one GPU, so nothing is split"
        if name == "D" and tuple(given) == (1, 1):
            return "D: one T4 is too small for it; all four have to share it"
        if name == "D":
            return "D: 71 heads can only be divided by 1 and 71; split by layers instead"
        if tuple(given) == (16, 1):
            return "C: that works on a fast network; the rule keeps TP inside a node, and PP = nodes"
        if tuple(given) == (pp, tp):
            return f"{name}: the other way round: tensor parallel inside the node, pipeline parallel over nodes"
        return f"{name}: tensor_parallel_size = GPUs of a node, pipeline_parallel_size = nodes; not {tuple(given)}"
    return None


def _partial_sums(answer: object) -> str | None:
    import numpy as np

    x, w1, w2 = toy()
    expected = np.maximum(x @ w1, 0) @ w2
    try:
        first, second = (np.asarray(part, dtype=float) for part in answer)
    except (TypeError, ValueError):
        return "give both partial results, as (y0, y1)"
    if first.shape != expected.shape or second.shape != expected.shape:
        return f"each GPU's partial result has the shape of the whole, {expected.shape}"
    if np.allclose(first, expected) or np.allclose(second, expected):
        return "one of them is the whole already: each GPU has only half of the hidden numbers"
    if not np.allclose(first + second, expected):
        return "their sum is not what one GPU would compute: the rows of W2 must match the columns of W1"
    if np.allclose(first, second):
        return "both are the same, but each GPU has other columns of W1 and other rows of W2"
    return None


def toy():
    """Return x, W1, W2 of the notebook's small MLP: [2, 4], [4, 8], [8, 4]."""
    import numpy as np

    rng = np.random.default_rng(1)
    return rng.normal(size=(2, 4)), rng.normal(size=(4, 8)), rng.normal(size=(8, 4))


EXERCISES = {
    "parallelism.nvlink": Exercise(
        "GB/s of all NVLinks of a node of four",
        close_to(
            900,
            unit="GB/s",
            rel=1e-6,
            near_misses={
                450: "that is one direction; each link works in both at once",
                225: "that is one GPU to its three neighbours",
                1800: "count every pair once: GPU 0–1 is the same link as GPU 1–0",
                600: "four GPUs make more than four pairs",
                300: "four GPUs make more pairs than that",
            },
        ),
        ("How many pairs can four GPUs make?", "75 GB/s · 6 pairs · 2 directions"),
    ),
    "parallelism.partial_sums": Exercise(
        "The two GPUs' partial results",
        _partial_sums,
        (
            "GPU 0 has W1[:, :4] and W2[:4], GPU 1 the rest.",
            "y0 = np.maximum(x @ W1[:, :4], 0) @ W2[:4], and y1 with the other halves.",
        ),
    ),
    "parallelism.decide": Exercise(
        "TP and PP for four clusters",
        _decide,
        (
            "Fits one GPU? (1, 1). One node: TP = its GPUs. More nodes: PP = nodes.",
            "Only D is special: its heads do not divide, so TP 1 and PP = GPUs.",
        ),
    ),
    "parallelism.all_reduce_bytes": Exercise(
        "Bytes of all-reduce for one token of 405B, TP 8",
        close_to(
            2 * 126 * 16384 * 2,
            unit="bytes",
            rel=1e-6,
            near_misses={
                126 * 16384 * 2: "that is half: there are two all-reduces a layer, and each number has 2 bytes",
                2 * 16384 * 2: "that is one layer; there are 126",
                8 * 2 * 126 * 16384 * 2: "the payload is the same however many GPUs add it up",
                16 * 2 * 126 * 16384 * 2: "one token, not 16",
                7.875: "that is in MiB; the question asks for bytes",
            },
        ),
        ("Two all-reduces a layer, each of hidden_size numbers of 2 bytes.", "2 * 126 * 16384 * 2"),
    ),
    "parallelism.tokens_tp2": Exercise(
        "KV-cache tokens with tensor parallel 2 and the same bytes a GPU",
        close_to(
            131072,
            unit="tokens",
            rel=1e-6,
            near_misses={
                65536: "that is with one rank; with two, each keeps half of every token's heads",
                32768: "two ranks: more room for tokens, not less",
                262144: "two ranks, not four",
            },
        ),
        (
            "Each rank keeps 1 of the 2 KV heads: half the bytes a token, in the same bytes a rank.",
            "64 MiB / (4 layers · 2 · 1 head · 32 · 2 bytes)",
        ),
    ),
}

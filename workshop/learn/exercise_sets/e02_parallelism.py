"""Exercises of notebook 02: how a model is split over GPUs, what that costs, and what the engine's log then says."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from workshop.learn.judging import Exercise, exactly, pair

CLUSTERS = {  # what the exercise "decide" asks; the rule is that of vLLM's guide
    "A": ("Llama 3.1 8B", "1 node with 1 H100"),
    "B": ("Llama 3.3 70B", "1 node with 4 H100"),
    "C": ("Llama 3.1 405B", "2 nodes with 8 H100 each"),
    "D": ("Falcon 7B, which has 71 heads", "1 node with 4 T4, each too small"),
}
DECIDED = {"A": (1, 1), "B": (4, 1), "C": (8, 2), "D": (1, 4)}


def _decide(answer: object) -> str | None:
    if not isinstance(answer, dict) or set(answer) != set(DECIDED):
        return f"give all of {', '.join(DECIDED)}, each as (tensor_parallel_size, pipeline_parallel_size)"
    for name, (tp, pp) in DECIDED.items():
        given = pair(answer[name])
        if given is None:
            return f"{name} is {answer[name]!r}; give (tensor_parallel_size, pipeline_parallel_size)"
        if given == (tp, pp):
            continue
        if name == "A":
            return "A: the model fits on one GPU, so nothing is split"
        if name == "D" and given == (1, 1):
            return "D: one T4 is too small for it; all four have to share it"
        if name == "D":
            return "D: 71 heads can only be divided by 1 and 71; split by layers instead"
        if given == (16, 1):
            return "C: that works on a fast network; the rule keeps TP inside a node, and PP = nodes"
        if given == (pp, tp):
            return f"{name}: the other way round: tensor parallel inside the node, pipeline parallel over nodes"
        return f"{name}: tensor_parallel_size = GPUs of a node, pipeline_parallel_size = nodes; not {given}"
    return None


def _partial_sums(answer: object) -> str | None:
    x, w1, w2 = toy()
    hidden = np.maximum(x @ w1, 0)
    expected = hidden @ w2
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
    halves = (list(columns) for columns in combinations(range(8), 4))
    if any(np.allclose(first, hidden[:, half] @ w2[half]) for half in halves):
        return None
    return "they add up, but each has to be what four of the hidden numbers give, with their four rows of W2"


def toy():
    """Return x, W1, W2 of the notebook's small MLP: [2, 4], [4, 8], [8, 4]."""
    rng = np.random.default_rng(1)
    return rng.normal(size=(2, 4)), rng.normal(size=(4, 8)), rng.normal(size=(8, 4))


EXERCISES = {
    "parallelism.nvlink": Exercise(
        "GB/s of all NVLinks of a node of four",
        exactly(900, "GB/s"),
        "How many pairs can four GPUs make?",
        "Each pair has one link, and each link carries 75 GB/s there and 75 GB/s back at the same time.",
        wrong={
            450: "that is one direction; each link works in both at once",
            225: "that is one GPU to its three neighbours",
            1800: "count every pair once: GPU 0–1 is the same link as GPU 1–0",
            600: "four GPUs make more than four pairs",
            300: "four GPUs make more pairs than that",
        },
    ),
    "parallelism.partial_sums": Exercise(
        "The two GPUs' partial results",
        _partial_sums,
        "The cell above computes the whole. GPU 0 does the same with the columns W1[:, :4] and the rows W2[:4].",
        "Four columns of W1, then np.maximum(…, 0), then the four rows of W2 with the same numbers. Once for each GPU.",
    ),
    "parallelism.decide": Exercise(
        "TP and PP for four clusters",
        _decide,
        "Take the four rules from the top: the first that is true of a cluster decides it.",
        "For B and C the node's GPUs and the number of nodes are the two numbers. What can 71 heads be divided by?",
    ),
    "parallelism.all_reduce_bytes": Exercise(
        "Bytes of all-reduce for one token of 405B, TP 8",
        exactly(2 * 126 * 16384 * 2, "bytes"),
        "Two all-reduces a layer, each of hidden_size numbers of 2 bytes.",
        "First the bytes of one all-reduce. Then: how many all-reduces do all layers make for one token?",
        wrong={
            126 * 16384 * 2: "that is half: there are two all-reduces a layer, and each number has 2 bytes",
            2 * 16384 * 2: "that is one layer; there are 126",
            8 * 2 * 126 * 16384 * 2: "the payload is the same however many GPUs add it up",
            16 * 2 * 126 * 16384 * 2: "one token, not 16",
            7.875: "that is in MiB; the question asks for bytes",
        },
    ),
    "parallelism.tokens_tp2": Exercise(
        "KV-cache tokens with tensor parallel 2 and the same bytes a GPU",
        exactly(131072, "tokens"),
        "What does one of two ranks keep of every token, if there are two KV heads?",
        "The bytes of a token on one rank change, the 64 MiB of a rank do not. Divide again.",
        wrong={
            65536: "that is with one rank; with two, each keeps half of every token's heads",
            32768: "two ranks: more room for tokens, not less",
            262144: "two ranks, not four",
            1024: "those are the bytes of one token; the question asks for tokens",
            512: "those are the bytes of one token on each rank; the question asks for tokens",
        },
    ),
}

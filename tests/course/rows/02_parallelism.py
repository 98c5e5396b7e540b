"""Rows of test_every_check for notebook 02."""

from __future__ import annotations

import numpy as np

from workshop.course.exercises.sets.e02_parallelism import DECIDED, toy


def parts(first, second):
    x, w1, w2 = toy()
    return tuple(np.maximum(x @ w1[:, half], 0) @ w2[half] for half in (first, second))


def without_f():
    x, w1, w2 = toy()
    return x @ w1[:, :4] @ w2[:4], x @ w1[:, 4:] @ w2[4:]


def whole():
    x, w1, w2 = toy()
    return np.maximum(x @ w1, 0) @ w2


HALVES = parts(slice(0, 4), slice(4, 8))

ROWS = {
    "parallelism.nvlink": (
        [1800],
        [
            (1780, "too small"),
        ],
    ),
    "parallelism.partial_sums": (
        [
            HALVES,
            HALVES[::-1],
            parts(slice(0, None, 2), slice(1, None, 2)),
            [half.tolist() for half in HALVES],
            tuple(half.round(2) for half in HALVES),
        ],
        [
            (parts(slice(0, 8), slice(0, 8)), "whole already"),
            (parts(slice(0, 4), slice(0, 4)), "must match"),
            ([whole() / 2] * 2, "other columns"),
            (without_f(), "f is missing"),
            ((0.3 * whole(), 0.7 * whole()), "four of the hidden numbers"),
            (parts(slice(0, 3), slice(3, 8)), "four of the hidden numbers"),
            ((np.ones(4), np.ones(4)), "shape"),
            (3, "both partial results"),
        ],
    ),
    "parallelism.decide": (
        [
            DECIDED,
            {name.lower(): split for name, split in DECIDED.items()},
            {name: list(split) for name, split in DECIDED.items()},
            *({**DECIDED, "D": (1, pp)} for pp in (2, 3)),
        ],
        [
            ({**DECIDED, "A": (4, 1)}, "nothing is split"),
            ({**DECIDED, "D": (4, 1)}, "71"),
            ({**DECIDED, "D": (1, 1)}, "too small"),
            ({**DECIDED, "D": (1, 71)}, "the node has 4 GPUs, and 71"),
            ({**DECIDED, "B": (1, 1)}, "too small"),
            ({**DECIDED, "B": (2, 1)}, "little room"),
            ({**DECIDED, "C": (2, 8)}, "other way"),
            ({**DECIDED, "C": (16, 1)}, "fast network"),
            ({**DECIDED, "C": (4, 4)}, "GPUs of a node"),
            ({**DECIDED, "B": 4}, "give (tensor"),
            ({"A": (1, 1)}, "all of"),
        ],
    ),
    "parallelism.all_reduce_bytes": (
        [8_257_536, (2, 126, 16384, 2), [126, 2, 2, 16384]],
        [
            (8_000_000, "too small"),
            ((126, 16384, 2), "give 4 numbers"),
        ],
    ),
    "parallelism.tokens_tp2": (
        [131072],
        [
            (131000, "too small"),
        ],
    ),
}

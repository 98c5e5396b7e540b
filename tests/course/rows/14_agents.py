"""Rows of test_every_check for notebook 14."""

from __future__ import annotations

import numpy as np


def row(within, per_s=15.2, requests=200):
    return {
        "within_limits_percent": within,
        "requests_per_s": per_s,
        "requests": requests,
        "gpus": 2,
    }


def point(seed, hits=0.0):
    return {"seed": seed, "prefix_hits_percent": hits, "tokens_per_s": 120.0}


def turns(first_prompt, *cached):
    return [{"prompt": first_prompt + 112 * n, "cached": c} for n, c in enumerate(cached)]


SIZES = {1: row(0.0), 2: row(77.7), 3: row(96.2), 4: row(100.0)}
SLOW = {1: row(40.0), 2: row(94.4)}
OTHER = {1: row(100.0, per_s=30)}
FEW = {1: row(100.0, per_s=0.8, requests=6)}  # 30 people, each once a minute: six came in 8 s

ROWS = {
    "agents.mend": (
        [[point(4711), point(815)], [point(1), point(2, 1.4), point(3)]],
        [
            ([point(4711)], "one measurement compares nothing"),
            ([point(0, 87.5), point(815)], "seed 0"),
            ([point(7), point(7, 87.5)], "the same seed"),
            ([point(7, 87.5), point(8)], "87.5 % of the prompts"),
            ([1, 2], "what nb14.bench returned"),
        ],
    ),
    "agents.place": (
        [turns(584, 0, 576, 672), turns(584, 480, 576)],
        [
            (turns(576, 0, 576, 672), "the time is gone"),
            (turns(584, 0, 0, 0), "nothing was found"),
            (turns(700, 0, 576), "change time_line alone"),
            ([], "what nb14.converse returned"),
            (["end"], "what nb14.converse returned"),
        ],
    ),
    "agents.fit": (
        [5, (4096 - 480) // 672],
        [
            (400, "too large"),
        ],
    ),
    "scale.in_flight": (
        [240, 1800 / 60 * 8],
        [
            (241, "too large"),
        ],
    ),
    "scale.service": (
        [(900, 60, SIZES, 3), (600, 40, SIZES, np.int64(3)), [900, 60, SIZES, 3], (30, 60, FEW, 1)],
        [
            ((900, 60, SIZES, 2), "only 77.7 of 100"),
            ((900, 60, SIZES, 4), "fewer are enough: 3"),
            ((900, 60, SIZES, 5), "not simulated; 1, 2, 3, 4 were"),
            ((900, 60, SLOW, 2), "simulate more replicas"),
            (
                (900, 60, OTHER, 1),
                "your group asks 15 times a second, and 30 a second were simulated",
            ),
            ((900, 60, SIZES, "3"), "without quotes"),
            (3, "give (people, every_s, sizes"),
        ],
    ),
}

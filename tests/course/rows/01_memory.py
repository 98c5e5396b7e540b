"""Rows of test_every_check for notebook 01."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from workshop.course.exercises.sets.e01_memory import TIGHT
from workshop.course.widgets.memory.case import MemoryCase

TIGHT_CASE = MemoryCase(**TIGHT)

ROWS = {
    "memory.weights_405b": (
        [810, 405e9 * 2 / 1e9],
        [
            (807, "too small"),
            (800, "too small"),
            (820, "too large"),
            ("810", "without quotes"),
            ("405*2", "without quotes"),
            ((405, 2), "write * between them"),
            ("810 GB", "without the unit"),
        ],
    ),
    "memory.gpus_405b": (
        [
            {"H100": 11, "A100": 21},
            {"h100": 11, "a100": 21},
            {"A100": 21.0, "H100": np.int64(11)},
        ],
        [
            ({"H100": 10, "A100": 20}, "round up"),
            ({"H100": 10.125, "A100": 21}, "part"),
            ({"H100": "11", "A100": "21"}, "without quotes"),
            ({"H100": 16, "A100": 21}, "fewer are enough"),
            ({"H100": 11, "A100": 2}, "too few"),
            (11, "give both"),
            ({"H100": 11, "A100": 21, "H200": 6}, "give both"),
            ((11, 21), "give both"),
        ],
    ),
    "memory.kv_bytes_per_token": (
        [131072, (2, 32, 8, 128, 2), [2, 32, np.int64(8), 128.0, 2]],
        [
            ((2, 32, 32, 128, 2), "8 KV heads"),
            ((2, 32, 8, 64, 2), "K or V"),
            ((131, 72), "commas"),
            ((2, 32, 8, 128), "give 5 numbers"),
            ((2, 32, "8", 128, 2), "give 8 as a number"),
            (131000, "too small"),
            ("128 KiB", "without the unit: it is bytes"),
        ],
    ),
    "memory.kv_request_70b": (
        [39.0625, 39.06, 39.1],
        [
            (39.4, "too large"),
            ([80, 8, 128, 2, 2, 128_000], "is it in GiB"),
        ],
    ),
    "memory.fewest_h100": (
        [3],
        [
            (5, "too large"),
        ],
    ),
    "memory.one_change": (
        [
            replace(TIGHT_CASE, kv_cache_dtype="fp8"),
            replace(TIGHT_CASE, gpus=8),
            SimpleNamespace(case=replace(TIGHT_CASE, gpus=8)),
        ],
        [
            (TIGHT_CASE, "nothing is changed"),
            (replace(TIGHT_CASE, requests=8), "fewer requests"),
            (replace(TIGHT_CASE, context=65536), "shorter context"),
            (replace(TIGHT_CASE, gpus=8, kv_cache_dtype="fp8"), "2 changes"),
            (replace(TIGHT_CASE, weights="fp8"), "not 16"),
            ("fp8", "sliders.case"),
        ],
    ),
}

"""Rows of test_every_check for notebook 09."""

from __future__ import annotations

import numpy as np

ROWS = {
    "elsewhere.codes": (
        [[3, -2, 1, -7], (3, -2, 1, -7), np.array([3, -2, 1, -7]), [3.0, -2.0, 1.0, -7.0]],
        [
            ([2, -1, 0, -7], "instead of cutting off"),
            ([3, -2, 1, -8], "-7.20"),
            ([2.6, -1.75, 0.65, -7.2], "whole number"),
            ([3, -2], "one for each weight"),
            ([3, -2, 1, -9], "from -8 to 7"),
            (None, "four whole numbers"),
        ],
    ),
    "elsewhere.bits": (
        [4.15625, 4.156, 4.16],
        [
            (4.2, "too large"),
        ],
    ),
    "bits.experts": (
        [1 - (1 - 8 / 128) ** 16, 0.644, 0.64, 0.65],
        [
            ((15 / 16) ** 16, "no token picks"),
            (64.4, "not percent"),
            (82.4, "divide by 128"),
            (1 - (1 - 1 / 128) ** 16, "picks 8 experts"),
            (0.5, "too small"),
        ],
    ),
    "bits.window": (
        [2.3125, 2.31, 2.3],
        [
            (3, "too large"),
        ],
    ),
    "elsewhere.jamba": (
        [16384],
        [
            (16000, "too small"),
        ],
    ),
    "bits.coin": (
        [67 / 1024, 0.0654, 0.065],
        [
            (67 / 2048, "one side"),
            (110 / 2048, "exactly two"),
            (55 / 2048, "exactly two, on one side"),
            (9 / 11, "share that got worse"),
            (0.5, "too large"),
        ],
    ),
    "bits.nvfp4": (
        [4.5, 4.50],
        [],
    ),
    "bits.lora": (
        [27.262976, 27.3, 27.26],
        [
            (13.631488, "2 bytes"),
            (0.851968, "one layer"),
            (2684.35456, "matrix itself"),
            (33.554432, "1,024 outputs"),
        ],
    ),
}

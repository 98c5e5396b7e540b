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
            (4, "zero point"),
            (4.125, "4 bits more"),
            (24, "serve 128"),
            (4.3125, "has 128"),
            (0.15625, "own code"),
            (4.25, "a zero point has 4"),
            (4.2, "too large"),
        ],
    ),
    "bits.experts": (
        [1 - (1 - 8 / 128) ** 16, 0.644, 0.64, 0.65],
        [
            (1, "several of them pick the same"),
            (1 / 16, "one token reads"),
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
            (12, "keep only 1,024"),
            (2, "keep something, too"),
            (0.3125, "alone"),
            (2.483, "GB"),
            (2_483_027_968, "in bytes"),
            (1.15625, "K and V"),
            (4.625, "share 8 KV heads"),
            (3, "too large"),
        ],
    ),
    "elsewhere.jamba": (
        [16384],
        [
            (131072, "4 of its 32"),
            (8192, "twice that"),
            (65536, "not 32"),
            (16, "KiB"),
            (114688, "Mamba layers"),
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
            (6.54, "not percent"),
            (0.5, "too large"),
        ],
    ),
    "bits.nvfp4": (
        [4.5, 4.50],
        [
            (4, "also stores a scale"),
            (5, "8 bits and not 16"),
            (12, "serves 16"),
            (4.25, "64 weights"),
            (4.15625, "AWQ"),
            (6.5, "whole matrix"),
        ],
    ),
    "bits.lora": (
        [27.262976, 27.3, 27.26],
        [
            (13.631488, "2 bytes"),
            (13_631_488, "those are numbers"),
            (27_262_976, "in bytes"),
            (0.851968, "one layer"),
            (26, "MiB"),
            (2684.35456, "matrix itself"),
            (33.554432, "1,024 outputs"),
        ],
    ),
}

"""Rows of test_every_check for notebook 08."""

from __future__ import annotations

import numpy as np

FIVE = ["dtype", "startup", "shm", "volume", "key"]
SMALL = ["Standard_NC64as_T4_v3", "g4dn.12xlarge", "Standard_NC24ads_A100_v4"]  # 59, 59 and 79 GiB for 131.4

ROWS = {
    "elsewhere.faults": (
        [FIVE, set(FIVE), tuple(FIVE), np.array(FIVE)],
        [
            (["dtype"], "1 of 5"),
            ([*FIVE, "user"], "'user' is not broken"),
            (["colour"], "no policy 'colour'"),
            ("dtype", "a list"),
            (5, "a list"),
        ],
    ),
    "elsewhere.disk": (
        [141.1, 141, 70.55 * 2],
        [
            (131.4, "GiB"),
            (70.55, "two bytes"),
            (282.2, "not four"),
            (141.1e9, "10**9"),
            (1128.8, "gigabits"),
            (140, "too small"),
        ],
    ),
    "elsewhere.machines": (
        [SMALL, set(SMALL), np.array(SMALL)],
        [
            ([*SMALL, "p5.48xlarge"], "does hold it"),
            (SMALL[:1], "2 more"),
            ([], "3 more"),
            (["laptop"], "no machine"),
            (SMALL[0], "list or set"),
        ],
    ),
    "elsewhere.codes": (
        [[3, -2, 1, -7], (3, -2, 1, -7), np.array([3, -2, 1, -7]), [3.0, -2.0, 1.0, -7.0]],
        [
            ([2, -1, 0, -7], "instead of cutting off"),
            ([3, -2, 1, -8], "-7.20"),
            ([2.6, -1.75, 0.65, -7.2], "whole number"),
            ([3, -2], "4 codes"),
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
            (4.2, "too large"),
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
}

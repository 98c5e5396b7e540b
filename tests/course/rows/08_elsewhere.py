"""Rows of test_every_check for notebook 08."""

from __future__ import annotations

import numpy as np

FIVE = ["dtype", "startup", "shm", "volume", "key"]
# 59, 59, 79, 186 and 176 GiB for 228.4
SMALL = [
    "Standard_NC64as_T4_v3",
    "g4dn.12xlarge",
    "Standard_NC24ads_A100_v4",
    "Standard_NC80adis_H100_v5",
    "g5.48xlarge",
]

ROWS = {
    "elsewhere.faults": (
        [FIVE, set(FIVE), tuple(FIVE), np.array(FIVE), [name.title() for name in FIVE]],
        [
            (["dtype"], "1 of 5"),
            ([*FIVE, "user"], "'user' is not broken"),
            (["colour"], "no policy 'colour'"),
            ("dtype", "a list"),
            (5, "a list"),
        ],
    ),
    "elsewhere.ids": (
        [
            ["runAsUser", "fsGroup"],
            {"fsGroup", "runAsUser"},
            ["RunAsUser", "fsgroup"],
            np.array(["runAsUser", "fsGroup"]),
        ],
        [
            (["runAsUser"], "1 more must go"),
            ([], "2 more must go"),
            (["runAsUser", "fsGroup", "runAsNonRoot"], "only forbids root"),
            (["fsGroupChangePolicy"], "when files change their group"),
            (["seccompProfile"], "may stay"),
            ([2000], "there is no '2000' here"),
            ("runAsUser", "give a list"),
        ],
    ),
    # kubernetes.io, HorizontalPodAutoscaler: an AverageValue is the total divided by the target, rounded up.
    "elsewhere.replicas": (
        [7, 7.0, 33 // 5 + 1],
        [
            (6.6, "round up"),
            (6, "round up"),
            (2, "running requests"),
            (9, "the result is the total"),
            (14, "all servers together"),
            (4, "all servers together"),
        ],
    ),
    "elsewhere.grace": (
        [95, 95.0, 15 + 2000 / 25],
        [
            (80, "preStop counts"),
            (15, "preStop alone"),
            (65, "do not subtract"),
            (30, "default"),
            (2015, "tokens"),
        ],
    ),
    "elsewhere.disk": (
        [244.2, 244, 122.1 * 2],
        [
            (227.4, "GiB"),
            (122.1, "two bytes"),
            (488.4, "not four"),
            (244.2e9, "10**9"),
            (1953.6, "gigabits"),
            (240, "too small"),
        ],
    ),
    "elsewhere.machines": (
        [SMALL, set(SMALL), np.array(SMALL)],
        [
            ([*SMALL, "p5.48xlarge"], "does hold it"),
            (SMALL[:1], "4 more"),
            ([], "5 more"),
            (["laptop"], "no machine"),
            (SMALL[0], "list or set"),
        ],
    ),
}

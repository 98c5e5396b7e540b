"""Rows of test_every_check for notebook 08."""

from __future__ import annotations

import numpy as np
from check_rows import MANIFEST_FAULTS, TOO_SMALL_MACHINES

ROWS = {
    "elsewhere.faults": (
        [
            MANIFEST_FAULTS,
            set(MANIFEST_FAULTS),
            tuple(MANIFEST_FAULTS),
            np.array(MANIFEST_FAULTS),
            [name.title() for name in MANIFEST_FAULTS],
        ],
        [
            (["dtype"], "1 of 5"),
            ([*MANIFEST_FAULTS, "user"], "'user' is not broken"),
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
        [],
    ),
    "elsewhere.grace": (
        [95, 95.0, 15 + 2000 / 25],
        [],
    ),
    "elsewhere.disk": (
        [244.2, 244, 122.1 * 2],
        [
            (240, "too small"),
        ],
    ),
    "elsewhere.machines": (
        [TOO_SMALL_MACHINES, set(TOO_SMALL_MACHINES), np.array(TOO_SMALL_MACHINES)],
        [
            ([*TOO_SMALL_MACHINES, "p5.48xlarge"], "does hold it"),
            (TOO_SMALL_MACHINES[:1], "4 more"),
            ([], "5 more"),
            (["laptop"], "no machine"),
            (TOO_SMALL_MACHINES[0], "list or set"),
        ],
    ),
}

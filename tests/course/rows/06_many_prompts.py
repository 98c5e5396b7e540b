"""Rows of test_every_check for notebook 06."""

from __future__ import annotations

import pandas as pd

from workshop.course.topics.timeline import Span

# Eight requests by four threads: the first four take 4, 1, 1 and 1 s, the others begin as threads become free.
SPANS = [
    Span("", sent, sent + 0.1, sent + seconds, 10)
    for sent, seconds in ((0, 4), (0, 1), (0, 1), (0, 1), (1, 2), (1, 1), (1, 1), (2, 1))
]
LATER = [*SPANS[:4], *(Span("", 3 + n, 4 + n, 5.5 + n, 10) for n in (0, 0.1, 0.2, 0.4))]
SWEEP = {1: (100, 1.0), 2: (190, 1.1), 4: (300, 1.4), 8: (380, 2.2), 16: (400, 4.5)}

ROWS = {
    "many.waves": (
        [{3: 1, 4: 1, 5: 2}, pd.Series({3: 1, 4: 1, 5: 2})],
        [
            ({3: 1, 4: 1, 5: 1}, "fifth"),
            ({3: 1, 4: 2, 5: 2}, "4 prompts"),
            ({3: 3, 4: 4, 5: 5}, "3 prompts"),
            ({3: 1, 4: 1, 5: 5}, "only the fifth"),
            ({3: 1, 4: 1, 5: "2"}, "5 prompts: give 2 as a number"),
            ([1, 1, 2], "a dict"),
        ],
    ),
    "many.barrier": (
        [(SPANS, 4 + 2), (LATER, 6.5)],
        [
            ((SPANS, 4), "slowest request"),
            ((SPANS, 12), "one after the other"),
            ((SPANS, 3), "no thread ever waited"),
            ((LATER, 5.9), "four threads"),
            ((SPANS, 9), "too large"),
            ((SPANS, "6"), "without quotes"),
            (6, "the spans"),
            ((4, 6), "the spans"),
        ],
    ),
    "many.knee": (
        [(SWEEP, 8)],
        [
            ((SWEEP, 16), "4.5 times"),
            ((SWEEP, 4), "another number gives more"),
            ((SWEEP, 1), "another number gives more"),
            ((SWEEP, 3), "not measured"),
            ((SWEEP, "8"), "without quotes"),
            (8, "give (sweep"),
        ],
    ),
    "many.kv_peak": (
        [(10_240, 1000, 0.39), (10_240, 1000, 0.390625), (10_240, 1000, 0.4)],
        [
            ((10_240, 1000, 39), "not percent"),
            ((10_240, 1000, 0.098), "one request"),
            ((10_240, 1000, 4000), "tokens"),
            ((10_240, 1000, 2.56), "other way round"),
            ((10_240, 1000, 0.609), "stays free"),
            ((10_240, 1000, 0.5), "too large"),
        ],
    ),
    "many.padding": (
        [1 - 550 / 1240, 0.5565, 0.556, 0.557],
        [
            (550 / 1240, "somebody wanted"),
            (690 / 550, "those that were wanted"),
            (1 - 550 / 1440, "longest of all"),
            (1 - 170 / 310, "compare tokens"),
            (0.3, "too small"),
        ],
    ),
}

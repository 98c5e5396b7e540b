"""Rows of test_every_check for notebook 12."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workshop.course.topics.speculation import DraftRun

RUN = DraftRun((), 5.0, drafts=100, drafted=400, accepted=130, accepted_at=(70, 40, 15, 5))

ROWS = {
    "guess.step": (
        [4],
        [
            ("4", "without quotes"),
            (6, "too large"),
        ],
    ),
    "guess.residual": (
        [[2 / 3, 0, 1 / 3, 0], (0.667, 0, 0.333, 0), [0.66, 0, 0.33, 0], np.array([2, 0, 1, 0]) / 3, pd.Series([0.67, 0, 0.33, 0])],
        [
            ([0.2, 0, 0.1, 0], "divide it by its sum"),
            ([0.2, -0.2, 0.1, -0.1], "below zero"),
            ([0.2, 0.2, 0.1, 0.1], "gets nothing more"),
            ([0.3, 0.3, 0.05, 0.05], "that are accepted"),
            ([0.5, 0.3, 0.15, 0.05], "model's own distribution"),
            ([0.5, 0.2, 0.2, 0.0], "add up to 0.90"),
            ([0.25, 0.25, 0.25, 0.25], "where p is below q"),
            ([0.7, 0, 0.3, 0], "two digits or more"),
            ([1 / 3, 0, 2 / 3, 0], "its own part"),
            ([1.0], "four numbers"),
        ],
    ),
    "guess.expected": (
        [3.3616, 3.36],
        [
            (0.8**4, "all four guesses"),
            ("3.36", "without quotes"),
        ],
    ),
    "guess.ngram": (
        [["or", "not", "to"], ("or", "not", "to"), "or not to", "or, not, to", ["or not to"], ["Or", "not ", "to"], np.array(["or", "not", "to"])],
        [
            (["to", "be", "or"], "behind the words"),
            (["that", "is", "the"], "you know the play"),
            (["or", "not"], "three words"),
            (["or", "not", "to", "be"], "three words"),
            (["not", "to", "be"], "the last words themselves"),
            (["be", "to", "or"], "look for the last two words"),
            (3, "a list of three words"),
        ],
    ),
    "guess.length": (
        [(RUN, 2.3), (RUN, 1 + 130 / 100)],
        [
            ((RUN, 1.3), "a token of the model's own"),
            ((RUN, 0.325), "acceptance rate"),
            ((RUN, 4), "right or wrong"),
            ((RUN, 400 / 130), "other way round"),
            ((RUN, 100 / 130), "other way round"),
            ((RUN, "2.3"), "without quotes"),
            (2.3, "give (counted"),
        ],
    ),
    "guess.mtp": (
        [1.9 / 1.8, 1.056, 1.06],
        [
            (1.8 / 1.9, "other way round"),
            ("1.06", "without quotes"),
        ],
    ),
}  # fmt: skip

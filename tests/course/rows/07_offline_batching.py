"""Rows of test_every_check for notebook 07."""

from __future__ import annotations

import pandas as pd
from check_rows import OUTPUT

FRAME = pd.DataFrame({"text": ["a city on", "the port", "a bay", " a  b"]})
COUNTS = {"lines": 4, "different": 3, "twice": 1}
WORDS = {"a": 3, "the": 1}

ROWS = {
    "offline.left": (
        [(1000, 700, 300)],
        [
            ((1000, 700, 1000), "everything again"),
            ((1000, 700, 700), "have their answer already"),
            ((1000, 700, 5), "there are 1000 rows, and 700"),
            ((1000, 700, 0), "before its end"),
            ((1000, 700, "300"), "without quotes"),
        ],
    ),
    "offline.once": (
        [(OUTPUT, COUNTS), (OUTPUT, pd.Series(COUNTS))],
        [
            ((OUTPUT, {**COUNTS, "lines": 3}), "every line"),
            ((OUTPUT, {**COUNTS, "different": 4}), "each custom_id once"),
            ((OUTPUT, {**COUNTS, "twice": 2}), "more than one line"),
            ((OUTPUT, {"lines": 4, "different": 3}), "needs twice"),
            ((OUTPUT, {**COUNTS, "thrice": 0}), "leave thrice out"),
            ((4, COUNTS), "give (path"),
            ((OUTPUT, 4), "dict of lines, different and twice"),
        ],
    ),
    "offline.common": (
        [(FRAME, WORDS), (FRAME, FRAME.text.str.split().str[0].value_counts())],
        [
            ((FRAME, FRAME.text.str.split().str[1].value_counts()), "words differ"),
            ((FRAME, {"a": 1, "the": 1}), "add up to 2; there are 4"),
            ((FRAME, {"a": "3"}), "is a number"),
            ((FRAME, {"": 4}), "begin with a space"),
            ((FRAME, FRAME.text.str.strip().str[0].value_counts()), "first characters"),
            ((FRAME, ["a", "the"]), "Series or dict"),
            (WORDS, "give (the frame"),
            ((FRAME.text, WORDS), "give (the frame"),
            ((FRAME, FRAME.text.str.split().str[0].value_counts().reset_index()), "is a number"),
        ],
    ),
}

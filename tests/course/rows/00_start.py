"""Rows of test_every_check for notebook 00."""

from __future__ import annotations

from check_rows import Typed, response

ROWS = {
    "start.stop": (
        [response(), Typed(response())],
        [
            (response(reason="length", stop=None), "which string"),
            (response(stop=None), "end-of-text"),
            (response(stop="port"), "'port' ended it; a full stop"),
            (" city.", "whole answer"),
            (response()["choices"][0], "whole answer"),
        ],
    ),
    "start.total_tokens": (
        [45],
        [
            (40, "the prompt's tokens count"),
            (44, "one more token"),
            (21, "the first request"),
            (5, "the prompt's tokens alone"),
            (46, "nothing is added"),
            (99, "too large"),
            ("45", "without quotes"),
        ],
    ),
}

"""Rows of test_every_check for notebook 04."""

from __future__ import annotations

import math

from check_rows import Typed, response

ROWS = {
    "sampling.length": (
        [response(33), Typed(response(40)), response(30)],
        [
            (response(12), "at least 30"),
            (response(29), "at least 30"),
            (response(41), "limit it to 40"),
            (response(33)["choices"][0], "no answer of a server"),
            ("text", "no answer of a server"),
        ],
    ),
    "sampling.softmax": (
        [0.8437947, 0.8438, 0.844, 0.84],
        [
            (0.85, "too large"),
            (20.0855, "divide it"),
        ],
    ),
    "sampling.temperature": (
        [0.25 / 0.325, 0.7692, 0.77],
        [
            (0.78, "too large"),
        ],
    ),
    "sampling.top_k": (
        [
            {"city": 5 / 7, "port": 2 / 7},
            {"city": 0.71, "port": 0.29},
            {"City": 0.71, "PORT ": 0.29},
            {"city": 5 / 7, "port": 2 / 7, "cat": 0},
        ],
        [
            ({"city": 0.5, "port": 0.2}, "shared out"),
            ({"city": 1.0}, "other tokens"),
            ({"city": 0.6, "port": 0.4}, "keep their ratio"),
            ({"city": 71.4, "port": 28.6}, "not percent"),
            ({"city": "0.71", "port": "0.29"}, "without quotes"),
            (0.7, "not a dictionary"),
        ],
    ),
    "sampling.top_p": (
        [3],
        [
            (["city", "port", "town"], "how many they are"),
            ("three", "not a number"),
        ],
    ),
    "sampling.order": (
        [4],
        [],
    ),
    "sampling.min_p": (
        [3],
        [
            (["city", "port", "town"], "how many they are"),
        ],
    ),
    "sampling.frequency_penalty": (
        [math.exp(-1.5), 0.2231, 0.223, 0.22],
        [
            (0.78, "how much it falls by"),
            (0.23, "too large"),
        ],
    ),
    "sampling.constant": (
        ["repetition_penalty", "repetition penalty", "Repetition-Penalty "],
        [
            ("Nothing", "softmax does not see"),
            ("min_p", "differences"),
            (5, "as a text"),
            (["nothing"], "as a text"),
        ],
    ),
}

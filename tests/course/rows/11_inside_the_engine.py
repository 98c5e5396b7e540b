"""Rows of test_every_check for notebook 11."""

from __future__ import annotations

import pandas as pd

from workshop.course.topics.timeline import Span

# Sent at 0.5 s; four tokens, with gaps of 0.1, 0.4 and 0.1 s: TTFT 0.3, TPOT 0.2.
SEEN = (0.8, 0.9, 1.3, 1.4)
SPAN = Span("", 0.5, SEEN[0], SEEN[-1], 4, SEEN)
TIMES = {"ttft": 0.3, "tpot": 0.2, "longest_gap": 0.4}
# 32 of 64 and 64 of 66: what vLLM 0.32.0 found, data/traces/engine_lab.jsonl
HITS = {20: 0, 64: 32, 66: 64, 100: 96}
FLAGS = {
    "A": "--max-num-batched-tokens smaller",
    "B": "--max-num-batched-tokens larger",
    "C": "--max-num-seqs smaller",
    "D": "--max-num-seqs larger",
    "E": "--block-size smaller",
}

ROWS = {
    "engine.critical": (
        [206, 206.04, 206.041667, 989 / 4.8],
        [
            (250, "too large"),
            ("206 tokens", "without the unit"),
        ],
    ),
    "engine.times": (
        [(SPAN, TIMES), [SPAN, TIMES], (SPAN, pd.Series(TIMES)), (SPAN, TIMES | {"tpot": 0.6 / 3})],
        [
            ((SPAN, TIMES | {"ttft": 0.8}), "ttft: it counts from when"),
            ((SPAN, TIMES | {"ttft": 300}), "ttft: that is in ms"),
            ((SPAN, TIMES | {"tpot": 0.9 / 4}), "tpot: the time to the first token"),
            ((SPAN, TIMES | {"tpot": 0.9 / 3}), "tpot: the time to the first token"),
            ((SPAN, TIMES | {"tpot": 0.6 / 4}), "divide by one less"),
            ((SPAN, TIMES | {"tpot": 4 / 0.6}), "tokens a second"),
            ((SPAN, TIMES | {"longest_gap": 0.1}), "the shortest one"),
            ((SPAN, TIMES | {"longest_gap": 0.3}), "the TTFT"),
            ((SPAN, TIMES | {"longest_gap": "0.4"}), "longest_gap: give 0.4 as a number"),
            ((SPAN, {"ttft": 0.3, "tpot": 0.2}), "give (span, {"),
            (TIMES, "give (span, {"),
        ],
    ),
    "engine.chunks": (
        [
            [125, 125, 125, 25],
            (125, 125, 125, 25),
            pd.Series([125, 125, 125, 25]),
            [125.0, 125, 125, 25],
        ],
        [
            ([128, 128, 128, 16], "one token each"),
            ([400], "more than 128"),
            ([125, 125, 125], "add up to 375"),
            ([100, 100, 100, 100], "as much of the prompt"),
            ([127, 127, 127, 19], "three of the answers"),
            (4, "a list"),
            (["125", "125", "125", "25"], "a list"),
        ],
    ),
    "engine.hits": (
        [HITS, pd.Series(HITS), {100: 96, 66: 64, 64: 32, 20: 0}],
        [
            (HITS | {64: 64}, "64 tokens: one token at least"),
            (HITS | {66: 66}, "66 tokens: a block that is not full"),
            (HITS | {20: 20}, "20 tokens: a block that is not full"),
            (HITS | {20: 19}, "20 tokens: a block that is not full"),
            (HITS | {100: 3}, "how many tokens are in them"),
            (HITS | {66: 32}, "whole blocks of 32"),
            (HITS | {66: "64"}, "66 tokens: give 64 as a number"),
            ([0, 32, 64, 96], "a dict with the keys 20, 64, 66, 100"),
        ],
    ),
    "engine.flags": (
        [
            FLAGS,
            pd.Series(FLAGS),
            {symptom: change.upper() for symptom, change in FLAGS.items()},
            {symptom: change.replace("-num-", "_num_") for symptom, change in FLAGS.items()},
            {symptom: change.removeprefix("--") for symptom, change in FLAGS.items()},
        ],
        [
            (FLAGS | {"A": FLAGS["B"]}, "A: a larger budget"),
            (FLAGS | {"B": FLAGS["A"]}, "B: with a smaller budget"),
            (FLAGS | {"C": FLAGS["D"]}, "C: more requests at once"),
            (FLAGS | {"D": FLAGS["C"]}, "D: then even more requests"),
            (FLAGS | {"E": FLAGS["A"]}, "E: this changes something else"),
            (FLAGS | {"E": "--block-size"}, "none of the changes"),
            (list(FLAGS.values()), "a dict with the keys A, B, C, D, E"),
        ],
    ),
}

"""The checks of notebooks 06 and 07: right answers pass, typical wrong ones are told what is off."""

from __future__ import annotations

import json

import pytest

from workshop.learn.exercise_sets.e06_many_prompts import EXERCISES as MANY
from workshop.learn.exercise_sets.e07_offline_batching import EXERCISES as OFFLINE
from workshop.learn.timeline import Span

# Eight requests by four threads: the first four take 4, 1, 1 and 1 s, the others begin as threads become free.
SPANS = [
    Span("", sent, sent + 0.1, sent + seconds, 10)
    for sent, seconds in ((0, 4), (0, 1), (0, 1), (0, 1), (1, 2), (1, 1), (1, 1), (2, 1))
]
SWEEP = {1: (100, 1.0), 2: (190, 1.1), 4: (300, 1.4), 8: (380, 2.2), 16: (400, 4.5)}


@pytest.mark.parametrize(
    ("key", "answer", "says"),
    [
        ("many.waves", {3: 1, 4: 1, 5: 2}, None),
        ("many.waves", {3: 1, 4: 1, 5: 1}, "fifth"),
        ("many.waves", {3: 1, 4: 2, 5: 2}, "4 prompts"),
        ("many.waves", [1, 1, 2], "a dict"),
        ("many.barrier", (SPANS, 4 + 2), None),
        ("many.barrier", (SPANS, 4), "slowest request"),
        ("many.barrier", (SPANS, 12), "one after the other"),
        ("many.barrier", (SPANS, "6"), "not a number"),
        ("many.knee", (SWEEP, 8), None),
        ("many.knee", (SWEEP, 16), "4.5 times"),
        ("many.knee", (SWEEP, 4), "8 at once"),
        ("many.knee", (SWEEP, 3), "not measured"),
        ("many.kv_peak", (10_240, 1000, 0.39), None),
        ("many.kv_peak", (10_240, 1000, 39), "not percent"),
        ("many.kv_peak", (10_240, 1000, 0.098), "one request"),
        ("many.kv_peak", (10_240, 1000, 4000), "tokens"),
    ],
)
def test_many_prompts(key, answer, says):
    message = MANY[key].test(answer)
    assert message is None if says is None else says in message


def test_the_time_of_the_four_threads_is_not_a_barriers():
    later = [*SPANS[:4], *(Span("", 3 + n, 4 + n, 5.5 + n, 10) for n in (0, 0.1, 0.2, 0.4))]
    assert "four threads" in MANY["many.barrier"].test((later, 5.9))


@pytest.mark.parametrize(
    ("answer", "says"),
    [(300, None), (1000, "everything again"), (700, "have their answer already"), (5, "1000 rows, and 700")],
)
def test_rows_left(answer, says):
    message = OFFLINE["offline.left"].test((1000, 700, answer))
    assert message is None if says is None else says in message


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ({"lines": 4, "different": 3, "twice": 1}, None),
        ({"lines": 3, "different": 3, "twice": 1}, "every line"),
        ({"lines": 4, "different": 4, "twice": 1}, "each custom_id once"),
        ({"lines": 4, "different": 3}, "needs twice"),
        ({"lines": 4, "different": 3, "twice": 2}, "more than one line"),
        (4, "needs lines, different, twice"),
    ],
)
def test_lines_and_ids(tmp_path, counts, says):
    output = tmp_path / "answers.jsonl"
    output.write_text("".join(json.dumps({"custom_id": name}) + "\n" for name in ("a", "b", "a", "c")))
    message = OFFLINE["offline.once"].test((output, counts))
    assert message is None if says is None else says in message

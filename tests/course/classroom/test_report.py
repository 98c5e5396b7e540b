"""Figures and verdict of a simulated class; expected numbers by hand, percentiles by numpy."""

from __future__ import annotations

import json

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workshop.course.classroom.report import PEAKS, Criteria, Report, Request
from workshop.simulate.report import percentiles


def report(requests, **more) -> Report:
    return Report(
        more.pop("learners", 2), more.pop("seconds", 10.0), "m", "http://h/v1", requests, **more
    )


def quick(count=20, ttft_s=0.1, e2el_s=1.1, **more) -> list[Request]:
    return [
        Request("00 first", 0.0, e2el_s, ttft_s, [0.1] * 10, 5, 11, **more) for _ in range(count)
    ]


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([50, 95, 99]))
def test_percentiles_are_numpys(values, q):
    assert percentiles(values)[f"p{q}"] == pytest.approx(
        float(numpy.percentile(values, q)), rel=1e-9, abs=1e-9
    )


def test_no_values_have_no_percentile():
    assert percentiles([])["p50"] is None


def test_tpot_is_as_vllm_bench_defines_it():
    # benchmarks/serve.py of vLLM: (latency - ttft) / (output_len - 1), of each sequence
    assert Request("c", 0, e2el_s=2.1, ttft_s=0.1, completion_tokens=21).tpot_s == pytest.approx(
        0.1
    )
    assert Request(
        "c", 0, e2el_s=2.1, ttft_s=0.1, completion_tokens=210, n=10
    ).tpot_s == pytest.approx(0.1)
    assert Request("c", 0, e2el_s=2.1, ttft_s=0.1, completion_tokens=1).tpot_s is None
    assert Request("c", 0, e2el_s=2.1, completion_tokens=21).tpot_s is None


def test_a_quick_class_holds():
    it = report(quick())
    assert it.holds and it.advice() == [] and "It will hold" in str(it) and "no error" in str(it)
    data = it.to_dict()
    assert (data["p50_ttft_ms"], data["p95_e2el_ms"], data["p50_itl_ms"]) == (100.0, 1100.0, 100.0)
    assert data["output_throughput"] == 22.0, "20 × 11 tokens in 10 s"
    assert data["total_input_tokens"] == 100 and data["completed"] == 20
    json.dumps(data)


def test_one_error_is_enough_to_fail_and_is_named():
    it = report([*quick(99), Request("04 20 completions", 1.0, 120.0, error="no answer in 120 s")])
    assert not it.holds and "1 of 100 requests failed" in str(it)
    assert it.errors == {"no answer in 120 s": 1}
    assert any("fewer samples" in text for text in it.advice())


def test_slow_first_tokens_fail_beyond_the_limit_only():
    assert report(quick(ttft_s=4.9, e2el_s=5.5)).holds
    slow = report(quick(ttft_s=5.1, e2el_s=5.5))
    assert not slow.holds and "p95 ttft is 5.1 s, more than 5 s" in str(slow)
    assert report(quick(ttft_s=5.1, e2el_s=5.5), criteria=Criteria(p95_ttft_s=6)).holds
    assert not report(quick(ttft_s=1, e2el_s=31)).holds


@pytest.mark.parametrize(
    ("peaks", "flag"),
    [
        ((40, 0, 0.99, 12), "--max-model-len"),
        ((16, 100, 0.3, 0), "--max-num-seqs"),
        ((200, 0, 0.3, 0), "second server"),
        ((None,) * 4, "second server"),
    ],
)
def test_advice_follows_what_the_server_showed(peaks, flag):
    told = dict(zip((*PEAKS, "preemptions"), peaks, strict=True))
    assert flag in report(quick(ttft_s=9, e2el_s=10), **told).advice()[0]


def test_samples_are_to_be_fewer_where_they_are_what_is_slow():
    samples = [Request("04 20 completions", 0.0, 60.0, 50.0, [], 5, 400, n=20) for _ in range(20)]
    assert any("n=5" in text for text in report([*quick(), *samples]).advice())


def test_a_class_that_holds_names_the_cell_that_is_slow():
    slow = [Request("04 20 completions", 0.0, 25.0, 21.0, [], 5, 400, n=20) for _ in range(4)]
    it = report([*quick(100), *slow])
    assert it.holds and "slow is “04 20 completions” (first token within 21 s)" in str(it)
    assert any("let half of the class run it first" in text for text in it.advice())


def test_a_busy_client_is_said():
    assert any(
        "This machine itself" in text
        for text in report(quick(ttft_s=9, e2el_s=10), client_lag_s=2.0).advice()
    )


def test_an_interrupted_class_gives_no_verdict():
    it = report(quick(3), stopped="it was interrupted")
    assert not it.holds and str(it).startswith(
        "No verdict: it was interrupted; until then 2 learners asked 3 times"
    )
    assert not report([]).holds


def test_a_class_that_left_a_cell_out_gives_none_either_unless_it_failed_already():
    cut, failed = (
        report(quick(**slow), untried=["06 batch"]) for slow in ({}, {"ttft_s": 9, "e2el_s": 10})
    )
    assert (
        not cut.holds
        and "No verdict: in 10 s nobody came to 06 batch" in str(cut)
        and "--seconds" in str(cut)
    )
    assert not failed.holds and str(failed).startswith("It will not hold: p95 ttft")
    late = report(quick(), not_reached=5)  # others came to the same cells
    assert late.holds and "5 cells were too late for their learners" in str(late)


def test_cells_are_told_apart():
    rows = report(
        [
            *quick(4),
            Request("06 batch", 2.0, 3.0, 1.0, [], 5, 20),
            Request("06 batch", 2.0, error="connection: X"),
        ]
    ).rows()
    assert rows == [("00 first", 4, 0, 0.1, 0.1, 1.1), ("06 batch", 2, 1, 1.0, 1.0, 3.0)]

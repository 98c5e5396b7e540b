"""Whatever a server says at /metrics: numbers that it told, None for the rest, or one sentence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.engine import metrics
from workshop.errors import BadInput

PAGE = (Path(__file__).parent / "data" / "metrics_0.32.0_during.txt").read_text()
LINES = [line for line in PAGE.splitlines() if line.startswith("vllm:")]


def check(page: str) -> None:
    try:
        read = metrics.parse(page, time=0.0)
    except BadInput:
        return
    told = [getattr(read, field.name) for field in fields(read)]
    assert all(value >= 0 for value in told if isinstance(value, int | float))
    rates = metrics.rates(read, metrics.parse(PAGE, time=1.0))
    assert rates.ttft_mean_s is None or rates.ttft_mean_s >= 0


def test_a_number_that_is_none_is_not_told(subtests):
    for value in ["NaN", "+Inf", "-Inf", "-3", "1e999"]:
        with subtests.test(value):
            read = metrics.parse(
                f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:num_requests_waiting 2\n'
            )
            assert read.requests_running is None and read.requests_waiting == 2


@settings(max_examples=60, deadline=None)
@given(
    line=st.sampled_from(LINES),
    at=st.integers(0, 200),
    put=st.text(max_size=4),
    drop=st.integers(0, 5),
)
@example(
    line='vllm:cache_config_info{num_gpu_blocks="²",block_size="' + "9" * 5000 + '"} 1.0',
    at=0,
    put="",
    drop=0,
)
@example(line='vllm:time_to_first_token_seconds_bucket{engine="0"} 1.0', at=0, put="", drop=0)
@example(line='vllm:time_to_first_token_seconds_bucket{le="NaN"} 1.0', at=0, put="", drop=0)
@example(line='vllm:time_to_first_token_seconds_bucket{le="x"} 1.0', at=0, put="", drop=0)
@example(line="<html><body>Please log in</body></html>", at=0, put="", drop=0)
@example(line="# TYPE vllm:x histogram\nvllm:x{", at=0, put="", drop=0)
def test_a_page_that_was_changed_is_read_or_refused(line, at, put, drop):
    check(line[:at] + put + line[at + drop :] + "\n")


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(page):
    check(page)
    check(f"vllm:num_requests_running 1\n{page}\n")

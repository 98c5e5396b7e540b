"""A real /metrics page (vLLM 0.32.0, cpu_under_load.log's server) during and after eight clients' requests."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_server import Handler, serving

from workshop.engine import metrics
from workshop.errors import BadInput, WorkshopError

DATA = Path(__file__).parent / "data"
DURING = (DATA / "metrics_0.32.0_during.txt").read_text()
AFTER = (DATA / "metrics_0.32.0_after.txt").read_text()
LINES = [line for line in DURING.splitlines() if line.startswith("vllm:")]


def test_a_real_page_gives_the_numbers_that_it_prints():
    read = metrics.parse(DURING, time=0.0)
    assert (read.requests_running, read.requests_waiting) == (8, 0)
    assert read.kv_cache_usage == pytest.approx(0.38095238)
    assert (read.prompt_tokens_total, read.generation_tokens_total, read.requests_total) == (
        752,
        9389,
        24,
    )
    # as the server's log says: "CPU KV cache size: 8,192 tokens"
    assert read.kv_cache_tokens == 8192
    assert (read.ttft_count, read.ttft_sum_s) == (32, pytest.approx(5.463074207))


def test_rates_are_what_grew_between_two_looks():
    before, after = metrics.parse(DURING, time=100.0), metrics.parse(AFTER, time=130.0)
    rates = metrics.rates(before, after)
    assert rates.generation_tokens_per_s == pytest.approx((24000 - 9389) / 30)
    assert rates.prompt_tokens_per_s == pytest.approx((1880 - 752) / 30)
    took_s, count = after.ttft_sum_s - before.ttft_sum_s, after.ttft_count - before.ttft_count
    assert rates.ttft_mean_s == pytest.approx(took_s / count)


def test_a_restarted_server_begins_at_zero_again():
    rates = metrics.rates(metrics.parse(AFTER, time=0.0), metrics.parse(DURING, time=10.0))
    assert rates.generation_tokens_per_s == pytest.approx(938.9)
    with pytest.raises(BadInput, match="before the first"):
        metrics.rates(metrics.parse(AFTER, time=1.0), metrics.parse(AFTER, time=0.0))


def test_what_a_page_does_not_have_is_none():
    page = 'vllm:kv_cache_usage_perc{model_name="m"} 0.25\nvllm:num_requests_running{model_name="m"} 3.0\n'
    read = metrics.parse(page)
    assert (read.kv_cache_usage, read.requests_running) == (0.25, 3)
    assert (
        read.requests_waiting is None and read.ttft_count is None and read.kv_cache_tokens is None
    )


def test_two_engines_are_summed_and_the_fullest_counts():
    page = "".join(f'vllm:num_requests_running{{engine="{i}"}} {i + 1}\n'
                   f'vllm:kv_cache_usage_perc{{engine="{i}"}} 0.{i + 1}\n' for i in range(2))  # fmt: skip
    read = metrics.parse(page)
    assert (read.requests_running, read.kv_cache_usage) == (3, 0.2)


def test_other_pages_are_refused(subtests):
    for page in ["", "<html>Not Found</html>", "process_open_fds 32.0\n", "vllm:x{le=} }{ 1\n"]:
        with subtests.test(page), pytest.raises(BadInput, match="/metrics"):
            metrics.parse(page)


class Page(Handler):
    def do_GET(self):
        allowed = self.headers.get("Authorization") == "Bearer k"
        status = 404 if self.path != "/metrics" else 200 if allowed else 401
        self.reply(AFTER if allowed else "", status)


def test_fetch_asks_beside_v1_and_with_the_key():
    with serving(Page) as url:
        for address in (url, f"{url}/v1", f"{url}/metrics", f"{url.removeprefix('http://')}/v1/"):
            assert metrics.fetch(address, "k").generation_tokens_total == 24000
        with pytest.raises(WorkshopError, match="refuses the key"):
            metrics.fetch(url)
        with pytest.raises(WorkshopError, match="answered 404"):
            metrics.fetch(f"{url}/x", "k")
    with pytest.raises(WorkshopError, match="does not answer"):
        metrics.fetch(url, timeout_s=0.5)


def test_guesses_of_all_engines_are_counted_by_their_place():
    """Lines as vLLM 0.32.0 wrote them with a draft of two tokens, for two engines."""
    line = 'vllm:spec_decode_{}_total{{engine="{}",model_name="m"{}}} {}'
    counts = {"num_drafts": (230, 5), "num_draft_tokens": (460, 10), "num_accepted_tokens": (55, 1)}
    lines = [
        line.format(name, engine, "", n)
        for name, engine_counts in counts.items()
        for engine, n in enumerate(engine_counts)
    ]
    for place, engine_counts in enumerate(((47, 1), (8, 0))):
        label = f',position="{place}"'
        lines += [
            line.format("num_accepted_tokens_per_pos", engine, label, n)
            for engine, n in enumerate(engine_counts)
        ]
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
    heads = {name: f"# TYPE vllm:spec_decode_{name} counter" for name in names}
    text = "\n".join(
        part
        for name in names
        for part in (heads[name], *(x for x in lines if f"_{name}_total" in x))
    )
    read = metrics.parse(text + "\n")
    assert (read.drafts_total, read.drafted_total, read.accepted_total) == (235, 470, 56)
    assert read.accepted_at == (48, 8)


# Whatever a server says at /metrics: numbers that it told, None for the rest, or one sentence


def check(page: str) -> None:
    try:
        read = metrics.parse(page, time=0.0)
    except BadInput:
        return
    told = [getattr(read, field.name) for field in fields(read)]
    assert all(value >= 0 for value in told if isinstance(value, int | float))
    rates = metrics.rates(read, metrics.parse(DURING, time=1.0))
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

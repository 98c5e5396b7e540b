"""The log and the metrics of the shared server: two ways to the same numbers, and the plan beside them."""

from __future__ import annotations

import pytest

from workshop.engine import log, metrics
from workshop.engine.reconcile.compare import reconcile
from workshop.errors import WorkshopError

pytestmark = pytest.mark.live


def test_the_log_of_a_running_server_says_what_its_metrics_say(server):
    read, now = log.read(server.log), metrics.fetch(server.url, server.api_key)
    assert read.ready and read.error is None and read.platform == "cpu"
    assert read.version == server.vllm_version
    assert now.kv_cache_tokens == read.kv_cache_tokens
    assert now.requests_running == 0 and 0 <= now.kv_cache_usage <= 1


def test_tokens_are_counted(server, client):
    before = metrics.fetch(server.url, server.api_key)
    client.complete("To be, or", max_tokens=8, ignore_eos=True)
    rates = metrics.rates(before, metrics.fetch(server.url, server.api_key))
    assert rates.generation_tokens_per_s * rates.seconds == pytest.approx(8)
    assert rates.ttft_mean_s > 0


def test_metrics_need_the_key(server):
    with pytest.raises(WorkshopError, match="refuses the key"):
        metrics.fetch(server.url, "wrong")


def test_the_plan_agrees_with_the_running_server(server):
    row = reconcile(server.log).row("KV cache size")
    assert row.predicted == row.actual

"""vLLM's engine stops its work on what a revoked key asked for."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from workshop.engine import metrics
from workshop.guard import keys
from workshop.servers.host import processes

pytestmark = pytest.mark.live
TOKENS = 1000  # of an answer that takes longer than the server needs to see a revoked key


@pytest.mark.parametrize("streams", [True, False])
def test_the_engine_stops_its_work_for_a_revoked_key(server, live_home, monkeypatch, streams):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    name = f"revoked.{streams}"
    key = keys.add(name)
    time.sleep(keys.REREAD_S * 2)
    request = {
        "model": server.model,
        "prompt": "The sea",
        "max_tokens": TOKENS,
        "min_tokens": TOKENS,
        "stream": streams,
    }

    def ask() -> str:
        url, headers = f"{server.url}/completions", {"x-api-key": key}
        return httpx.post(url, headers=headers, json=request, timeout=60).text

    def works() -> bool:
        return metrics.fetch(server.url, server.api_key).requests_running > 0

    before = metrics.fetch(server.url, server.api_key).generation_tokens_total
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(ask)
        assert processes.until(works, 30)
        keys.revoke(name)
        text = answer.result()
    assert "was revoked" in text and "[DONE]" not in text
    assert processes.until(lambda: not works(), 30)
    generated = metrics.fetch(server.url, server.api_key).generation_tokens_total - before
    assert 0 < generated < TOKENS

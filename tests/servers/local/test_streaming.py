"""A server that shares its cores with the engine: tokens stream also when the API server has fallen behind."""

from __future__ import annotations

import os
import signal
import threading

import pytest

TOKENS, BEHIND_S = 400, 1.0


@pytest.mark.live
def test_tokens_stream_after_the_api_server_was_held_up(server, client):
    exactly = {"max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True}
    chunks = 0
    try:
        for _ in client.complete("Chicago is a", stream=True, **exactly):
            chunks += 1
            if chunks == 20:  # the engine goes on meanwhile
                os.kill(server.pid, signal.SIGSTOP)
                threading.Timer(BEHIND_S, os.kill, (server.pid, signal.SIGCONT)).start()
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert chunks > 0.8 * TOKENS, "steps that were ready came in one piece"

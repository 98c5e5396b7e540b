"""However a learner asks, and however they leave, the ledger counts what vLLM's own counters count."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import httpx
import pytest

from workshop.servers.guard import keys

pytestmark = pytest.mark.live
TOKENS = 12
LONG = 1000  # tokens of an answer that its client leaves


@dataclass
class Way:
    """A way to ask. leaves_after: how many events are read of a stream; 0: none of the answer."""

    name: str
    path: str
    body: dict
    leaves_after: int | None = None
    statuses: tuple[int, ...] = (200,)
    prompts_share: int = (
        1  # answers to one prompt: the counters have the prompt for each, usage has it once
    )
    sees: Callable[[str], bool] = field(default=lambda text: True)


def has_usage(text: str) -> bool:
    return '"usage":{' in text


def has_none(text: str) -> bool:
    return '"usage":{' not in text


COMPLETION = {"prompt": "The sea", "max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 0}
CHAT = {
    "messages": [{"role": "user", "content": "The sea"}],
    "max_tokens": TOKENS,
    "min_tokens": TOKENS,
}
RESPONSE = {"input": "The sea", "max_output_tokens": TOKENS}
MESSAGE = {"messages": [{"role": "user", "content": "The sea"}], "max_tokens": TOKENS}
IDS = {"token_ids": [5, 6, 7, 8], "sampling_params": {"max_tokens": TOKENS, "min_tokens": TOKENS}}
LEFT = {**COMPLETION, "max_tokens": LONG, "min_tokens": LONG}
WAYS = [
    Way("completion", "/v1/completions", COMPLETION),
    Way("completion, stream", "/v1/completions", {**COMPLETION, "stream": True}, sees=has_none),
    Way("stream of 1", "/v1/completions", {**COMPLETION, "stream": 1}, sees=has_none),
    Way("stream of a word", "/v1/completions", {**COMPLETION, "stream": "yes"}, sees=has_none),
    Way(
        "usage asked for",
        "/v1/completions",
        {**COMPLETION, "stream": True, "stream_options": {"include_usage": True}},
        sees=has_usage,
    ),
    Way(
        "usage refused in a word",
        "/v1/completions",
        {
            **COMPLETION,
            "stream": True,
            "stream_options": {"include_usage": "no", "continuous_usage_stats": True},
        },
        sees=has_none,
    ),
    Way(
        "usage all the time",
        "/v1/chat/completions",
        {
            **CHAT,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
        sees=has_usage,
    ),
    Way("n of 3", "/v1/completions", {**COMPLETION, "n": 3, "temperature": 1}, prompts_share=3),
    Way(
        "n of 3, stream",
        "/v1/chat/completions",
        {**CHAT, "n": 3, "temperature": 1, "stream": True},
        prompts_share=3,
        sees=has_none,
    ),
    Way("four prompts", "/v1/completions", {**COMPLETION, "prompt": ["a", "The sea", "b", "c"]}),
    Way(
        "prompts in tokens, stream",
        "/v1/completions",
        {**COMPLETION, "prompt": [[1, 2], [3]], "stream": True},
    ),
    Way(
        "echo and logprobs",
        "/v1/completions",
        {**COMPLETION, "echo": True, "logprobs": 2, "stream": True},
    ),
    Way("chat", "/v1/chat/completions", CHAT),
    Way("chat, stream", "/v1/chat/completions", {**CHAT, "stream": True}, sees=has_none),
    Way("responses", "/v1/responses", RESPONSE),
    Way("responses, stream", "/v1/responses", {**RESPONSE, "stream": True}),
    Way("messages", "/v1/messages", MESSAGE),
    Way("messages, stream", "/v1/messages", {**MESSAGE, "stream": True}),
    Way("invocations", "/invocations", COMPLETION),
    Way("invocations, stream", "/invocations", {**COMPLETION, "stream": True}, sees=has_none),
    Way("invocations, chat stream", "/invocations", {**CHAT, "stream": 1}, sees=has_none),
    # 403: closed to learners
    Way("token ids", "/inference/v1/generate", IDS, statuses=(200, 403)),
    Way(
        "token ids, stream", "/inference/v1/generate", {**IDS, "stream": True}, statuses=(200, 403)
    ),
    Way(
        "an end at a word",
        "/v1/completions",
        {**LEFT, "min_tokens": 0, "stop": ["e"], "stream": True},
    ),
    Way("a stream that is left", "/v1/completions", {**LEFT, "stream": True}, leaves_after=8),
    Way(
        "a chat stream that is left",
        "/v1/chat/completions",
        {**CHAT, "max_tokens": LONG, "stream": True},
        leaves_after=5,
    ),
    Way("an answer that is left", "/v1/completions", LEFT, leaves_after=0),
    Way(
        "three answers that are left",
        "/v1/completions",
        {**LEFT, "n": 3, "temperature": 1, "stream": True},
        leaves_after=9,
        prompts_share=3,
    ),
    Way(
        "messages that are left",
        "/v1/messages",
        {**MESSAGE, "max_tokens": LONG, "stream": True},
        leaves_after=6,
    ),
    Way(
        "responses that are left",
        "/v1/responses",
        {**RESPONSE, "max_output_tokens": LONG, "stream": True},
        leaves_after=8,
    ),
    Way("no answer", "/tokenize", {"prompt": "The sea"}),
    Way("a refused request", "/v1/completions", {**COMPLETION, "temperature": -1}, statuses=(400,)),
]


class Counters:
    """vLLM's own: what its engine was asked and has generated."""

    def __init__(self, server):
        self._url = server.url.replace("/v1", "/metrics")
        self._headers = {"Authorization": f"Bearer {server.api_key}"}

    def _value(self, text: str, name: str) -> float:
        return sum(
            float(value) for value in re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE)
        )

    async def at_rest(self, http: httpx.AsyncClient) -> tuple[int, int]:
        """Return (prompt tokens, generated tokens) once the engine works on nothing."""
        before = None
        for _ in range(400):
            text = (await http.get(self._url, headers=self._headers)).text
            now = (
                int(self._value(text, "prompt_tokens_total")),
                int(self._value(text, "generation_tokens_total")),
            )
            if now == before and not self._value(text, "num_requests_running"):
                return now
            before = now
            await asyncio.sleep(0.05)
        raise TimeoutError("the engine goes on")


async def ask(http: httpx.AsyncClient, way: Way, url: str, headers: dict) -> str:
    """Ask in this way; return what the client saw of the answer."""
    if way.leaves_after == 0:
        with contextlib.suppress(httpx.TimeoutException):
            await http.post(
                url, headers=headers, json=way.body, timeout=httpx.Timeout(60, read=0.2)
            )
            pytest.fail("the client was too slow to leave")
        return ""
    async with http.stream("POST", url, headers=headers, json=way.body) as answer:
        seen = []
        async for piece in answer.aiter_text():
            seen.append(piece)
            if way.leaves_after is not None and len(seen) >= way.leaves_after:
                break
        assert answer.status_code in way.statuses, "".join(seen)[:300]
        return "".join(seen)


async def ask_in_all_ways(server, key_of: dict[str, str]) -> dict[str, tuple[tuple[int, int], str]]:
    """Return what vLLM's counters counted for each way to ask, and what the client saw."""
    results = {}
    counters, root = Counters(server), server.url.removesuffix("/v1")
    async with httpx.AsyncClient(timeout=60) as http:
        before = await counters.at_rest(http)
        for way in WAYS:
            way_with_model = replace(way, body={"model": server.model, **way.body})
            saw = await ask(http, way_with_model, root + way.path, {"x-api-key": key_of[way.name]})
            after = await counters.at_rest(http)
            results[way.name] = (after[0] - before[0], after[1] - before[1]), saw
            before = after
    return results


def compare(server) -> dict[str, tuple[tuple[int, int], dict, str]]:
    """Return {way: (vLLM's prompt and generated tokens, the learner's entry, what the client saw)}."""
    names = {way.name: f"way.{number}" for number, way in enumerate(WAYS)}
    key_of = {way: keys.add(name) for way, name in names.items()}
    time.sleep(keys.REREAD_S * 2)
    results = asyncio.run(ask_in_all_ways(server, key_of))
    deadline = time.monotonic() + 30
    while True:
        used = {entry["name"]: entry for entry in keys.listed()}
        waits = [
            way for way in WAYS if 403 not in way.statuses and not used[names[way.name]]["requests"]
        ]
        if not waits or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return {way: (counted, used[names[way]], saw) for way, (counted, saw) in results.items()}


@pytest.fixture(scope="module")
def compared(server, live_home):
    """What `compare` returns for the shared server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKSHOP_HOME", str(live_home))
        yield compare(server)
        for entry in keys.listed():
            if not entry["revoked"]:
                keys.revoke(entry["name"])


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_ledger_has_what_vllm_counted(compared, way):
    (prompt, generated), entry, saw = compared[way.name]
    assert entry["requests"] == (1 if generated or 403 not in way.statuses else 0)
    assert entry["completion_tokens"] == generated
    assert entry["prompt_tokens"] == prompt // way.prompts_share
    assert way.sees(saw), saw[-500:]
    if way.leaves_after is not None:
        assert 0 < generated < LONG * way.prompts_share, "the engine stopped when the client left"
    elif way.path != "/tokenize" and way.statuses == (200,):
        assert generated > 0 and prompt > 0


def test_a_stream_whose_key_is_revoked_ends_and_the_engine_stops(server, live_home, monkeypatch):
    monkeypatch.setenv("WORKSHOP_HOME", str(live_home))
    key = keys.add("revoked")
    time.sleep(keys.REREAD_S * 2)
    body = {
        **COMPLETION,
        "model": server.model,
        "max_tokens": 900,
        "min_tokens": 900,
        "stream": True,
    }

    async def story():
        async with httpx.AsyncClient(timeout=60) as http:
            counters = Counters(server)
            _, before = await counters.at_rest(http)
            async with http.stream(
                "POST", f"{server.url}/completions", headers={"api-key": key}, json=body
            ) as answer:
                seen = ""
                async for piece in answer.aiter_text():
                    if not seen:
                        keys.revoke("revoked")
                    seen += piece
            _, after = await counters.at_rest(http)
            return seen, after - before

    seen, generated = asyncio.run(story())
    assert "event: error" in seen and "was revoked" in seen and "[DONE]" not in seen
    assert 0 < generated < 900

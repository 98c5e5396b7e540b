"""Limits for a class: nobody holds up the others, and no request gets past them, whatever it looks like."""

from __future__ import annotations

import asyncio
import gzip
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.servers.guard import fairshare
from workshop.servers.guard.fairshare import FairShare


class Engine:
    """Stands behind the middleware: notes how many requests are inside at a time, and holds them until told."""

    def __init__(self):
        self.inside, self.most, self.bodies, self.go = {}, {}, [], asyncio.Event()

    async def __call__(self, scope, receive, send):
        who = dict(scope["headers"]).get(b"x-workshop-learner", b"?").decode()
        self.inside[who] = self.inside.get(who, 0) + 1
        self.most[who] = max(self.most.get(who, 0), self.inside[who])
        self.bodies.append((await receive()).get("body"))
        await self.go.wait()
        self.inside[who] -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def ask(
    app,
    who: str,
    body: dict | bytes,
    path: str = "/v1/completions",
    *,
    method: str = "POST",
    root_path: str = "",
    pieces: int = 1,
) -> tuple[int, dict, bytes]:
    sent = []
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    size = max(1, -(-len(data) // pieces))
    parts = [data[start : start + size] for start in range(0, len(data), size)] or [b""]

    async def receive():
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root_path,
        "client": ("10.0.0.9", 1),
        "headers": [(b"x-workshop-learner", who.encode())],
    }
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def alone(
    body: dict | bytes, path: str = "/v1/completions", **options
) -> tuple[int, dict, bytes, list[bytes]]:
    """One request to an engine that answers at once: status, headers, answer, and the bodies that the engine saw."""

    async def story():
        engine = Engine()
        engine.go.set()
        return *await ask(FairShare(engine), "one", body, path, **options), engine.bodies

    return asyncio.run(story())


def test_one_learners_many_requests_do_not_hold_up_another():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        greedy = [asyncio.create_task(ask(app, "greedy", {"prompt": "x"})) for _ in range(20)]
        await asyncio.sleep(0.05)
        modest = asyncio.create_task(ask(app, "modest", {"prompt": "y"}))
        await asyncio.sleep(0.05)
        assert engine.inside == {"greedy": 4, "modest": 1}
        engine.go.set()
        answers = await asyncio.gather(modest, *greedy)
        assert {status for status, _, _ in answers} == {200} and len(engine.bodies) == 21
        assert engine.most == {"greedy": 4, "modest": 1}
        assert not app._inside and not app._slots, "nothing is remembered of who has gone"

    asyncio.run(story())


def test_queue_of_one_learner_has_an_end():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        tasks = [asyncio.create_task(ask(app, "greedy", {})) for _ in range(70)]
        await asyncio.sleep(0.05)
        # 4 inside, 64 waiting
        assert sum(task.done() and task.result()[0] == 429 for task in tasks) == 2
        engine.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"max_tokens": 1024}, 200),
        ({"max_tokens": 1025}, 400),
        ({"min_tokens": 9999}, 400),
        ({"max_completion_tokens": 5000}, 400),
        ({"max_output_tokens": 5000}, 400),
        ({"n": 32}, 200),
        ({"n": 33}, 400),
        ({"best_of": 33}, 400),
        ({"prompt": ["a"] * 33}, 400),
        ({"prompt": ["a"] * 8, "n": 5}, 400),
        ({"prompt": [1] * 500}, 200),
        ({"prompt": [[1, 2]] * 33}, 400),
        ({"prompt": [1] + ["a"] * 33}, 400),
        ({"prompt_embeds": ["a"] * 33}, 400),
        ({"prompt": ["a"] * 17, "prompt_embeds": ["a"] * 16}, 400),
        ({"max_tokens": "50"}, 400),
        ({"max_tokens": 50.0}, 400),
        ({"n": "9"}, 400),
        ({"n": True}, 400),
        ({"n": [1]}, 400),
        ({"n": None, "max_tokens": None}, 200),
        ({"background": True}, 400),
        (b"not json", 400),
        (b"[]", 400),
        (b"", 400),
        (b'"x"', 400),
        (b'{"max_tokens": 1, "max_tokens": 9999}', 400),
        (b'{"a": {"b": 1, "b": 2}}', 400),
        (b'{"n": NaN}', 400),
        (b'{"temperature": Infinity}', 400),
        (b'{"max_tokens": 1e9}', 400),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", 400),
        (b"[" * 100_000, 400),
        (b'{"max_tokens": ' + b"9" * 4000 + b"}", 400),
        (b"\xef\xbb\xbf{}", 400),
        ('{"n": 99}'.encode("utf-16"), 400),
        ('{"n": 99}'.encode("utf-32-le"), 400),
        (b'{"prompt": "\xff"}', 400),
        (gzip.compress(b'{"n": 99}'), 400),
    ],
)
def test_single_request_may_not_fill_the_engine(body, status):
    got, headers, answer, bodies = alone(body)
    assert got == status and headers[b"x-workshop-limits"].startswith(b"4 requests at a time")
    if status == 200:
        assert bodies == [body if isinstance(body, bytes) else json.dumps(body).encode()], (
            "passed on whole"
        )
    else:
        message = json.loads(answer)["error"]["message"]
        assert not bodies and message.endswith(".") and len(message) < 200


def test_body_in_pieces_is_read_as_one():
    got, _, _, bodies = alone(b'{"n": 99}', pieces=3)
    assert got == 400 and not bodies
    assert alone(b'{"n": 9}', pieces=9)[3] == [b'{"n": 9}']


def test_every_path_that_makes_the_engine_work_is_limited_or_closed():
    """All that vLLM 0.32 answers to a POST (entrypoints/**/api_router.py), and a few that it does not."""
    for path in (
        "/v1/chat/completions/batch",
        "/inference/v1/generate",
        "/invocations",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/embeddings",
        "/v2/embed",
        "/generative_scoring",
        "/v1/systemone",
        "/cohere/v2/chat",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/responses/x/cancel",
        "/v1/load_lora_adapter",
        "/v1/completions/render",
        "/sleep",
        "/pause",
        "/abort_requests",
        "/scale_elastic_ep",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/v1/completions/",
        "//v1/completions",
        "/V1/completions",
        "/v1/completions/x",
        "",
        "/new",
    ):
        got, _, answer, bodies = alone({"prompt": "x"}, path)
        assert (got, bodies) == (403, []) and "not open in this class" in json.loads(answer)[
            "error"
        ]["message"], path
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            assert alone({name: 1025}, path)[0] == 400 and alone({name: 1024}, path)[0] == 200
        assert alone({"n": 99}, f"/proxy{path}", root_path="/proxy")[0] == 400
    for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
        assert alone({"prompt": "x", "n": "not looked at"}, path)[0] == 200


@pytest.mark.live
def test_no_other_path_of_the_running_vllm_is_open_to_a_class(server):
    import re
    from pathlib import Path

    routes = re.findall(r"Route: (\S+), Methods: (\S.*)", Path(server.log).read_text())
    posts = {path for path, methods in routes if "POST" in methods}
    assert len(posts) > 10 and {"/v1/completions", "/v1/chat/completions", "/tokenize"} <= posts
    opened = {path for path in posts if alone({}, path)[0] != 403}
    assert opened <= set(fairshare.OPEN)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "post", "X"])
def test_no_method_goes_around_the_limits(method):
    assert alone({"n": 99}, method=method)[0] == 400


def test_realtime_is_closed_and_what_only_looks_passes():
    sent = []

    async def app(scope, receive, send):
        sent.append("passed")

    async def send(message):
        sent.append(message["type"])

    for scope in (
        {"type": "websocket", "path": "/v1/realtime"},
        {"type": "lifespan"},
        {"type": "http", "method": "GET", "path": "/v1/models"},
    ):
        asyncio.run(FairShare(app)(scope, None, send))
    assert sent == ["websocket.close", "passed", "passed"]


WORTHS = st.integers(-5, 5000) | st.sampled_from(
    ["50", 50.0, "9", True, None, 10**30, -1, [], {}, "", 1e300]
)
NAMES = st.sampled_from(
    [*fairshare.TOKENS, *fairshare.COUNTS, "prompt", "prompt_embeds", "stream", "logprobs"]
)
PROMPTS = st.text(max_size=3) | st.lists(
    st.integers(0, 9) | st.text(max_size=2) | st.just([1, 2]), max_size=50
)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(NAMES, WORTHS | PROMPTS)),
    st.sampled_from(["utf-8", "utf-16", "utf-8-sig", "latin-1"]),
)
@example([("max_tokens", "50")], "utf-8")
@example([("max_tokens", 1), ("max_tokens", 5000)], "utf-8")
@example([("prompt", [1] + ["a"] * 40)], "utf-8")
def test_whatever_reaches_the_engine_is_within_the_limits(pairs, encoding):
    text = (
        "{" + ", ".join(f"{json.dumps(name)}: {json.dumps(worth)}" for name, worth in pairs) + "}"
    )
    got, _, _, bodies = alone(text.encode(encoding))
    assert got in (200, 400) and (got == 200) == bool(bodies)
    for read in map(json.loads, bodies):
        for name in (*fairshare.TOKENS, *fairshare.COUNTS):
            assert read.get(name) is None or type(read[name]) is int
        assert all((read.get(name) or 0) <= 1024 for name in fairshare.TOKENS)
        many = [
            len(each)
            for name in ("prompt", "prompt_embeds")
            if isinstance(each := read.get(name), list)
            and any(isinstance(item, (str, list)) for item in each)
        ]
        assert (
            max(1, sum(many)) * max(1, *((read.get(name) or 0) for name in fairshare.COUNTS)) <= 32
        )


def test_limits_that_cannot_be_stop_the_server_at_its_start(monkeypatch):
    monkeypatch.setenv("WORKSHOP_PER_LEARNER", "none")
    with pytest.raises(ValueError, match="WORKSHOP_PER_LEARNER"):
        FairShare(None)

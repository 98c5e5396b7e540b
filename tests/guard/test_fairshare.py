"""Limits for a class: nobody holds up the others, and no request gets past them, whatever it looks like."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from types import SimpleNamespace

import pytest
from asgi_client import answer_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workshop.guard import fairshare
from workshop.guard.asgi import path_of
from workshop.guard.fairshare import FairShare
from workshop.guard.limits import allow_list, copies, pace, request_body


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
    app, who: str, body: dict | bytes, path: str = "/v1/completions", *, device="cuda", **options
) -> tuple[int, dict, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    config = SimpleNamespace(device_config=SimpleNamespace(device_type=device))
    vllm = SimpleNamespace(state=SimpleNamespace(vllm_config=config))
    headers = [("x-workshop-learner", who)]
    start, end = await answer_of(app, path, data, headers=headers, app=vllm, **options)
    return start["status"], dict(start["headers"]), end["body"]


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
        assert not app._queues, "nothing is remembered of who has gone"

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
    "body",
    [
        {"max_tokens": 1024},
        {"n": 32},
        {"prompt": [1] * 500},
        {"n": None, "max_tokens": None},
    ],
    ids=str,
)
def test_single_request_within_the_limits_is_passed_on_whole(body):
    got, headers, _, bodies = alone(body)
    assert got == 200 and headers[b"x-workshop-limits"].startswith(b"4 requests at a time")
    assert bodies == [json.dumps(body).encode()]


TOO_MUCH = [
    *({name: 1025} for name in request_body.TOKENS),
    *({"n": count} for count in (33, "9", True, [1])),
    *({"max_tokens": count} for count in ("50", 50.0)),
    *({"prompt": prompt} for prompt in (["a"] * 33, [[1, 2]] * 33, [1] + ["a"] * 33)),
    {"best_of": 33},
    {"prompt": ["a"] * 8, "n": 5},
    {"prompt_embeds": "a"},
    {"background": True},
]
NOT_PLAIN_JSON = [
    *(b"", b"not json", b"[]", b'"x"', b"[" * 100_000, b"\xef\xbb\xbf{}", b'{"prompt": "\xff"}'),
    *(b'{"max_tokens": 1, "max_tokens": 9999}', b'{"a": {"b": 1, "b": 2}}'),
    *(b'{"n": NaN}', b'{"temperature": Infinity}', b'{"max_tokens": 1e9}'),
    *(b'{"max_tokens": ' + b"9" * digits + b"}" for digits in (4000, 5000)),
    *('{"n": 99}'.encode(encoding) for encoding in ("utf-16", "utf-32-le")),
    gzip.compress(b'{"n": 99}', mtime=0),
]


@pytest.mark.parametrize("body", [*TOO_MUCH, *NOT_PLAIN_JSON], ids=lambda body: str(body)[:40])
def test_single_request_may_not_fill_the_engine(body):
    got, headers, answer, bodies = alone(body)
    assert got == 400 and headers[b"x-workshop-limits"].startswith(b"4 requests at a time")
    message = json.loads(answer)["error"]["message"]
    assert not bodies and message.endswith(".") and len(message) < 200


def test_body_in_pieces_is_read_as_one():
    got, _, _, bodies = alone(b'{"n": 99}', pieces=3)
    assert got == 400 and not bodies
    assert alone(b'{"n": 9}', pieces=9)[3] == [b'{"n": 9}']


# All that vLLM 0.32 answers to a POST (entrypoints/**/api_router.py), and a few that it does not.
CLOSED_PATHS = """
    /v1/chat/completions/batch /inference/v1/generate /invocations /pooling /classify /score
    /v1/score /rerank /v1/rerank /v2/rerank /v2/embed /generative_scoring /v1/systemone
    /cohere/v2/chat /v1/audio/transcriptions /v1/audio/translations /v1/responses/x/cancel
    /v1/load_lora_adapter /v1/completions/render /sleep /pause /abort_requests /scale_elastic_ep
    /collective_rpc /reset_prefix_cache /v1/completions/ //v1/completions /V1/completions
    /v1/completions/x /new
"""


@pytest.mark.parametrize("path", ["", *CLOSED_PATHS.split()])
def test_every_other_path_is_closed(path):
    got, _, answer, bodies = alone({"prompt": "x"}, path)
    assert (got, bodies) == (403, [])
    assert "not open in this class" in json.loads(answer)["error"]["message"]
    assert alone({}, path, method="GET")[0] == 403


def test_every_path_that_makes_the_engine_work_is_limited():
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            assert alone({name: 1025}, path)[0] == 400 and alone({name: 1024}, path)[0] == 200
        assert alone({"n": 99}, f"/proxy{path}", root_path="/proxy")[0] == 400
    for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
        assert alone({"prompt": "x", "n": "not looked at"}, path)[0] == 200


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": "x"}, 200),
        ({"input": [1] * 500}, 200),
        ({"input": ["a"] * 32}, 200),
        ({"input": ["a"] * 33}, 400),
        ({"input": [[1, 2]] * 33}, 400),
        ({"input": ["a" * 3000] * 20}, 400),
        ({"messages": [{"role": "user", "content": "x"}] * 40}, 200),
        ({"messages": [[{"role": "user", "content": "x"}]] * 33}, 400),
        ({"messages": [[{"content": [{"image_url": {"url": "http://10.0.0.1/"}}]}]]}, 400),
    ],
    ids=lambda value: str(value)[:40],
)
def test_texts_to_embed_count_as_sequences(body, status, device):
    assert alone(body, "/v1/embeddings", device=device)[0] == status


@pytest.mark.live
def test_no_other_path_of_the_running_vllm_is_open_to_a_class(server):
    import re
    from pathlib import Path

    routes = re.findall(r"Route: (\S+), Methods: (\S.*)", Path(server.log).read_text())
    for method, expected in (
        ("POST", set(allow_list.OPEN)),
        ("GET", {allow_list.HEALTH, *allow_list.SECONDS}),
    ):
        paths = {path for path, methods in routes if method in methods}
        assert len(paths) > 5 and len(paths & expected) > 2
        assert {path for path in paths if alone({}, path, method=method)[0] != 403} <= expected


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "PUT", "DELETE", "post", "X"])
def test_no_method_goes_around_the_limits(method):
    for path in ("/v1/completions", "/metrics", "/health"):
        if (method, path) not in (("GET", "/metrics"), ("GET", "/health")):
            got, _, _, bodies = alone({"n": 99}, path, method=method)
            assert (got, bodies) == (403, [])


def test_what_learners_look_at_is_made_once_and_the_metrics_once_a_second(monkeypatch):
    """Thirty looks at each page, and three of another learner behind a proxy."""
    now = [1000.0]
    monkeypatch.setattr(copies, "monotonic", lambda: now[0])
    made = []
    is_ready = False

    async def engine(scope, receive, send):
        made.append(path_of(scope))
        assert not scope["headers"] and not scope["query_string"]
        await asyncio.sleep(0.001)
        status = 200 if is_ready else 503
        page = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": status, "headers": page})
        await send({"type": "http.response.body", "body": path_of(scope).encode()})

    async def story():
        nonlocal is_ready
        app = FairShare(engine)
        assert (await ask(app, "ada", {}, "/version", method="GET"))[0] == 503
        is_ready = True
        for path in allow_list.SECONDS:
            made.clear()
            answers = await asyncio.gather(
                *(ask(app, f"ada{path}", {}, path, method="GET") for _ in range(30)),
                *(ask(app, "bob", {}, f"/up{path}", method="GET", root_path="/up") for _ in "123"),
            )
            assert {status for status, _, _ in answers} == {200} and len(made) == 1, path
            assert {body for _, _, body in answers} == {path.encode()}
            assert all(b"x-workshop-limits" in headers for _, headers, _ in answers)
        for seconds, expected in ((0.9, 0), (0.2, 1), (5000, 1)):
            made.clear()
            now[0] += seconds
            for path in allow_list.SECONDS:
                assert (await ask(app, "ada", {}, path, method="GET"))[0] == 200
            assert made == ["/metrics"] * expected

    asyncio.run(story())


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/v1/models"), ("GET", "/docs"), ("POST", "/sleep")],
)
def test_whatever_a_learner_asks_for_is_paced_while_others_are_there(method, path, monkeypatch):
    """Fifty at once: forty pass, and the other ten wait, 50 ms longer each."""
    now = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(fairshare, "time", now)

    async def story():
        engine = Engine()
        engine.go.set()
        app = FairShare(engine)
        await ask(app, "modest", {"prompt": "y"})
        await ask(app, "greedy", {}, "/metrics", method="GET")
        began = time.monotonic()
        many = [ask(app, "greedy", {}, path, method=method) for _ in range(49)]
        waiting = asyncio.gather(*many)
        assert (await ask(app, "modest", {"prompt": "y"}))[0] == 200
        assert not waiting.done()
        await waiting
        assert time.monotonic() - began >= 0.49

    asyncio.run(story())


def test_realtime_is_closed_and_health_passes():
    sent = []

    async def app(scope, receive, send):
        sent.append("passed")

    async def send(message):
        sent.append(message["type"])

    for scope in (
        {"type": "websocket", "path": "/v1/realtime"},
        {"type": "lifespan"},
        {"type": "http", "method": "GET", "path": "/health"},
    ):
        asyncio.run(FairShare(app)(scope, None, send))
    assert sent == ["websocket.close", "passed", "passed"]


WORTHS = st.integers(-5, 5000) | st.sampled_from(
    ["50", 50.0, "9", True, None, 10**30, -1, [], {}, "", 1e300]
)
NAMES = st.sampled_from(
    [*request_body.TOKENS, *request_body.COUNTS, "prompt", "stream", "logprobs"]
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
        for name in (*request_body.TOKENS, *request_body.COUNTS):
            assert read.get(name) is None or type(read[name]) is int
        assert all((read.get(name) or 0) <= 1024 for name in request_body.TOKENS)
        prompt = read.get("prompt")
        prompts = 1
        if isinstance(prompt, list) and any(isinstance(item, (str, list)) for item in prompt):
            prompts = len(prompt)
        assert prompts * max(1, *((read.get(name) or 0) for name in request_body.COUNTS)) <= 32


def test_limits_that_cannot_be_stop_the_server_at_its_start(monkeypatch):
    monkeypatch.setenv("WORKSHOP_PER_LEARNER", "none")
    with pytest.raises(ValueError, match="WORKSHOP_PER_LEARNER"):
        FairShare(None)


def wide(count: int, tokens: int | None = None) -> dict:
    """A request for so many answers; tokens: of each."""
    return {"prompt": "x", "n": count, **({} if tokens is None else {"max_tokens": tokens})}


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [
        (wide(32, 1024), "/v1/completions", 400),
        (wide(32, 257), "/v1/completions", 400),
        (wide(32, 256), "/v1/completions", 200),
        (wide(17, 482), "/v1/completions", 400),
        (wide(16, 1024), "/v1/completions", 200),
        # what notebook 4 and its explorer send
        ({"prompt": ["The sea and the"] * 32, "max_tokens": 40}, "/v1/completions", 200),
        (wide(25, 1), "/v1/completions", 200),
        (wide(20, 24), "/v1/completions", 200),
        # vLLM takes 16 tokens where a completion names none, and the server's limit where it is null, or for a chat
        (wide(32), "/v1/completions", 200),
        ({**wide(32), "max_tokens": None}, "/v1/completions", 400),
        ({**wide(32), "max_completion_tokens": 1}, "/v1/completions", 200),
        ({"messages": [], "n": 32}, "/v1/chat/completions", 400),
        ({"messages": [], "n": 32, "max_output_tokens": 1}, "/v1/chat/completions", 400),
        ({"messages": [], "n": 32, "max_completion_tokens": 50}, "/v1/chat/completions", 200),
        ({"messages": [], "n": 16}, "/v1/chat/completions", 200),
    ],
)
def test_a_wide_request_has_fewer_tokens_on_a_cpu(body, path, status):
    got, _, answer, bodies = alone(body, path, device="cpu")
    assert got == status and bool(bodies) == (status == 200)
    if status == 400:
        message = json.loads(answer)["error"]["message"]
        assert "send 16 sequences at a time, or set max_tokens to" in message
        assert message.endswith(".") and len(message) < 200
    assert alone(body, path, device="cuda")[0] == 200, "a GPU hardly notices"


@pytest.mark.parametrize(
    ("device", "others", "inside"), [("cpu", True, 2), ("cpu", False, 4), ("cuda", True, 4)]
)
def test_one_learner_has_sixteen_sequences_in_a_cpu_while_others_are_there(device, others, inside):
    async def story():
        engine = Engine()
        app = FairShare(engine)
        if others:
            modest = asyncio.create_task(ask(app, "modest", {"prompt": "y"}, device=device))
            await asyncio.sleep(0.02)
        greedy = [asyncio.create_task(ask(app, "greedy", wide(8), device=device)) for _ in range(4)]
        await asyncio.sleep(0.05)
        assert engine.inside["greedy"] == inside
        engine.go.set()
        answers = await asyncio.gather(*greedy)
        assert [status for status, _, _ in answers] == [200] * 4, "those that waited run as well"
        if others:
            await modest

    asyncio.run(story())


def test_a_wide_request_runs_alone_among_those_of_its_learner():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        await_all = [asyncio.create_task(ask(app, "modest", {"prompt": "y"}, device="cpu"))]
        await asyncio.sleep(0.02)
        for body in (wide(1), wide(32), wide(1)):
            await_all.append(asyncio.create_task(ask(app, "greedy", body, device="cpu")))
            await asyncio.sleep(0.02)
        assert engine.inside["greedy"] == 1 and len(engine.bodies) == 2
        engine.go.set()
        await asyncio.gather(*await_all)
        assert engine.most["greedy"] == 1 and len(engine.bodies) == 4

    asyncio.run(story())


def test_who_gives_up_while_they_wait_leaves_their_place_to_the_next():
    async def story():
        engine = Engine()
        app = FairShare(engine)
        modest = asyncio.create_task(ask(app, "modest", {"prompt": "y"}, device="cpu"))
        await asyncio.sleep(0.02)
        tasks = [asyncio.create_task(ask(app, "greedy", wide(8), device="cpu")) for _ in range(4)]
        await asyncio.sleep(0.02)
        tasks[2].cancel()
        engine.go.set()
        answers = await asyncio.gather(modest, *tasks, return_exceptions=True)
        assert isinstance(answers[3], asyncio.CancelledError)
        assert [answers[place][0] for place in (0, 1, 2, 4)] == [200] * 4
        assert not app._queues

    asyncio.run(story())


@pytest.mark.parametrize(("others", "waits_s"), [(True, [8.0, 4.0]), (False, [])])
def test_a_wide_request_rests_twice_as_long_as_it_took_while_others_are_there(
    others, waits_s, monkeypatch
):
    """In time that is counted, not waited for: each request takes four seconds."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now
    slept = []

    def pass_time(seconds):
        clock.now += seconds
        if others:
            app._pace.arrive(b"modest", clock.now)

    async def sleep(seconds):
        slept.append(round(seconds, 1))
        pass_time(seconds)

    async def busy(scope, receive, send):
        pass_time(4.0)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def story():
        pass_time(1.0)
        for count in (17, 17, 17, 8, 17):  # eight are not wide, and do not wait
            await ask(app, "greedy", wide(count), device="cpu")

    app = FairShare(busy)
    monkeypatch.setattr(fairshare, "time", clock)
    monkeypatch.setattr(fairshare.asyncio, "sleep", sleep)
    asyncio.run(story())
    assert slept == waits_s


def test_rest_adds_up_to_a_third_of_the_time_for_wide_requests():
    pace_of_class = pace.LearnerPace()
    now = 0.0
    running_s = 0.0
    while now < 300:
        pace_of_class.arrive(b"modest", now)
        pace_of_class.arrive(b"greedy", now)
        now += pace_of_class.rest(b"greedy", now) + 4.0
        running_s += 4.0
        pace_of_class.arrive(b"modest", now)
        pace_of_class.end_wide(b"greedy", now, 4.0)
    assert running_s / now == pytest.approx(1 / 3, abs=0.03)


def test_eighty_short_drawings_never_rest():
    """Notebook 4 draws 2,000 tokens by 25; a step of 25 sequences takes some 50 ms."""
    pace_of_class = pace.LearnerPace()
    now = 0.0
    for _ in range(80):
        pace_of_class.arrive(b"modest", now)
        pace_of_class.arrive(b"greedy", now)
        assert pace_of_class.rest(b"greedy", now) == 0
        now += 0.05
        pace_of_class.end_wide(b"greedy", now, 0.05)


def test_who_was_alone_owes_little_rest_when_others_come():
    pace_of_class = pace.LearnerPace()
    pace_of_class.arrive(b"greedy", 0.0)
    for now in range(5, 500, 5):
        pace_of_class.end_wide(b"greedy", now, 5.0)
        assert pace_of_class.rest(b"greedy", now) == 0
    pace_of_class.arrive(b"modest", 495.0)
    assert pace_of_class.rest(b"greedy", 495.0) == 0, "the first one passes"
    pace_of_class.end_wide(b"greedy", 499.0, 4.0)
    assert pace_of_class.rest(b"greedy", 499.0) == pytest.approx(8.0)
    pace_of_class.end_wide(b"greedy", 499.0, 1000.0)
    assert pace_of_class.rest(b"greedy", 499.0) == pace.MAX_WAIT_S

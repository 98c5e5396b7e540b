"""What the engine generated is counted for whoever asked, also where no answer reports it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from workshop.servers.guard import auth, engine_tokens, keys
from workshop.servers.guard.fairshare import FairShare


def state_of(request_id, *, prompt=5, generated=0, parent=None, has_stats=True):
    """A state as vLLM's output processor makes it (v1/engine/output_processor.py, RequestState)."""
    stats = SimpleNamespace(num_generation_tokens=generated) if has_stats else None
    detokenizer = SimpleNamespace(num_output_tokens=lambda: generated)
    return SimpleNamespace(
        request_id=request_id,
        prompt_len=prompt,
        is_prefilling=not generated,
        parent_req=parent,
        stats=stats,
        detokenizer=detokenizer,
    )


class Processor:
    """The part of vLLM's output processor that is used."""

    def __init__(self):
        self.request_states = {}
        self.added = []

    def add_request(self, request, prompt=None, parent_req=None, request_index=0, queue=None):
        self.added.append((request.request_id, prompt, queue))
        self.request_states[request.request_id] = request.state


@pytest.fixture
def vllm():
    processor = Processor()
    return SimpleNamespace(
        state=SimpleNamespace(engine_client=SimpleNamespace(output_processor=processor))
    )


def add(vllm, request_id, **state) -> None:
    request = SimpleNamespace(request_id=request_id, state=state_of(request_id, **state))
    vllm.state.engine_client.output_processor.add_request(request, "text", queue="queue")


def test_each_request_notes_its_own_states_in_tasks_too(vllm):
    assert engine_tokens.count_requests_of(vllm) and engine_tokens.count_requests_of(vllm)

    async def asks(name: str) -> list[str]:
        with engine_tokens.noted_states() as states:
            await asyncio.gather(*(in_a_task(f"{name}{number}") for number in range(3)))
        return sorted(state.request_id for state in states)

    async def in_a_task(name: str) -> None:
        await asyncio.sleep(0)
        add(vllm, name)

    async def story():
        return await asyncio.gather(asks("a"), asks("b"))

    assert asyncio.run(story()) == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
    add(vllm, "nobody")
    assert vllm.state.engine_client.output_processor.added[-1] == ("nobody", "text", "queue"), (
        "once, and as it came"
    )
    assert len(vllm.state.engine_client.output_processor.added) == 7


def test_a_prompt_counts_once_for_its_answers_and_not_before_it_was_read():
    parent = object()
    states = [state_of(str(number), generated=4, parent=parent) for number in range(3)]
    assert engine_tokens.tokens_of(states) == (5, 12)
    assert engine_tokens.tokens_of([*states, state_of("x", prompt=7, generated=1)]) == (12, 13)
    assert engine_tokens.tokens_of([state_of("waits")]) == (0, 0)
    assert engine_tokens.tokens_of([state_of("no stats", generated=3, has_stats=False)]) == (5, 3)


@pytest.mark.parametrize(
    "app", [None, SimpleNamespace(), SimpleNamespace(state=SimpleNamespace(engine_client=object()))]
)
def test_an_application_without_such_an_engine_is_not_counted_in_this_way(app):
    assert not engine_tokens.count_requests_of(app) and not engine_tokens.are_running(app, [])


@pytest.fixture
def served(workshop_home, monkeypatch, vllm):
    """(an application with the guard and, if asked for, a class's limits; the engine behind; a learner's key)"""
    monkeypatch.setattr(keys, "WRITE_S", 0.0)
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))

    def make(route, *middlewares):
        app = Starlette(routes=[Route("/v1/completions", route, methods=["POST"])])
        app.state.engine_client = vllm.state.engine_client
        for middleware in (*middlewares, auth.RequireKey):
            app.add_middleware(middleware)
        return app, keys.add("ada")

    return make


async def ask(app, key, *messages, leaves_after=None, more_headers=(), path="/v1/completions"):
    """Send a request to the application as a server would; return what came back."""
    waiting, sent, gone = list(messages), [], asyncio.Event()

    async def receive():
        if waiting:
            return waiting.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if leaves_after is not None and len(sent) > leaves_after:
            gone.set()

    headers = [(b"x-api-key", key.encode()), (b"content-type", b"application/json"), *more_headers]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"",
    }
    await asyncio.wait_for(app(scope, receive, send), 20)
    await asyncio.sleep(0.1)
    return sent, waiting


def body_of(value: dict) -> dict:
    return {"type": "http.request", "body": json.dumps(value).encode()}


@pytest.mark.parametrize("middlewares", [(), (FairShare,)], ids=["alone", "a class"])
def test_a_stream_that_its_client_leaves_counts_what_the_engine_generated(
    served, vllm, middlewares
):
    state = {}

    async def route(request):
        state["body"] = await request.body()
        add(vllm, "r", generated=2)
        running = vllm.state.engine_client.output_processor.request_states

        async def events():
            try:
                while True:
                    yield 'data: {"choices": [{"text": " a"}]}\n\n'
                    await asyncio.sleep(0.01)
            finally:
                running["r"].stats.num_generation_tokens = 42  # the engine ends a moment later
                asyncio.get_running_loop().call_later(0.05, running.pop, "r")

        return StreamingResponse(events(), media_type="text/event-stream")

    app, key = served(route, *middlewares)
    payload = {"prompt": "x", "stream": True, "max_tokens": 50}

    async def story():
        await ask(app, key, body_of(payload), leaves_after=4)
        await asyncio.sleep(0.2)

    asyncio.run(story())
    assert state["body"] == json.dumps(payload).encode(), (
        "as it came: the engine is asked, not the answer"
    )
    assert [(entry["prompt_tokens"], entry["completion_tokens"]) for entry in keys.listed()] == [
        (5, 42)
    ]


@pytest.mark.parametrize(
    ("middlewares", "status"), [((), 200), ((FairShare,), 403)], ids=["alone", "a class"]
)
def test_invocations_are_closed_in_a_class_alone(served, middlewares, status):
    async def route(request):
        return JSONResponse({})

    app, key = served(route, *middlewares)
    app.add_route("/invocations", route, methods=["POST"])
    sent, _ = asyncio.run(ask(app, key, body_of({"prompt": "x"}), path="/invocations"))
    assert sent[0]["status"] == status


def test_what_vllm_reports_comes_first(served, vllm):
    async def route(request):
        add(vllm, "r", generated=99)
        vllm.state.engine_client.output_processor.request_states.clear()
        return JSONResponse({"usage": {"prompt_tokens": 3, "completion_tokens": 9}})

    app, key = served(route)
    asyncio.run(ask(app, key, body_of({"prompt": "x"})))
    assert [(entry["prompt_tokens"], entry["completion_tokens"]) for entry in keys.listed()] == [
        (3, 9)
    ]


def test_in_a_class_a_body_is_not_read_before_its_turn(served):
    """Five requests of one learner: the fifth waits, and nothing of its body is read."""
    inside, go = [], asyncio.Event()

    async def route(request):
        inside.append(await request.body())
        await go.wait()
        return JSONResponse({})

    app, key = served(route, FairShare)

    async def story():
        tasks = [asyncio.ensure_future(ask(app, key, body_of({"prompt": "x"}))) for _ in range(4)]
        while len(inside) < 4:
            await asyncio.sleep(0.01)
        reads = []

        async def receive():
            reads.append(True)
            return body_of({"prompt": "y"})

        async def send(message):
            pass

        headers = [(b"x-api-key", key.encode())]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": headers,
            "query_string": b"",
        }
        fifth = asyncio.ensure_future(app(scope, receive, send))
        await asyncio.sleep(0.1)
        assert not reads
        go.set()
        await asyncio.gather(*tasks, fifth)
        assert reads

    asyncio.run(story())


@pytest.mark.parametrize("announced", [True, False])
def test_without_a_class_a_body_has_a_limit_all_the_same(served, announced):
    async def route(request):
        raise AssertionError("it was passed on")

    app, key = served(route)
    piece = {"type": "http.request", "body": b"a" * 2**20, "more_body": True}
    length = [(b"content-length", b"9000000")] if announced else []
    sent, left = asyncio.run(ask(app, key, *[piece] * 20, more_headers=length))
    assert sent[0]["status"] == 413 and len(left) == (20 if announced else 11)

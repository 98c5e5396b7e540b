"""A request ends within a second of its key's end: its stream, its work in the engine, and a websocket."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from workshop.servers.guard import auth, keys, revocable

HTTP = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
ASGI = {
    "2.3": {"version": "3.0", "spec_version": "2.3"},
    "2.4": {"version": "3.0", "spec_version": "2.4"},
}


class Server:
    """The side of uvicorn: a client that waits for its answer, and what reaches it."""

    def __init__(self):
        self.sent, self.gone = [], asyncio.Event()
        self.bodies = asyncio.Queue()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        self.bodies.put_nowait(message.get("body", b""))


def engine(state: dict, first=b"data: {}\n\n"):
    """An application whose answer never ends; `state` says whether it was stopped."""

    async def tokens():
        try:
            yield first
            while True:
                await asyncio.sleep(0.01)
                yield first
        finally:
            state["stopped"] = True

    async def stream(request):
        return StreamingResponse(tokens(), media_type=state.get("media", "text/event-stream"))

    return Starlette(routes=[Route("/", stream, methods=["GET", "POST"])])


@pytest.mark.parametrize("spec", ASGI)
def test_a_stream_ends_with_the_reason_and_its_work_is_stopped(spec):
    state = {}

    async def story():
        server, revoked = Server(), asyncio.Event()
        scope = {**HTTP, "asgi": ASGI[spec]}
        running = asyncio.ensure_future(
            revocable.run(engine(state), scope, server.receive, server.send, revoked)
        )
        for _ in range(5):
            await server.bodies.get()
        revoked.set()
        await asyncio.wait_for(running, 10)
        return server.sent

    sent = asyncio.run(story())
    assert state["stopped"]
    assert sent[-1]["more_body"] is False
    name, data = sent[-1]["body"].decode().strip().splitlines()
    assert (
        name == "event: error"
        and "revoked" in json.loads(data.removeprefix("data: "))["error"]["message"]
    )


def test_a_stream_that_was_cut_inside_an_event_is_closed_first():
    state = {}

    async def story():
        server, revoked = Server(), asyncio.Event()
        running = asyncio.ensure_future(
            revocable.run(engine(state, b'data: {"a'), HTTP, server.receive, server.send, revoked)
        )
        await server.bodies.get()
        await server.bodies.get()
        revoked.set()
        await asyncio.wait_for(running, 10)
        return server.sent

    assert asyncio.run(story())[-1]["body"].startswith(b"\n\nevent: error\n")


def test_an_answer_that_is_no_stream_of_events_stays_unfinished():
    state = {"media": "application/octet-stream"}

    async def story():
        server, revoked = Server(), asyncio.Event()
        running = asyncio.ensure_future(
            revocable.run(engine(state), HTTP, server.receive, server.send, revoked)
        )
        await server.bodies.get()
        await server.bodies.get()
        revoked.set()
        await asyncio.wait_for(running, 10)
        return server.sent

    assert state and all(message.get("more_body", True) for message in asyncio.run(story()))


@pytest.mark.parametrize("obeys", [True, False])
def test_an_answer_that_has_not_begun_is_refused(obeys):
    ended = []

    async def app(scope, receive, send):
        try:
            while not (obeys and (await receive())["type"] == "http.disconnect"):
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    async def story():
        server, revoked = Server(), asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, revoked.set)
        await asyncio.wait_for(revocable.run(app, HTTP, server.receive, server.send, revoked), 10)
        return server.sent

    start, body = asyncio.run(story())
    assert (
        ended
        and start["status"] == 401
        and "revoked" in json.loads(body["body"])["error"]["message"]
    )


@pytest.mark.parametrize("obeys", [True, False])
def test_a_websocket_is_closed(obeys):
    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        while not (obeys and (await receive())["type"] == "websocket.disconnect"):
            await asyncio.sleep(0.01)

    async def story():
        server, revoked = Server(), asyncio.Event()
        asyncio.get_running_loop().call_later(0.05, revoked.set)
        scope = {**HTTP, "type": "websocket"}
        await asyncio.wait_for(revocable.run(app, scope, server.receive, server.send, revoked), 10)
        return server.sent

    accepted, closed = asyncio.run(story())
    assert accepted["type"] == "websocket.accept"
    assert closed == {"type": "websocket.close", "code": 1008, "reason": "key revoked"}


def test_nothing_changes_for_an_answer_that_ends_by_itself_or_fails():
    async def answers(scope, receive, send):
        await JSONResponse({"a": 1})(scope, receive, send)

    async def fails(scope, receive, send):
        raise RuntimeError("of the application")

    async def leaves(scope, receive, send):
        await receive()

    async def story(app, gone=False):
        server = Server()
        if gone:
            server.gone.set()
        await asyncio.wait_for(
            revocable.run(app, HTTP, server.receive, server.send, asyncio.Event()), 10
        )
        return server.sent

    assert [message["type"] for message in asyncio.run(story(answers))] == [
        "http.response.start",
        "http.response.body",
    ]
    assert asyncio.run(story(leaves, gone=True)) == []
    with pytest.raises(RuntimeError, match="of the application"):
        asyncio.run(story(fails))


def test_a_server_that_stops_stops_what_it_serves():
    state = {}

    async def story():
        server = Server()
        running = asyncio.ensure_future(
            revocable.run(engine(state), HTTP, server.receive, server.send, asyncio.Event())
        )
        await server.bodies.get()
        await server.bodies.get()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(story())
    assert state["stopped"]


@pytest.mark.parametrize("kind", ["stream", "websocket"])
def test_the_guard_ends_what_a_revoked_key_had_asked_for_and_nothing_else(
    workshop_home, monkeypatch, kind
):
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))
    ada, bob = keys.add("ada"), keys.add("bob")

    async def app(scope, receive, send):
        await send({"type": "websocket.accept" if kind == "websocket" else "http.response.start", "status": 200,
                    "headers": [(b"content-type", b"text/event-stream")]})  # fmt: skip
        while True:
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
            await asyncio.sleep(0.01)

    async def story():
        guard = auth.RequireKey(app)
        connections = {}
        for name, key in (("ada", ada), ("bob", bob), ("owner", "owner")):
            server = Server()
            scope = {**HTTP, "type": "http" if kind == "stream" else kind}
            scope["headers"] = [(b"authorization", f"Bearer {key}".encode())]
            connections[name] = (
                server,
                asyncio.ensure_future(guard(scope, server.receive, server.send)),
            )
            await server.bodies.get()
        began = time.monotonic()
        await asyncio.to_thread(keys.revoke, "ada")
        await asyncio.wait_for(connections["ada"][1], 20)
        took = time.monotonic() - began
        assert not connections["bob"][1].done() and not connections["owner"][1].done()
        for name in ("bob", "owner"):
            connections[name][1].cancel()
        return connections["ada"][0].sent[-1], took

    last, took = asyncio.run(story())
    assert took < 10  # half a second, on a machine that does nothing else
    assert "revoked" in (last.get("reason") or last["body"].decode())

"""A request ends within a second of its key's end: its stream, and its work in the engine."""

from __future__ import annotations

import asyncio
import json

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from workshop.guard import auth, keys
from workshop.guard.revocable import RevocableRequest

HTTP = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}


class Client:
    """A client that waits for its answer, and what reaches it."""

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
            while True:
                yield first
                await asyncio.sleep(0.01)
        finally:
            state["stopped"] = True

    async def stream(request):
        return StreamingResponse(tokens(), media_type=state.get("media", "text/event-stream"))

    return Starlette(routes=[Route("/", stream, methods=["GET", "POST"])])


def answer_until_revoked(app, scope=HTTP, parts=0) -> list[dict]:
    """Return what a client gets of a request that is revoked after some parts of its answer."""

    async def story():
        client = Client()
        request = RevocableRequest(app, scope, client.receive, client.send)
        task = asyncio.ensure_future(request.serve())
        for _ in range(parts):
            await client.bodies.get()
        await asyncio.sleep(0.02)  # the application is at work
        request.revoke()
        request.revoke()
        await asyncio.wait_for(task, 10)
        return client.sent

    return asyncio.run(story())


@pytest.mark.parametrize("spec", ["2.3", "2.4"])
@pytest.mark.parametrize("first", [b"data: {}\n\n", b'data: {"a'])
def test_a_stream_ends_with_the_reason_and_its_work_is_stopped(spec, first):
    state = {}
    scope = {**HTTP, "asgi": {"version": "3.0", "spec_version": spec}}
    sent = answer_until_revoked(engine(state, first), scope, parts=4)
    assert state["stopped"]
    assert sent[-1]["more_body"] is False and sent[-1]["body"].startswith(b"\n\nevent: error\n")
    data = sent[-1]["body"].decode().strip().splitlines()[1]
    assert "revoked" in json.loads(data.removeprefix("data: "))["error"]["message"]


def test_an_answer_that_is_no_stream_of_events_stays_unfinished():
    state = {"media": "application/octet-stream"}
    sent = answer_until_revoked(engine(state), parts=3)
    assert state["stopped"] and all(message.get("more_body", True) for message in sent)


@pytest.mark.parametrize("obeys", [True, False])
def test_an_answer_that_has_not_begun_is_refused(obeys):
    ended = []

    async def app(scope, receive, send):
        try:
            while not (obeys and (await receive())["type"] == "http.disconnect"):
                await asyncio.sleep(0.01)
        finally:
            ended.append(True)

    start, body = answer_until_revoked(app)
    assert ended and start["status"] == 401
    assert "revoked" in json.loads(body["body"])["error"]["message"]


def test_work_in_a_task_of_its_own_is_stopped_and_what_it_answers_is_dropped():
    """As vLLM's routes do it: they stop their work at a disconnect, and forget it if cancelled."""
    ended = []

    async def work():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def app(scope, receive, send):
        working, leaving = asyncio.ensure_future(work()), asyncio.ensure_future(receive())
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await JSONResponse(None)(scope, receive, send)

    start, _ = answer_until_revoked(app)
    assert ended and start["status"] == 401


def test_an_application_that_fails_because_its_client_left_is_refused_as_well():
    async def app(scope, receive, send):
        await receive()
        raise RuntimeError("where is the client?")

    assert answer_until_revoked(app)[0]["status"] == 401


def test_an_answer_that_is_whole_gets_nothing_more():
    async def app(scope, receive, send):
        await JSONResponse({"a": 1})(scope, receive, send)
        await asyncio.sleep(60)

    assert [message["type"] for message in answer_until_revoked(app)] == [
        "http.response.start",
        "http.response.body",
    ]


def test_nothing_changes_for_an_answer_that_ends_by_itself_or_fails():
    async def fails(scope, receive, send):
        raise RuntimeError("of the application")

    async def leaves(scope, receive, send):
        await receive()

    async def story(app):
        client = Client()
        client.gone.set()
        await RevocableRequest(app, HTTP, client.receive, client.send).serve()
        return client.sent

    assert len(asyncio.run(story(JSONResponse({"a": 1})))) == 2
    assert asyncio.run(story(leaves)) == []
    with pytest.raises(RuntimeError, match="of the application"):
        asyncio.run(story(fails))


def test_a_server_that_stops_stops_what_it_serves():
    state = {}

    async def story():
        client = Client()
        request = RevocableRequest(engine(state), HTTP, client.receive, client.send)
        task = asyncio.ensure_future(request.serve())
        await client.bodies.get()
        await client.bodies.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert state["stopped"]


class Asking(Client):
    """A client that sends a body and then waits."""

    def __init__(self):
        super().__init__()
        self.messages = [{"type": "http.request", "body": b"{}"}]

    async def receive(self):
        return self.messages.pop() if self.messages else await super().receive()


def test_a_guard_ends_what_a_revoked_key_asked_for_and_nothing_else(workshop_home, monkeypatch):
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))
    ada, bob = keys.add("ada"), keys.add("bob")

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.sleep(600)

    async def story():
        guard = auth.RequireKey(app)
        clients = [Asking() for _ in range(3)]
        tasks = []
        for key, client in zip((ada, bob, "owner"), clients, strict=True):
            headers = [(b"authorization", f"Bearer {key}".encode())]
            scope = {**HTTP, "method": "POST", "path": "/v1/completions", "headers": headers}
            tasks.append(asyncio.ensure_future(guard(scope, client.receive, client.send)))
            await asyncio.wait_for(client.bodies.get(), 60)
        await asyncio.to_thread(keys.revoke, "ada")
        await asyncio.wait_for(tasks[0], 60)
        assert not tasks[1].done() and not tasks[2].done()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not guard._learners._served
        return clients

    _, *others = asyncio.run(story())
    assert all(client.sent[-1]["body"] == b"a" for client in others)

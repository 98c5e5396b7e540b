"""A request ends within a second of its key's end: its stream, its work in the engine, and a websocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute

from workshop.guard import auth, keys
from workshop.guard.revocable import Request

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
        request = Request(app, scope, client.receive, client.send)
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


@pytest.mark.parametrize("obeys", [True, False])
def test_a_websocket_is_closed(obeys):
    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        while not (obeys and (await receive())["type"] == "websocket.disconnect"):
            await asyncio.sleep(0.01)

    accepted, closed = answer_until_revoked(app, {**HTTP, "type": "websocket"})
    assert accepted["type"] == "websocket.accept"
    assert closed == {"type": "websocket.close", "code": 1008, "reason": "key revoked"}


def test_a_websocket_that_was_closed_is_not_closed_again():
    async def app(scope, receive, send):
        await send({"type": "websocket.close", "code": 1000})
        await asyncio.sleep(60)

    assert len(answer_until_revoked(app, {**HTTP, "type": "websocket"})) == 1


def test_nothing_changes_for_an_answer_that_ends_by_itself_or_fails():
    async def fails(scope, receive, send):
        raise RuntimeError("of the application")

    async def leaves(scope, receive, send):
        await receive()

    async def story(app):
        client = Client()
        client.gone.set()
        await Request(app, HTTP, client.receive, client.send).serve()
        return client.sent

    assert len(asyncio.run(story(JSONResponse({"a": 1})))) == 2
    assert asyncio.run(story(leaves)) == []
    with pytest.raises(RuntimeError, match="of the application"):
        asyncio.run(story(fails))


def test_a_server_that_stops_stops_what_it_serves():
    state = {}

    async def story():
        client = Client()
        request = Request(engine(state), HTTP, client.receive, client.send)
        task = asyncio.ensure_future(request.serve())
        await client.bodies.get()
        await client.bodies.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())
    assert state["stopped"]


class Served:
    """A guard and a small application behind it, in a real uvicorn."""

    def __init__(self):
        self.began: list[str] = []  # the paths of what is or was at work
        self.stopped: list[str] = []  # … of what was stopped
        routes = [Route(path, self.answer, methods=["POST"]) for path in PATHS]
        routes.append(WebSocketRoute("/v1/realtime", self.talk))
        self.guard = auth.RequireKey(Starlette(routes=routes))
        self.url = ""

    async def answer(self, request):
        if request.url.path == WAITS:
            await self.endless(request.url.path).__anext__()
        return StreamingResponse(self.endless(request.url.path), media_type="text/event-stream")

    async def endless(self, path):
        self.began.append(path)
        try:
            while True:
                if path == STREAMS:
                    yield b"data: {}\n\n"
                await asyncio.sleep(0.01)
        finally:
            self.stopped.append(path)

    async def talk(self, websocket):
        await websocket.accept()
        try:
            await websocket.receive_text()
        finally:
            self.stopped.append("websocket")

    @contextlib.asynccontextmanager
    async def running(self):
        config = uvicorn.Config(self.guard, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            task = asyncio.ensure_future(server.serve([listening]))
            try:
                async with httpx.AsyncClient(base_url=self.url, timeout=60) as client:
                    yield client
            finally:
                server.should_exit = server.force_exit = True
                await task

    async def ask(self, client, key: str, path: str, began: asyncio.Event) -> tuple[int, str]:
        """Return status and text of an answer."""
        headers = {"Authorization": f"Bearer {key}"}
        async with client.stream("POST", path, headers=headers, json={"prompt": "a"}) as answer:
            text = ""
            async for part in answer.aiter_text():
                began.set()
                text += part
            return answer.status_code, text


STREAMS, WAITS = PATHS = ("/v1/completions", "/v1/chat/completions")


@pytest.fixture
def served(workshop_home, monkeypatch):
    record = workshop_home / "servers" / "one.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"api_key": "owner"}))
    monkeypatch.setenv(auth.RECORD_VARIABLE, str(record))
    return Served()


def test_a_real_server_ends_all_that_a_revoked_key_asked_for_and_nothing_else(served):
    ada, bob = keys.add("ada"), keys.add("bob")

    async def story():
        async with served.running() as client:
            began = [asyncio.Event() for _ in range(4)]
            requests = ((ada, STREAMS), (ada, STREAMS), (bob, STREAMS), ("owner", STREAMS))
            tasks = []
            for (key, path), event in zip(requests, began, strict=True):
                tasks.append(asyncio.ensure_future(served.ask(client, key, path, event)))
            for event in began:
                await asyncio.wait_for(event.wait(), 60)
            waits = asyncio.ensure_future(served.ask(client, ada, WAITS, asyncio.Event()))
            await until(lambda: WAITS in served.began)
            assert len(served.guard._learners._served) == 4
            await asyncio.to_thread(keys.revoke, "ada")
            streams = await asyncio.wait_for(asyncio.gather(*tasks[:2]), 60)
            refused = await asyncio.wait_for(waits, 60)
            await until(
                lambda: len(served.stopped) == 3
            )  # Python closes a generator a moment later
            assert sorted(served.stopped) == sorted([STREAMS, STREAMS, WAITS])
            assert not tasks[2].done() and not tasks[3].done()
            for task in tasks[2:]:
                task.cancel()
            await until(lambda: not served.guard._learners._served)
        return streams, refused

    streams, (status, text) = asyncio.run(story())
    assert status == 401 and "was revoked" in text
    for status, text in streams:
        assert status == 200 and text.endswith("\n\n") and "event: error\n" in text[-200:]


def test_a_websocket_of_a_real_server_is_closed_and_forgotten(served):
    connect = pytest.importorskip("websockets.asyncio.client").connect
    closed = pytest.importorskip("websockets.exceptions").ConnectionClosed
    ada = keys.add("ada")

    async def story():
        async with served.running():
            url = served.url.replace("http", "ws") + "/v1/realtime"
            headers = {"Authorization": f"Bearer {ada}"}
            async with connect(url, additional_headers=headers, open_timeout=60) as websocket:
                await asyncio.to_thread(keys.revoke, "ada")
                with pytest.raises(closed) as ended:
                    await asyncio.wait_for(websocket.recv(), 60)
            await until(lambda: not served.guard._learners._served)
        return ended.value.rcvd

    frame = asyncio.run(story())
    assert (frame.code, frame.reason) == (1008, "key revoked")
    assert served.stopped == ["websocket"]


async def until(true) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)

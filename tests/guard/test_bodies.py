"""Bodies of requests: read in their turn, within a size and a time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys

import psutil
import pytest

from workshop.guard import fairshare
from workshop.guard.fairshare import FairShare
from workshop.guard.limits import bodies, pace
from workshop.guard.limits.bodies import MAX_BODY_BYTES
from workshop.guard.limits.pace import BURST, EVERY_S, LearnerPace

MIB = 2**20


async def answered(scope, receive, send):
    """An engine that reads the request and answers at once."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


class Client:
    """Sends a request to a middleware piece by piece, as uvicorn hands it on; counts what was taken."""

    def __init__(self, length: int | None = None, learner: str = "one", **headers: str):
        self.pieces: asyncio.Queue[dict] = asyncio.Queue()
        self.taken = 0
        self.sent: list[dict] = []
        named = {"x-workshop-learner": learner, **headers}
        if length is not None:
            named["content-length"] = str(length)
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "headers": [
                (name.replace("_", "-").encode(), value.encode()) for name, value in named.items()
            ],
        }

    def give(self, body: bytes, more: bool = False) -> Client:
        self.pieces.put_nowait({"type": "http.request", "body": body, "more_body": more})
        return self

    def leave(self) -> Client:
        self.pieces.put_nowait({"type": "http.disconnect"})
        return self

    async def receive(self) -> dict:
        message = await self.pieces.get()
        self.taken += len(message.get("body", b""))
        return message

    async def send(self, message: dict) -> None:
        self.sent.append(message)

    async def ask(self, app) -> int | None:
        await app(self.scope, self.receive, self.send)
        return self.sent[0]["status"] if self.sent else None

    @property
    def error_message(self) -> str:
        return json.loads(self.sent[1]["body"])["error"]["message"]


def test_a_length_beyond_the_limit_is_refused_without_reading():
    client = Client(MAX_BODY_BYTES + 1).give(b"x" * 1000, more=True)
    assert asyncio.run(client.ask(FairShare(answered))) == 413
    assert client.taken == 0 and "8 MiB" in client.error_message and "split" in client.error_message


@pytest.mark.parametrize("length", ["9" * 5000, "99999999999999999999999"])
def test_a_length_of_many_digits_is_refused(length):
    assert asyncio.run(Client(content_length=length).ask(FairShare(answered))) == 413


def test_a_body_without_a_length_is_read_to_the_limit_and_no_further():
    client = Client()
    for _ in range(20):
        client.give(b"x" * MIB, more=True)
    assert asyncio.run(client.ask(FairShare(answered))) == 413
    assert client.taken <= MAX_BODY_BYTES + MIB


def test_a_body_that_stops_half_way_is_given_up(monkeypatch):
    monkeypatch.setattr(bodies, "STALLED_S", 0.05)
    client = Client(1000).give(b"{", more=True)
    assert asyncio.run(client.ask(FairShare(answered))) == 408
    assert "did not come" in client.error_message


def test_a_body_that_comes_in_drops_has_an_end(monkeypatch):
    monkeypatch.setattr(bodies, "SLOWEST_S", 0.3)

    async def story():
        client = Client(1000)

        async def drip():
            while True:
                client.give(b" ", more=True)
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            return await asyncio.wait_for(client.ask(FairShare(answered)), 30)
        finally:
            dripping.cancel()

    assert asyncio.run(story()) == 408


def test_a_client_that_leaves_half_way_gets_no_answer_and_leaves_nothing():
    app = FairShare(answered)
    assert asyncio.run(Client(1000).give(b"{", more=True).leave().ask(app)) is None
    assert not app._queues


def test_half_sent_requests_of_one_learner_are_not_read_before_their_turn():
    """200 of them took 1.5 GB: each was read before the limits applied."""

    async def story():
        app = FairShare(answered)
        clients = [Client(8 * MIB).give(b"x" * MIB, more=True) for _ in range(200)]
        tasks = [asyncio.create_task(client.ask(app)) for client in clients]
        await asyncio.sleep(0.2)
        assert sum(client.taken > 0 for client in clients) == 4, "as many as may run"
        refused = [client for client in clients if client.sent]
        assert len(refused) == 200 - 4 - fairshare.MAX_WAITING
        assert all(client.sent[0]["status"] == 429 and client.taken == 0 for client in refused)
        assert await asyncio.wait_for(Client(learner="two").give(b"{}").ask(app), 30) == 200, (
            "others go on"
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not app._queues

    asyncio.run(story())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_request_id": "a" * 128}, 200),
        ({"x_request_id": "a" * 129}, 400),
        ({"x_request_id": "a" * 60_000}, 400),
        ({"x_vllm_priority": "-5"}, 400),
    ],
    ids=["usual", "long", "60 kB", "priority"],
)
def test_headers_that_others_would_pay_for_are_refused(headers, status):
    assert asyncio.run(Client(**headers).give(b"{}").ask(FairShare(answered))) == status


def test_a_learner_has_one_large_request_in_the_engine_at_a_time():
    async def story():
        inside, most, go = 0, 0, asyncio.Event()

        async def engine(scope, receive, send):
            nonlocal inside, most
            await receive()
            inside += 1
            most = max(most, inside)
            await go.wait()
            inside -= 1
            await answered(scope, _nothing, send)

        app = FairShare(engine)
        large = json.dumps({"prompt": "x", "n": 32}).encode()
        tasks = [asyncio.create_task(Client().give(large).ask(app)) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert inside == 1
        small = asyncio.create_task(Client().give(b'{"prompt": "x", "n": 8}').ask(app))
        await asyncio.sleep(0.05)
        assert inside == 2, "a small one of the same learner passes"
        go.set()
        assert await asyncio.wait_for(asyncio.gather(small, *tasks), 30) == [200] * 4
        assert most == 2 and not app._queues

    asyncio.run(story())


async def _nothing() -> dict:
    return {"type": "http.disconnect"}


def test_a_flood_of_one_learner_is_slowed_once_somebody_else_is_there():
    alone, shared = LearnerPace(), LearnerPace()
    assert [alone.arrive(b"a", 0.0) for _ in range(1000)] == [0.0] * 1000, "nobody is held up"
    shared.arrive(b"b", 0.0)
    waits = [shared.arrive(b"a", 0.0) for _ in range(BURST + 40)]
    assert max(waits[:BURST]) < 1e-9 and waits[-1] == pytest.approx(40 * EVERY_S)
    assert shared.arrive(b"b", 0.0) == 0.0, "the other is not"
    assert shared.charge(b"a", 0.0, 10**6) == pace.MAX_WAIT_S, "nobody waits for ever"
    assert shared.arrive(b"a", 60.0) == 0.0, "and it is forgotten"


def test_a_request_weighs_what_it_costs():
    assert pace.weight(b'{"prompt": "x"}') == 0 and pace.weight(b"{}," * 1000) == 10
    assert pace.weight(b"x" * 20_000) == 0, "one prompt is read in small parts"
    assert pace.weight(b"x" * 20_000, sequences=8) == 19, "of several all are read at once"
    assert (
        pace.weight(b"x" * 3_000_000) == 22 and pace.weight(b"x" * 3_000_000, sequences=2) == 32
    ), "a picture"


def test_the_pace_forgets_who_has_gone():
    many = LearnerPace()
    for number in range(5 * pace.MAX_REMEMBERED):
        many.arrive(str(number).encode(), number / 10)
    assert len(many._due) <= pace.MAX_REMEMBERED + 1


def test_a_long_name_of_a_learner_is_no_memory_of_the_server():
    async def story():
        app = FairShare(answered)
        task = asyncio.create_task(Client(learner="n" * 60_000).ask(app))
        await asyncio.sleep(0.01)
        assert max(map(len, app._queues)) <= fairshare.MAX_NAME
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())


SERVER = """
import socket
import uvicorn
from workshop.guard.fairshare import FairShare
async def app(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})
listener = socket.create_server(("127.0.0.1", 0), backlog=300)
print(listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(FairShare(app), lifespan="off", log_level="error", http="h11")).run(sockets=[listener])
"""


@pytest.fixture
def serving():
    """(port, psutil.Process) of uvicorn with the limits of a class, as vLLM starts it."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline())
    assert answer_of(port, b"{}").startswith(b"HTTP/1.1 200")
    yield port, psutil.Process(process.pid)
    process.terminate()
    process.communicate()


def head(length: int, learner: str = "greedy") -> bytes:
    lines = [
        "POST /v1/completions HTTP/1.1",
        "Host: x",
        f"X-Workshop-Learner: {learner}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def answer_of(port: int, body: bytes, length: int | None = None) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(head(len(body) if length is None else length, "modest") + body)
        return client.recv(4096)


def test_half_sent_requests_cost_a_real_server_little_memory(serving):
    port, process = serving
    before = process.memory_info().rss
    with contextlib.ExitStack() as connections:
        for _ in range(200):
            client = connections.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=60)
            )
            client.sendall(head(8 * MIB - 1))
            client.setblocking(False)
            # until the server reads no further
            with contextlib.suppress(BlockingIOError, ConnectionError):
                for _ in range(7):
                    client.send(b"x" * MIB)
        assert answer_of(port, b"{}").startswith(b"HTTP/1.1 200"), "others are served"
        assert process.memory_info().rss - before < 150 * MIB, "it was 1,572 MiB"
    assert answer_of(port, b"{}").startswith(b"HTTP/1.1 200")


def test_a_real_server_refuses_a_long_body_before_it_comes(serving):
    port, _ = serving
    assert answer_of(port, b"", length=10**12).startswith(b"HTTP/1.1 413")

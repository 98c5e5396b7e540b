"""A server whose every byte a test decides: it keeps the requests as they came, and answers with what `reply` says."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Asked:
    """One request as it came: `number` completions came before, it is the `on_connection`-th of its `connection`."""

    path: str
    headers: dict[str, str]  # by lower-case names
    body: bytes
    number: int
    on_connection: int
    connection: int = 0

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """The prompt, the input, or the last message."""
        body = self.json
        return body.get("prompt") or body.get("input") or body["messages"][-1]["content"]


@dataclass
class Reply:
    """What goes back: `again_after_s` are times at which the whole answer is sent once more."""

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    after_s: float = 0.0
    again_after_s: Iterable[float] = ()

    def wire(self) -> bytes:
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(self.body)),
            **self.headers,
        }
        lines = [
            f"HTTP/1.1 {self.status} Said",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


HTML = b"<html><head><title>Error</title></head><body>cloudflare tunnel error</body></html>"


def answer(request: Asked, number: str = "", **over) -> Reply:
    """An answer as vLLM's: its id has the X-Request-Id that was sent, and its text repeats the prompt."""
    chat = request.path.endswith("/chat/completions")
    named = request.headers.get("x-request-id", f"{request.number}")
    body = request.json
    choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
    if chat:
        choice["message"] = over.pop("message", {"role": "assistant", "content": request.text})
    else:
        choice["text"] = request.text
    fields = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{named}",
        "object": "chat.completion" if chat else "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    if request.path.endswith("/embeddings"):
        inputs = body["input"]
        if not isinstance(inputs, list) or isinstance(inputs[0], int):
            inputs = [inputs]
        fields["data"] = [
            {"index": number, "object": "embedding", "embedding": [len(value), 0.5]}
            for number, value in enumerate(inputs)
        ]
        fields |= {"id": f"embd-{named}", "object": "list"}
        del fields["choices"]
    return Reply(json.dumps({**fields, **over}).encode())


def html(status: int, **headers: str) -> Reply:
    return Reply(HTML, status, {"Content-Type": "text/html", **headers})


class WireStub:
    """The server; `reply(asked)` answers completions, `models` is what /v1/models lists, `get` may answer other paths."""

    def __init__(
        self,
        reply: Callable[[Asked], Reply] = answer,
        models: Iterable[str | dict] = ("stub",),
        get: Callable[[Asked], Reply | None] = lambda request: None,
    ):
        self.reply, self.get = reply, get
        self.models = [{"id": model} if isinstance(model, str) else model for model in models]
        self.asked: list[Asked] = []
        self.gets: list[Asked] = []
        self.connections = 0
        self.sent_again = 0
        self.lost: list[
            int
        ] = []  # connections by their numbers from 1, in the order in which they were closed
        self._loop, ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(10)

    def _serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        start = self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        self._server = self._loop.run_until_complete(start)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        ready.set()
        self._loop.run_forever()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def respond(self, request: Asked) -> Reply:
        """Return the reply to any request, having noted it."""
        if request.path.endswith(("completions", "/embeddings")):
            request.number = len(self.asked)
            self.asked.append(request)
            return self.reply(request)
        self.gets.append(request)
        if reply := self.get(request):
            return reply
        if request.path.endswith("/models"):
            return Reply(json.dumps({"object": "list", "data": self.models}).encode())
        if request.path.endswith("/version"):
            return Reply(b'{"version": "stub"}')
        return Reply(b"{}", 404)


class _Connection(asyncio.Protocol):
    def __init__(self, stub: WireStub):
        self._stub, self._buffer, self._count = stub, b"", 0

    def connection_made(self, transport) -> None:
        self._transport = transport
        self._stub.connections += 1
        self._number = self._stub.connections

    def connection_lost(self, error) -> None:
        self._stub.lost.append(self._number)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            headers = {
                name.lower(): value.strip()
                for name, _, value in (line.partition(":") for line in lines)
            }
            size = int(headers.get("content-length", 0))
            if len(rest) < size:
                return
            body, self._buffer = rest[:size], rest[size:]
            self._count += 1
            self._send(
                self._stub.respond(
                    Asked(first.split()[1], headers, body, 0, self._count, self._number)
                )
            )

    def _send(self, reply: Reply) -> None:
        if reply.after_s:
            asyncio.get_running_loop().call_later(reply.after_s, self._write, reply.wire())
        else:
            self._write(reply.wire())
        for seconds in reply.again_after_s:
            asyncio.get_running_loop().call_later(
                reply.after_s + seconds, self._write_again, reply.wire()
            )

    def _write_again(self, data: bytes) -> None:
        self._write(data)
        self._stub.sent_again += 1

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


@contextmanager
def servers() -> Iterator[Callable[..., WireStub]]:
    """Give a function that starts a server whose every byte the test decides; all end with the block."""
    started: list[WireStub] = []

    def start(*args, **kwargs) -> WireStub:
        started.append(WireStub(*args, **kwargs))
        return started[-1]

    yield start
    for server in started:
        server.close()

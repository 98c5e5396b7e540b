"""Run an ASGI application for a request, and end it when the key of the request is revoked.

Its engine work ends as if the client had left: the application is told of a disconnect, and
cancelled if it goes on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from workshop.servers.guard.asgi import header_of, refuse

GRACE_S = 0.2  # for an application that knows what a disconnect is
MESSAGE = "The key of this request was revoked."
KIND = "invalid_api_key"
REVOKED = {"type": "error", "error": {"message": MESSAGE, "type": KIND, "code": 401}}


async def run(app, scope: dict[str, Any], receive, send, revoked: asyncio.Event) -> None:
    """Run the application until it is done, or until `revoked` is set; then the client is told."""
    answer = _Answer(scope, receive, send, revoked)
    task = asyncio.ensure_future(app(scope, answer.receive, answer.send))
    waiting = asyncio.ensure_future(revoked.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not revoked.is_set():
            await task
            return
        await asyncio.wait({task}, timeout=GRACE_S)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=GRACE_S)
    if task.done() and not task.cancelled():
        task.exception()  # that of an application whose client has left
    await answer.end()


class _Answer:
    """Both directions between the server and the application."""

    def __init__(self, scope: dict[str, Any], receive, send, revoked: asyncio.Event):
        self._is_websocket = scope["type"] == "websocket"
        self._receive = receive
        self._send = send
        self._revoked = revoked
        self._started = False
        self._is_stream = False
        self._ended = False
        self._last = b"\n\n"

    async def receive(self) -> dict[str, Any]:
        """Return the next message of the client; a disconnect once the key is revoked."""
        message = asyncio.ensure_future(self._receive())
        revoked = asyncio.ensure_future(self._revoked.wait())
        try:
            await asyncio.wait({message, revoked}, return_when=asyncio.FIRST_COMPLETED)
            if message.done() and not self._revoked.is_set():
                return message.result()
        finally:
            message.cancel()
            revoked.cancel()
        if self._is_websocket:
            return {"type": "websocket.disconnect", "code": 1008}
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Pass a message on; an OSError once the key is revoked, as for a client that has left."""
        if self._revoked.is_set():
            raise OSError(MESSAGE)
        self._note(message)
        await self._send(message)

    async def end(self) -> None:
        """Tell the client why its answer ends here."""
        if self._ended:
            return
        if self._is_websocket:
            await self._send({"type": "websocket.close", "code": 1008, "reason": "key revoked"})
        elif not self._started:
            await refuse(self._send, 401, MESSAGE, KIND, (b"www-authenticate", b"Bearer"))
        elif self._is_stream:
            between = b"\n\n"
            if self._last.endswith((b"\n\n", b"\r\n\r\n")):
                between = b""
            event = f"event: error\ndata: {json.dumps(REVOKED)}\n\n".encode()
            await self._send(
                {"type": "http.response.body", "body": between + event, "more_body": False}
            )
        # Another answer that has begun stays unfinished: the server then closes the connection.

    def _note(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._started = True
            content_type = header_of(message.get("headers", ()), b"content-type")
            self._is_stream = content_type.lower().startswith(b"text/event-stream")
        elif kind == "http.response.body":
            self._started = True
            self._last = (self._last + message.get("body", b""))[-4:]
            self._ended = not message.get("more_body", False)
        elif kind == "websocket.close" or kind.startswith("websocket.http.response"):
            self._ended = True

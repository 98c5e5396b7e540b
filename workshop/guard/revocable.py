"""Runs an ASGI application for a request, and ends it when the key of the request is revoked.

Its work ends as if the client had left: whoever waits for the client's next message hears that it
has disconnected, and an application that goes on is cancelled. A cancelled task alone would not do:
vLLM (0.32, entrypoints/serve/utils/api_utils.py, `with_cancellation`) lets the engine work on for
it, and stops the engine when the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from workshop.guard.asgi import header_of, refuse

GRACE_S = 0.2  # for an application that knows what a disconnect is
MESSAGE = "The key of this request was revoked."
KIND = "invalid_api_key"
REVOKED = {"type": "error", "error": {"message": MESSAGE, "type": KIND, "code": 401}}


class RevocableRequest:
    """A request that is served until it is answered or revoked."""

    def __init__(self, app, scope: dict[str, Any], receive, send):
        self._app = app
        self._scope = scope
        self._receive = receive
        self._send = send
        self._task: asyncio.Task | None = None
        self._waiting: set[asyncio.Task] = set()  # for the client's next message
        self._first: dict[str, Any] = {}  # message of the answer
        self._last: dict[str, Any] = {}
        self._is_revoked = False

    async def serve(self) -> None:
        """Run the application until it is done, or until the key is revoked; then say so."""
        task = _current_task()
        self._task = task
        try:
            await self._app(self._scope, self._next_message, self._pass_on)
        except asyncio.CancelledError:
            if not self._is_revoked:
                raise
            _uncancel(task)
        except Exception:  # of an application whose client has left
            if not self._is_revoked:
                raise
        finally:
            self._task = None
        if self._is_revoked:
            await self._end()

    def revoke(self) -> None:
        """End the request: the client seems to leave, and after a moment its task is cancelled."""
        if self._is_revoked:
            return
        self._is_revoked = True
        for task in self._waiting:
            task.cancel()
        asyncio.get_running_loop().call_later(GRACE_S, self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _next_message(self) -> dict[str, Any]:
        """Return the client's next message; a disconnect once the key is revoked."""
        task = _current_task()
        self._waiting.add(task)
        try:
            if not self._is_revoked:
                return await self._receive()
        except asyncio.CancelledError:
            if not self._is_revoked:
                raise
            _uncancel(task)
        finally:
            self._waiting.discard(task)
        return {"type": "http.disconnect"}

    def _pass_on(self, message: dict[str, Any]):
        """Send a message; an OSError once the key is revoked, as for a client that has left.

        This runs for every token of a stream, so it is no coroutine of its own.
        """
        if self._is_revoked:
            raise OSError(MESSAGE)
        if not self._first:
            self._first = message
        self._last = message
        return self._send(message)

    async def _end(self) -> None:
        """Tell the client why its answer ends here."""
        last = self._last.get("type", "")
        if not last:
            await refuse(self._send, 401, MESSAGE, KIND, (b"www-authenticate", b"Bearer"))
        elif last == "http.response.body" and not self._last.get("more_body", False):
            return  # the answer was whole
        elif (
            header_of(self._first.get("headers", ()), b"content-type")
            .lower()
            .startswith(b"text/event-stream")
        ):
            # The empty line ends an event that is not whole, and says nothing after one that is.
            event = f"\n\nevent: error\ndata: {json.dumps(REVOKED)}\n\n".encode()
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        # Another answer that has begun stays unfinished: the server then closes the connection.


def _current_task() -> asyncio.Task:
    task = asyncio.current_task()
    assert task is not None  # servers run every request in a task
    return task


def _uncancel(task: asyncio.Task) -> None:
    """Undo one `cancel()`, for what watches over cancelled tasks (from Python 3.11 on)."""
    if hasattr(task, "uncancel"):
        task.uncancel()

"""Reads the bodies of requests for a middleware: within a size, a time, and a share of memory.

A body is memory of the server from its first byte on, and whoever sends it decides how long that
takes. So it is read only when its request may run, a length that is announced is believed only if
it is allowed, and all bodies together have a limit.

The standard library only.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from workshop.guard.asgi import header_of

MAX_BODY_MIB = 8
MAX_BODY_BYTES = MAX_BODY_MIB * 2**20
TOO_LARGE = (
    f"The request is larger than {MAX_BODY_MIB} MiB: split it into several, "
    "send smaller pictures, or use a server of your own."
)
SMALL_BYTES = 64 * 1024  # such a body never waits for memory: there is always room for it
MAX_READING_BYTES = 64 * 2**20  # of all larger bodies that are being read or handed over
STALLED_S = 20.0  # without a byte
SLOWEST_S = 120.0  # for a whole body


class BodyRefused(Exception):
    """A body is not read, or not to its end.

    It has the status of the answer, and the sentence in it.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


class _Memory:
    """Bytes that larger bodies may take together.

    Who finds too few waits, first come, first served.
    """

    def __init__(self, most: int):
        self._free = most
        self._waiting: list[tuple[int, asyncio.Future]] = []

    async def take(self, size: int) -> None:
        if not self._waiting and size <= self._free:
            self._free -= size
            return
        turn = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(asyncio.shield(turn), SLOWEST_S)
        except BaseException as error:
            if turn.done():
                self._free += size
            else:
                self._waiting.remove(entry)
            self._serve_waiting()
            if isinstance(error, TimeoutError):
                raise BodyRefused(
                    503, "The server has no memory left for large requests; try again later."
                ) from None
            raise

    def give(self, size: int) -> None:
        self._free += size
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._free:
            size, turn = self._waiting.pop(0)
            if not turn.done():
                self._free -= size
                turn.set_result(None)


class Body:
    """A body that was read. Its memory counts until it is handed on, or `drop` is called."""

    def __init__(self, data: bytes = b"", reserved: int = 0, memory: _Memory | None = None):
        self.data = data
        self._reserved = reserved
        self._memory = memory

    def take(self) -> bytes:
        """Return the bytes, and keep them no longer."""
        data = self.data
        self.drop()
        return data

    def drop(self) -> None:
        """Forget the bytes."""
        self.data = b""
        if self._memory and self._reserved:
            self._memory.give(self._reserved)
        self._reserved = 0


class Bodies:
    """Reads bodies; all that one object reads at the same time share its memory."""

    def __init__(self, most: int = MAX_READING_BYTES):
        self._memory = _Memory(most)

    async def read(self, scope: dict[str, Any], receive) -> Body:
        """Return the request's body.

        Raises:
            BodyRefused: it is too large or too slow, or there is no memory for it.
            ConnectionError: the client has gone.
        """
        announced = announced_length(scope)
        if announced is not None and announced > MAX_BODY_BYTES:
            raise BodyRefused(413, TOO_LARGE)
        reserved = 0
        if announced is not None and announced > SMALL_BYTES:
            await self._memory.take(announced)
            reserved = announced
        try:
            return await self._parts(receive, reserved)
        except BaseException:
            if reserved:
                self._memory.give(reserved)
            raise

    async def _parts(self, receive, reserved: int) -> Body:
        """Read to the end.

        A body without an announced length takes the memory of the largest once it is not small.
        """
        began = time.monotonic()
        size = 0
        extra = 0
        parts: list[bytes] = []
        try:
            while True:
                message = await _next(receive, began)
                if message["type"] != "http.request":
                    raise ConnectionError("the client has gone")
                part = message.get("body", b"")
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise BodyRefused(413, TOO_LARGE)
                if size > max(SMALL_BYTES, reserved) and not extra:
                    extra = MAX_BODY_BYTES - reserved
                    await self._memory.take(extra)
                parts.append(part)
                if not message.get("more_body"):
                    break
        except BaseException:
            if extra:
                self._memory.give(extra)
            raise
        return Body(b"".join(parts), reserved + extra, self._memory)


def announced_length(scope: dict[str, Any]) -> int | None:
    """Return the Content-Length of a request; None where there is none that can be read."""
    text = header_of(scope.get("headers", ()), b"content-length").strip()
    if not text.isdigit():
        return None
    return int(text[:20])


async def _next(receive, began: float) -> dict[str, Any]:
    seconds_left = began + SLOWEST_S - time.monotonic()
    try:
        return await asyncio.wait_for(receive(), max(0.001, min(STALLED_S, seconds_left)))
    except TimeoutError:
        raise BodyRefused(
            408, f"The request's body did not come within {STALLED_S:.0f} s; send it again."
        ) from None


def once_more(body: bytes | Body, receive):
    """Return a `receive` that gives the body once more, and then what comes (a disconnect)."""
    unsent = [body]

    async def replay():
        if not unsent:
            return await receive()
        data = unsent.pop()
        if isinstance(data, Body):
            data = data.take()
        return {"type": "http.request", "body": data, "more_body": False}

    return replay

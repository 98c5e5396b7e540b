"""Reads the bodies of requests for a middleware: within a size and a time.

A body is memory of the server from its first byte on, and whoever sends it decides how long that
takes. So it is read only when its request may run, and a length that is announced is believed only
if it is allowed.

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
STALLED_S = 20.0  # without a byte
SLOWEST_S = 120.0  # for a whole body


class BodyRefused(Exception):
    """A body is not read, or not to its end; it has the answer's status and its sentence."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


async def read(scope: dict[str, Any], receive) -> bytes:
    """Return the request's body.

    Raises:
        BodyRefused: it is too large or too slow.
        ConnectionError: the client has gone.
    """
    if (announced_length(scope) or 0) > MAX_BODY_BYTES:
        raise BodyRefused(413, TOO_LARGE)
    began = time.monotonic()
    size = 0
    parts: list[bytes] = []
    while True:
        message = await _next(receive, began)
        if message["type"] != "http.request":
            raise ConnectionError("the client has gone")
        part = message.get("body", b"")
        size += len(part)
        if size > MAX_BODY_BYTES:
            raise BodyRefused(413, TOO_LARGE)
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


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


def once_more(body: bytes, receive):
    """Return a `receive` that gives the body once more, and then what comes (a disconnect)."""
    unsent = [body]

    async def replay():
        if not unsent:
            return await receive()
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    return replay

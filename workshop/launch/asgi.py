"""What the middlewares behind the guard share: a request's body, given once more."""

from __future__ import annotations

MAX_BODY_BYTES = 8 * 2**20


async def read_body(receive) -> bytes | None:
    """Return the request's body; None if it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":  # the client went away
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def once_more(body: bytes, receive):
    """Return a `receive` that gives the body once more, and then what comes (a disconnect)."""
    given = False

    async def replay():
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay

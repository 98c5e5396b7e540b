"""What the middlewares share: a request's body, given once more; an answer of our own."""

from __future__ import annotations

import json

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


async def refuse(send, status: int, message: str) -> None:
    """Answer with an error in the API's form."""
    body = json.dumps({"error": {"message": message, "type": "class_limit", "code": status}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def path_of(scope) -> str:
    """Return the path that the application sees."""
    return scope.get("path", "").removeprefix(scope.get("root_path", ""))

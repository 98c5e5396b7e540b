"""One request to an ASGI application, as uvicorn hands it on, and the messages of its answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


async def answer_of(
    app,
    path: str,
    body: bytes = b"",
    /,
    *,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
    kind: str = "http",
    pieces: int = 1,
    **more: Any,
) -> list[dict]:
    """Return what the application sends; the body comes in so many pieces. `more` goes into the scope."""
    size = max(1, -(-len(body) // pieces))
    parts = [body[start : start + size] for start in range(0, len(body), size)] or [b""]
    sent: list[dict] = []

    async def receive() -> dict:
        if not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: dict) -> None:
        sent.append(message)

    raw_headers = [(name.encode(), value.encode()) for name, value in headers]
    scope = {"type": kind, "path": path, "method": method, "headers": raw_headers, **more}
    await app(scope, receive, send)
    return sent

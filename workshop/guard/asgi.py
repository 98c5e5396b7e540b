"""Reads the path, headers and keys of a request, and refuses one: what the middlewares share.

The standard library only: a container may have this file and the guard, and nothing else of the
workshop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Headers = Iterable[tuple[bytes, bytes]]

# Besides "Authorization: Bearer KEY": Anthropic's clients send x-api-key, Azure's send api-key.
KEY_HEADERS = (b"x-api-key", b"api-key")


def path_of(scope: dict[str, Any]) -> str:
    """Return the path that the application sees; "" for anything but an HTTP request."""
    if scope["type"] != "http":
        return ""
    return scope.get("path", "").removeprefix(scope.get("root_path", ""))


def header_of(headers: Headers, name: bytes) -> bytes:
    """Return the first header of this name (in lower case), or b""."""
    for header, value in headers:
        if header.lower() == name:
            return value
    return b""


def keys_of(scope: dict[str, Any]) -> set[bytes]:
    """Return the different keys that a request brings. Schemes other than Bearer are ignored."""
    keys: set[bytes] = set()
    for name, value in scope.get("headers", ()):
        if name.lower() == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.add(key.strip())
        elif name.lower() in KEY_HEADERS:
            keys.add(value.strip())
    keys.discard(b"")
    return keys


def without_keys(scope: dict[str, Any]) -> dict[str, Any]:
    """Return the request without the headers that hold its key: nothing behind can log it."""
    secret = (b"authorization", *KEY_HEADERS)
    headers: list[tuple[bytes, bytes]] = []
    for name, value in scope.get("headers", ()):
        if name.lower() not in secret:
            headers.append((name, value))
    return {**scope, "headers": headers}


def cors_of(scope: dict[str, Any], app: Any) -> Any | None:
    """Return `app` inside a CORSMiddleware with the settings of the server's --allowed-origins.

    The guard stands in front of vLLM's CORSMiddleware, so its refusals would reach a browser
    without the headers that let a page read them. None: the server has no such middleware.
    """
    for entry in getattr(scope.get("app"), "user_middleware", ()):
        if getattr(entry.cls, "__name__", "") == "CORSMiddleware":
            return entry.cls(app, *entry.args, **entry.kwargs)
    return None


async def refuse(
    send, status: int, message: str, kind: str = "class_limit", *headers: tuple[bytes, bytes]
) -> None:
    """Answer with an error in the form of OpenAI's API.

    Args:
        send: the ASGI callable that takes the answer.
        status: of the answer.
        message: one sentence for the learner.
        kind: the error's "type".
        headers: to send besides the type and the length.
    """
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
    length = str(len(body)).encode()
    all_headers = [*headers, (b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})

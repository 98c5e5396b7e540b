"""Answers what learners look at, `/metrics` for one, from a copy: asked often, it is made once.

vLLM makes these pages in the event loop that answers everybody: `/metrics` takes 13 ms of it, and
`/openapi.json` 24 ms (vLLM 0.32, the teaching model).

The standard library only.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from workshop.guard.asgi import path_of
from workshop.guard.limits.allow_list import SECONDS


class Copies:
    """The last answers of an application to a GET, by path."""

    def __init__(self):
        self._answers: dict[str, tuple[float, list[dict[str, Any]]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def answer(self, scope: dict[str, Any], send, app) -> None:
        """Send the copy of a path of SECONDS; ask the application where there is none so new."""
        path = path_of(scope)
        async with self._locks.setdefault(path, asyncio.Lock()):
            made_at, messages = self._answers.get(path, (float("-inf"), []))
            if monotonic() - made_at >= SECONDS[path]:
                made_at = monotonic()
                messages = await _ask(scope, app)
                self._answers.pop(path, None)
                if messages and messages[0]["status"] == 200:
                    self._answers[path] = (made_at, messages)
        for message in messages:
            await send(message)


async def _ask(scope: dict[str, Any], app) -> list[dict[str, Any]]:
    """Return the messages of the application's answer, which is for all: no client shapes it."""
    messages: list[dict[str, Any]] = []
    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive():
        if requests:
            return requests.pop()
        return await asyncio.Event().wait()

    async def send(message):
        messages.append(message)

    await app({**scope, "headers": [], "query_string": b""}, receive, send)
    return messages

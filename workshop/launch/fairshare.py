"""Limits for a class: an ASGI middleware behind the guard, so that one learner cannot starve the others.

Each learner has a few requests in the engine at a time; more of theirs wait, first come, first served, while those
of the others pass. A single request that would fill the engine by itself is refused, with the limit in the answer.
A learner is who the request says (`X-Workshop-Learner`, sent by `workshop.connect()`), else its address. That is
fairness among people who share a key, no protection from one who means harm.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict

HEADER = "x-workshop-limits"
LEARNER = b"x-workshop-learner"
MAX_BODY_BYTES = 8 * 2**20
MAX_WAITING = 64          # of one learner; then 429


class FairShare:
    """`--middleware workshop.launch.fairshare.FairShare`; its limits come from the environment.

    WORKSHOP_PER_LEARNER: requests at a time (4). WORKSHOP_MAX_TOKENS: of one answer (1024).
    WORKSHOP_MAX_SEQUENCES: prompts × n of one request (32).
    """

    def __init__(self, app):
        self.app = app
        self.at_a_time = _whole("WORKSHOP_PER_LEARNER", 4)
        self.max_tokens = _whole("WORKSHOP_MAX_TOKENS", 1024)
        self.max_sequences = _whole("WORKSHOP_MAX_SEQUENCES", 32)
        self._slots: dict[bytes, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self.at_a_time))
        self._inside: dict[bytes, int] = defaultdict(int)     # running and waiting

    @property
    def words(self) -> str:
        """The limits in words, for people and for the header of every answer."""
        return (f"{self.at_a_time} requests at a time, {self.max_tokens} tokens an answer, "
                f"{self.max_sequences} sequences a request")

    async def __call__(self, scope, receive, send):
        """Let requests for text wait their turn; everything else passes."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def marked(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER.encode(), self.words.encode())]}
            await send(message)
        if scope["method"] != "POST":
            await self.app(scope, receive, marked)
            return
        learner = _learner(scope)
        if self._inside[learner] >= self.at_a_time + MAX_WAITING:
            await _answer(marked, 429, f"{MAX_WAITING} requests of yours wait already; wait for some of them.")
            return
        await self._in_turn(learner, scope, receive, marked)

    async def _in_turn(self, learner: bytes, scope, receive, send) -> None:
        self._inside[learner] += 1
        try:
            async with self._slots[learner]:
                body = await _body(receive)
                problem = self.problem(body)
                if problem:
                    await _answer(send, 400, problem)
                else:
                    await self.app(scope, _again(body, receive), send)
        finally:
            self._inside[learner] -= 1
            if not self._inside[learner]:
                self._inside.pop(learner, None)
                self._slots.pop(learner, None)

    def problem(self, body: bytes | None) -> str:
        """Return why a request is too large for a class ('' if it is not)."""
        if body is None:
            return f"The request is larger than {MAX_BODY_BYTES // 2**20} MiB."
        try:
            request = json.loads(body or b"{}")
        except ValueError:
            return ""                                  # vLLM says what is wrong with it
        if not isinstance(request, dict):
            return ""
        asked = max((value for name in ("max_tokens", "max_completion_tokens", "min_tokens")
                     if isinstance(value := request.get(name), int)), default=0)
        if asked > self.max_tokens:
            return f"{asked} tokens are more than one answer may have in this class: {self.max_tokens}."
        sequences = _sequences(request)
        if sequences > self.max_sequences:
            return (f"{sequences} sequences (prompts × n) are more than one request may have in this class: "
                    f"{self.max_sequences}.")
        return ""


def _sequences(request: dict) -> int:
    prompt = request.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    counts = [value for name in ("n", "best_of") if isinstance(value := request.get(name), int)]
    return prompts * max([1, *counts])


def _whole(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}: give a whole number from 1")
    return int(text)


def _learner(scope) -> bytes:
    named = next((value for name, value in scope.get("headers", ()) if name.lower() == LEARNER), b"")
    return named or (scope.get("client") or ("",))[0].encode()


async def _body(receive) -> bytes | None:
    """Return the request's body; None if it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":          # the client went away
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _again(body: bytes, receive):
    """Return a `receive` that gives the body once more, and then what comes (a disconnect)."""
    given = False

    async def replay():
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}
    return replay


async def _answer(send, status: int, message: str) -> None:
    body = json.dumps({"error": {"message": message, "type": "class_limit", "code": status}}).encode()
    await send({"type": "http.response.start", "status": status,
                "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})

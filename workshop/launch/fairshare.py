"""Limits for a class: an ASGI middleware behind the guard, so that one learner cannot starve the others.

Each learner has a few requests in the engine at a time; more of theirs wait, first come, first served, while those
of the others pass. A single request that would fill the engine by itself is refused, with the limit in the answer; so
is one whose limits vLLM could read in another way than we do, and every other path that makes the engine work. What a
request leaves open is the server's to fill in (`--override-generation-config`, `--max-logprobs`).
A learner is who the request says (`X-Workshop-Learner`, sent by `workshop.connect()`), else its address. That is
fairness among people who share a key, no protection from one who means harm.
"""

import asyncio
import json
import os
from collections import defaultdict

from workshop.launch.asgi import path_of, refuse

MAX_BODY_BYTES = 8 * 2**20
HEADER = "x-workshop-limits"
GENERATE = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
OPEN = (*GENERATE, "/tokenize", "/detokenize", "/v1/messages/count_tokens")
TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")  # of one answer
COUNTS = ("n", "best_of")  # of answers to one prompt
LEARNER = b"x-workshop-learner"
MAX_WAITING = 64  # of one learner; then 429


class FairShare:
    """`--middleware workshop.launch.fairshare.FairShare`; its limits come from the environment."""

    def __init__(self, app):
        self.app = app
        self.at_a_time = _whole("WORKSHOP_PER_LEARNER", 4)  # requests
        self.max_tokens = _whole("WORKSHOP_MAX_TOKENS", 1024)  # of one answer
        self.max_sequences = _whole("WORKSHOP_MAX_SEQUENCES", 32)  # prompts × n of one request
        self._slots: dict[bytes, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(self.at_a_time))
        self._inside: dict[bytes, int] = defaultdict(int)  # running and waiting

    @property
    def words(self) -> str:
        """The limits in words, for people and for the header of every answer."""
        return f"{self.at_a_time} requests at a time, {self.max_tokens} tokens an answer, {self.max_sequences} sequences a request"

    async def __call__(self, scope, receive, send):
        """Let requests for text wait their turn, and what only looks pass; refuse the rest."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "not open in this class"})
            return

        async def marked(message):
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (HEADER.encode(), self.words.encode())]}
            await send(message)

        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self.app(scope, receive, marked)
            return
        named = next((value for name, value in scope.get("headers", ()) if name.lower() == LEARNER), b"")
        learner = named or (scope.get("client") or ("",))[0].encode()
        if (path := path_of(scope)) not in OPEN:
            await refuse(marked, 403, f"{path[:100]} is not open in this class; these are: {', '.join(OPEN)}.")
        elif self._inside[learner] >= self.at_a_time + MAX_WAITING:
            await refuse(marked, 429, f"{MAX_WAITING} requests of yours wait already; wait for some of them.")
        else:
            await self._in_turn(learner, scope, receive, marked)

    async def _in_turn(self, learner: bytes, scope, receive, send) -> None:
        self._inside[learner] += 1
        try:
            async with self._slots[learner]:
                body = await read_body(receive)
                if problem := self.problem(body, path_of(scope) in GENERATE):
                    await refuse(send, 400, problem)
                else:
                    await self.app(scope, once_more(body, receive), send)
        finally:
            self._inside[learner] -= 1
            if not self._inside[learner]:
                self._inside.pop(learner, None)
                self._slots.pop(learner, None)

    def problem(self, body: bytes | None, generates: bool = True) -> str:
        """Return why a request is too large for a class, or cannot be understood in one way alone ('' if neither)."""
        if body is None:
            return f"The request is larger than {MAX_BODY_BYTES // 2**20} MiB."
        if not generates:
            return ""
        try:
            request = _read(body)
            asked = max([0, *_numbers(request, TOKENS)])
            sequences = _prompts(request) * max([1, *_numbers(request, COUNTS)])
        except _Unclear as error:
            return f"{error}."
        if request.get("background"):
            return 'A request in the background would not wait its turn in this class: leave "background" out.'
        if asked > self.max_tokens:
            return f"{_short(asked)} tokens are more than one answer may have in this class: {self.max_tokens}."
        if sequences > self.max_sequences:
            return f"{_short(sequences)} sequences (prompts × n) are more than one request may have in this class: {self.max_sequences}."
        return ""


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
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay():
        return given.pop() if given else await receive()

    return replay


class _Unclear(ValueError):
    """A body that vLLM might read in another way than we do."""


def _read(body: bytes) -> dict:
    def once(pairs: list[tuple]) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise _Unclear("A name stands twice in one object of the request's JSON")
        return found

    def no_number(word: str):
        raise _Unclear(f"{word} is no number of JSON")

    try:
        request = json.loads(body.decode("utf-8"), object_pairs_hook=once, parse_constant=no_number)
    except _Unclear:
        raise
    except (ValueError, RecursionError):
        raise _Unclear("The request's body is no JSON in UTF-8") from None
    if not isinstance(request, dict):
        raise _Unclear("The request's body is no JSON object")
    return request


def _numbers(request: dict, names: tuple[str, ...]) -> list[int]:
    """Return the whole numbers under these names; vLLM would also take "50", 50.0 and true for one."""
    given = {name: request[name] for name in names if request.get(name) is not None}
    for name, value in given.items():
        if type(value) is not int:
            raise _Unclear(f'"{name}" must be a whole number in this class, as in "{name}": 50')
    return list(given.values())


def _prompts(request: dict) -> int:
    """Return how many prompts a request has: a list of whole numbers is one (token ids)."""
    given = [request[name] for name in ("prompt", "prompt_embeds") if request.get(name)]
    lists = [isinstance(each, list) and not all(type(part) is int for part in each) for each in given]
    return max(1, sum(len(each) if several else 1 for each, several in zip(given, lists, strict=True)))


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**12 else "Far too many"


def _whole(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}: give a whole number from 1")
    return int(text)

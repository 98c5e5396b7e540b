"""Limits for a class: an ASGI middleware behind the guard, so that one learner cannot starve the others.

Each learner has a few requests in the engine at a time; more of theirs wait, first come, first served, while those
of the others pass. A body is read only in its turn (see `bodies`). A single request that would fill the engine by
itself is refused, with the limit in the answer (see `request_limits`); so is one whose limits vLLM could read in
another way than we do, and every other path that makes the engine work. What a request leaves open is the server's to
fill in: `class_arguments` says with which flags.
A learner is who the request says (`X-Workshop-Learner`, sent by `workshop.connect()`), else its address. That is
fairness among people who share a key, no protection from one who means harm; a learner with a key of their own cannot
choose another name.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from typing import Any

from workshop.servers.guard import request_limits
from workshop.servers.guard.asgi import header_of, path_of, refuse
from workshop.servers.guard.bodies import Bodies, BodyRefused, once_more
from workshop.servers.guard.pace import REFUSED, Pace, weight

MIDDLEWARE = "workshop.servers.guard.fairshare.FairShare"  # what --middleware takes
HEADER = "x-workshop-limits"
GENERATE = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
OPEN = (*GENERATE, "/tokenize", "/detokenize", "/v1/messages/count_tokens")
TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")  # of one answer
COUNTS = ("n", "best_of")  # of answers to one prompt
LEARNER = b"x-workshop-learner"
REQUEST_ID = b"x-request-id"
MAX_WAITING = 64  # of one learner; then 429
MAX_NAME = 128  # bytes of a learner's name
# Of a large request a learner has one in the engine at a time.
LARGE_SEQUENCES = 8
# of text: about 2,000 tokens, which take a step or more of the engine to read
LARGE_BYTES = 8 * 1024
LARGE_LOGPROBS = 16  # a step
MAX_LOGPROBS = 20
PASSED = "workshop.limited"  # in the scope of a request that has passed the limits already
CPU_PREFILL_TOKENS = 32  # of one prompt in a step
CPU_STEP_TOKENS = 256  # of all prompts and answers in a step
STRUCTURED_OUTPUTS = '{"backend": "guidance"}'
# Without it, vLLM writes the tools of a request as a structural tag, which only xgrammar reads. Then their schemas go
# to guidance.
CLASS_VARIABLES = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}


def class_arguments(given: dict[str, str], device: str = "gpu") -> list[str]:
    """Return the flags of `vllm serve` for a class, without those that the owner has given (see flags.flags_of).

    guidance compiles a form in milliseconds, where xgrammar may take seconds, and minutes for forms that look
    harmless. A CPU reads a long prompt in small parts, since everybody's next token waits for each of them.
    """
    flags = {
        "max-logprobs": str(MAX_LOGPROBS),
        "override-generation-config": json.dumps({"max_new_tokens": most_tokens()}),
        "structured-outputs-config": STRUCTURED_OUTPUTS,
    }
    if device == "cpu":
        flags["long-prefill-token-threshold"] = str(CPU_PREFILL_TOKENS)
        flags["max-num-batched-tokens"] = str(CPU_STEP_TOKENS)
    names = {name.partition(".")[0] for name in given}
    found = ["--middleware", MIDDLEWARE]
    for name, value in flags.items():
        if name not in names:
            found += [f"--{name}", value]
    return found


def most_tokens() -> int:
    """Return how many tokens one answer may have in a class."""
    return _whole("WORKSHOP_MAX_TOKENS", 1024)


class FairShare:
    """`--middleware workshop.servers.guard.fairshare.FairShare`; its limits come from the environment."""

    def __init__(self, app):
        self.app = app
        self.at_a_time = _whole("WORKSHOP_PER_LEARNER", 4)  # requests
        self.max_tokens = most_tokens()  # of one answer
        self.max_sequences = _whole("WORKSHOP_MAX_SEQUENCES", 32)  # prompts × n of one request
        self._slots: dict[bytes, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(self.at_a_time)
        )
        self._large: dict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pace = Pace()
        self._inside: dict[bytes, int] = defaultdict(int)  # running and waiting
        self._bodies = Bodies()

    @property
    def words(self) -> str:
        """The limits in words, for people and for the header of every answer."""
        return (
            f"{self.at_a_time} requests at a time, {self.max_tokens} tokens an answer, "
            f"{self.max_sequences} sequences a request"
        )

    async def __call__(self, scope, receive, send):
        """Let requests for text wait their turn, and what only looks pass; refuse the rest."""
        await self.limit(scope, receive, send, self.app)

    async def limit(self, scope, receive, send, app) -> None:
        """Do the same in front of another application."""
        if scope.get(PASSED):
            await app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await send(
                {"type": "websocket.close", "code": 1008, "reason": "not open in this class"}
            )
            return

        async def marked(message):
            if message["type"] == "http.response.start":
                message = {
                    **message,
                    "headers": [
                        *message.get("headers", ()),
                        (HEADER.encode(), self.words.encode()),
                    ],
                }
            await send(message)

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if unfit := _unfit_headers(scope):
            await refuse(marked, 400, unfit)
            return
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await app(scope, receive, marked)
            return
        learner = _learner(scope)
        path = path_of(scope)
        if path not in OPEN:
            await refuse(
                marked,
                403,
                f"{path[:100]} is not open in this class; these are: {', '.join(OPEN)}.",
            )
        elif self._inside[learner] >= self.at_a_time + MAX_WAITING:
            await refuse(
                marked, 429, f"{MAX_WAITING} requests of yours wait already; wait for some of them."
            )
        else:
            await self._in_turn(learner, scope, receive, marked, app)

    async def _in_turn(self, learner: bytes, scope, receive, send, app) -> None:
        self._inside[learner] += 1
        try:
            if wait_s := self._pace.arrive(learner, time.monotonic()):
                await asyncio.sleep(wait_s)
            async with self._slots[learner]:
                await self._read_and_pass(learner, scope, receive, send, app)
        finally:
            self._inside[learner] -= 1
            if not self._inside[learner]:
                self._inside.pop(learner, None)
                self._slots.pop(learner, None)
                self._large.pop(learner, None)

    async def _read_and_pass(self, learner: bytes, scope, receive, send, app) -> None:
        try:
            body = await self._bodies.read(scope, receive)
        except BodyRefused as refused:
            await refuse(
                send, refused.status, refused.message, "class_limit", (b"connection", b"close")
            )
            return
        except ConnectionError:
            return  # nobody is there to be answered
        try:
            generates = path_of(scope) in GENERATE
            problem, large, sequences = self._judged(body.data, generates, scope)
            requests = REFUSED if problem else weight(body.data, sequences)
            if wait_s := self._pace.charge(learner, time.monotonic(), requests):
                await asyncio.sleep(wait_s)
            if problem:
                body.drop()
                await refuse(send, 400, problem)
            elif large:
                async with self._large[learner]:
                    await app({**scope, PASSED: True}, once_more(body, receive), send)
            else:
                await app({**scope, PASSED: True}, once_more(body, receive), send)
        finally:
            body.drop()

    def problem(
        self, body: bytes, generates: bool = True, scope: dict[str, Any] | None = None
    ) -> str:
        """Return why a request is too large for a class, or cannot be understood in one way alone ('' if neither)."""
        return self._judged(body, generates, scope)[0]

    def _judged(
        self, body: bytes, generates: bool, scope: dict[str, Any] | None
    ) -> tuple[str, bool, int]:
        """Return what is wrong with a request, whether it is large, and how many sequences it asks for."""
        if problem := request_limits.shape_problem(body):
            return problem, False, 1
        try:
            request = _read(body)
            if not generates:
                problem = self._beyond(request, body, 1, False, scope)
                # a text is read at once, as those of several sequences are
                return problem, len(body) > LARGE_BYTES, 2
            asked = max([0, *_numbers(request, TOKENS)])
            sequences = _prompts(request) * max([1, *_numbers(request, COUNTS)])
        except _Unclear as error:
            return f"{error}.", False, 1
        problem = self._too_much(asked, sequences) or self._beyond(
            request, body, sequences, True, scope
        )
        if problem:
            return problem, False, 1
        logprobs = request_limits.logprobs_a_step(request, sequences)
        large = sequences > LARGE_SEQUENCES or len(body) > LARGE_BYTES or logprobs > LARGE_LOGPROBS
        has_pattern = b'"pattern"' in body or request_limits.has_pattern(request)
        return "", large or has_pattern, sequences

    def _beyond(self, request: dict, body: bytes, sequences: int, generates: bool, scope) -> str:
        settings = _Settings(scope or {})
        return request_limits.problem(
            request,
            body_bytes=len(body),
            sequences=sequences,
            generates=generates,
            guidance=settings.guidance,
            media_domains=settings.media_domains,
            max_logprobs=settings.max_logprobs,
        )

    def _too_much(self, asked: int, sequences: int) -> str:
        if asked > self.max_tokens:
            return f"{_short(asked)} tokens are more than one answer may have in this class: {self.max_tokens}."
        if sequences > self.max_sequences:
            return (
                f"{_short(sequences)} sequences (prompts × n) are more than one request may have in this class: "
                f"{self.max_sequences}."
            )
        return ""


class _Settings:
    """What vLLM was started with, as its application knows it. In front of another application: a class's own."""

    def __init__(self, scope: dict[str, Any]):
        state = getattr(scope.get("app"), "state", None)
        config = getattr(state, "vllm_config", None)
        backend = getattr(getattr(config, "structured_outputs_config", None), "backend", None)
        model = getattr(config, "model_config", None)
        logprobs = getattr(model, "max_logprobs", MAX_LOGPROBS)
        self.guidance = backend in (None, "guidance")
        self.media_domains = tuple(getattr(model, "allowed_media_domains", None) or ())
        self.max_logprobs = logprobs if logprobs >= 0 else MAX_LOGPROBS  # -1: the whole vocabulary


def _learner(scope: dict[str, Any]) -> bytes:
    """Return who asks: the name that the request gives, or its address."""
    name = header_of(scope.get("headers", ()), LEARNER)
    if name:
        return name[:MAX_NAME]
    client = scope.get("client") or ("",)
    return client[0].encode()


def _unfit_headers(scope: dict[str, Any]) -> str:
    """Return why a header of a request is refused, or ''. A request's id stands in every line of a trace and log."""
    most = request_limits.MAX_IDENTIFIER
    for name, value in scope.get("headers", ()):
        if name.lower() == REQUEST_ID and len(value) > most:
            return f"X-Request-Id has {len(value):,} characters; at most {most} may be."
        if name.lower() in request_limits.CLOSED_HEADERS:
            return f"{name.decode('latin-1')[:60]} is closed in this class: leave it out."
    return ""


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
    lists = [
        isinstance(each, list) and not all(type(part) is int for part in each) for each in given
    ]
    return max(
        1, sum(len(each) if several else 1 for each, several in zip(given, lists, strict=True))
    )


def _short(number: int) -> str:
    return str(number) if abs(number) < 10**12 else "Far too many"


def _whole(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}: give a whole number from 1")
    return int(text)

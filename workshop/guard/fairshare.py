"""Limits for a class, so that one learner cannot starve the others: ASGI behind the guard.

Each learner has a few requests in the engine at a time; more of theirs wait, first come, first
served, while those of the others pass. A body is read only in its turn (see `bodies`). A single
request that would fill the engine by itself is refused, with the limit in the answer (see
`request_limits`); so is one whose limits vLLM could read in another way than we do. What only looks
is answered from a copy (see `copies`). Nothing else is open. What a request leaves open is the
server's to fill in: `class_arguments` says with which flags. A learner is who the request says
(`X-Workshop-Learner`, sent by `workshop.connect()`), else its address. That is fairness among
people who share a key, no protection from one who means harm; a learner with a key of their own
cannot choose another name.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from workshop.guard.asgi import header_of, path_of, refuse
from workshop.guard.limits import bodies, request_limits
from workshop.guard.limits.allow_list import (
    GENERATE,
    HEALTH,
    MAX_IDENTIFIER,
    OPEN,
    SECONDS,
    UNLIMITED,
)
from workshop.guard.limits.bodies import BodyRefused, once_more
from workshop.guard.limits.copies import Copies
from workshop.guard.limits.pace import REFUSED, EngineWidth, LearnerPace, weight
from workshop.guard.limits.request_body import (
    TOKENS,
    Unclear,
    answer_tokens,
    count_sequences,
    read_request,
    whole_numbers,
)

MIDDLEWARE = "workshop.guard.fairshare.FairShare"  # what --middleware takes
HEADER = "x-workshop-limits"
LEARNER = b"x-workshop-learner"
REQUEST_ID = b"x-request-id"
MAX_WAITING = 64  # of one learner; then 429
MAX_NAME = 128  # bytes of a learner's name
# Of a large request a learner has one in the engine at a time.
LARGE_SEQUENCES = 8
# Of text: about 2,000 tokens, which take a step or more of the engine to read.
LARGE_BYTES = 8 * 1024
LARGE_LOGPROBS = 16  # a step
# On a CPU, one more sequence makes each step longer for everybody: 16 less than twice as long, 32
# more than that. A request with more than NARROW_SEQUENCES is wide: it has fewer tokens, and rests
# afterwards (see `pace`).
NARROW_SEQUENCES = 16
WIDE_TOKENS = 8192  # sequences × tokens of an answer: 32 × 256
MAX_LOGPROBS = 20
PASSED = "workshop.limited"  # in the scope of a request that has passed the limits already
CPU_PREFILL_TOKENS = 32  # of one prompt in a step
CPU_STEP_TOKENS = 256  # of all prompts and answers in a step
STRUCTURED_OUTPUTS = '{"backend": "guidance"}'
# Without it, vLLM writes the tools of a request as a structural tag, which only xgrammar reads.
# With it, their schemas go to guidance.
CLASS_VARIABLES = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}


def class_arguments(owner_flags: dict[str, str], device: str = "gpu") -> list[str]:
    """Return the flags of `vllm serve` for a class, without those that the owner has given.

    guidance compiles a form in milliseconds, where xgrammar may take seconds (see `forms`). A CPU
    reads a long prompt in small parts, since everybody's next token waits for each of them.

    Args:
        owner_flags: the owner's flags, as flags.flags_of returns them.
        device: "cpu" or "gpu".
    """
    flags = {
        "max-logprobs": str(MAX_LOGPROBS),
        "override-generation-config": json.dumps({"max_new_tokens": most_tokens()}),
        "structured-outputs-config": STRUCTURED_OUTPUTS,
    }
    if device == "cpu":
        flags["long-prefill-token-threshold"] = str(CPU_PREFILL_TOKENS)
        flags["max-num-batched-tokens"] = str(CPU_STEP_TOKENS)
    owners = {name.partition(".")[0] for name in owner_flags}
    arguments = ["--middleware", MIDDLEWARE]
    for name, value in flags.items():
        if name not in owners:
            arguments += [f"--{name}", value]
    return arguments


def most_tokens() -> int:
    """Return how many tokens one answer may have in a class."""
    return _whole("WORKSHOP_MAX_TOKENS", 1024)


@dataclass(frozen=True)
class _Judgment:
    """The verdict of the limits on one request: `problem` is why it is refused, or ''."""

    problem: str = ""
    sequences: int = 1
    is_large: bool = False
    is_wide: bool = False
    on_cpu: bool = False


class _Queue:
    """The requests of one learner, those that run and those that wait."""

    def __init__(self, at_a_time: int):
        self.inside = 0
        self.slots = asyncio.Semaphore(at_a_time)
        self.large = asyncio.Lock()
        self.width = EngineWidth()


class FairShare:
    """`--middleware workshop.guard.fairshare.FairShare`, with limits from the environment."""

    def __init__(self, app):
        self.app = app
        self.at_a_time = _whole("WORKSHOP_PER_LEARNER", 4)  # requests
        self.max_tokens = most_tokens()  # of one answer
        self.max_sequences = _whole("WORKSHOP_MAX_SEQUENCES", 32)  # prompts × n of one request
        self._queues: dict[bytes, _Queue] = {}
        self._pace = LearnerPace()
        self._copies = Copies()

    @property
    def description(self) -> str:
        """The limits in words, for people and for the header of every answer."""
        return (
            f"{self.at_a_time} requests at a time, {self.max_tokens} tokens an answer, "
            f"{self.max_sequences} sequences a request"
        )

    async def __call__(self, scope, receive, send):
        """Let requests wait their turn, and answer what only looks from a copy; refuse the rest."""
        await self.limit(scope, receive, send, self.app)

    async def limit(self, scope, receive, send, app) -> None:
        """Do the same in front of another application."""
        if scope.get(PASSED):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send(
                {"type": "websocket.close", "code": 1008, "reason": "not open in this class"}
            )
        elif scope["type"] != "http":
            await app(scope, receive, send)
        else:
            await self._limit_http(scope, receive, self._with_limits(send), app)

    def _with_limits(self, send):
        """Return a `send` that puts the limits into the head of an answer."""
        header = (HEADER.encode(), self.description.encode())

        def marked(message):  # for every token of a stream: no coroutine of its own
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), header]}
            return send(message)

        return marked

    async def _limit_http(self, scope, receive, send, app) -> None:
        if _looks(scope, (HEALTH,)):
            await app(scope, receive, send)
            return
        learner = _learner(scope)
        queue = self._queues.setdefault(learner, _Queue(self.at_a_time))
        if queue.inside >= self.at_a_time + MAX_WAITING:
            message = f"{MAX_WAITING} requests of yours wait already; wait for some of them."
            await refuse(send, 429, message)
            return
        queue.inside += 1
        try:
            wait_s = self._pace.arrive(learner, time.monotonic())
            if wait_s:
                await asyncio.sleep(wait_s)
            status, problem = _closed(scope)
            if problem:
                await refuse(send, status, problem)
            elif _looks(scope, SECONDS):
                await self._copies.answer({**scope, PASSED: True}, send, app)
            else:
                async with queue.slots:
                    await self._read_and_pass(learner, scope, receive, send, app)
        finally:
            queue.inside -= 1
            if not queue.inside:
                self._queues.pop(learner, None)

    async def _read_and_pass(self, learner: bytes, scope, receive, send, app) -> None:
        try:
            body = await bodies.read(scope, receive)
        except BodyRefused as refused:
            close = (b"connection", b"close")
            await refuse(send, refused.status, refused.message, "class_limit", close)
            return
        except ConnectionError:
            return  # nobody is there to be answered
        judgment = self._judge(body, path_of(scope) in GENERATE, scope)
        requests = REFUSED
        if not judgment.problem:
            requests = weight(body, judgment.sequences)
        wait_s = self._pace.charge(learner, time.monotonic(), requests)
        if wait_s:
            await asyncio.sleep(wait_s)
        if judgment.problem:
            await refuse(send, 400, judgment.problem)
            return
        await self._run(learner, judgment, body, scope, receive, send, app)

    async def _run(
        self, learner: bytes, judgment: _Judgment, body: bytes, scope, receive, send, app
    ) -> None:
        """Pass a request on once the learner's other requests leave room for it."""
        queue = self._queues[learner]
        async with AsyncExitStack() as turns:
            if judgment.is_large:
                await turns.enter_async_context(queue.large)
            if judgment.is_wide:
                wait_s = self._pace.rest(learner, time.monotonic())
                if wait_s:
                    await asyncio.sleep(wait_s)
            most = UNLIMITED
            if judgment.on_cpu and self._pace.others_are_there(learner, time.monotonic()):
                most = NARROW_SEQUENCES
            await turns.enter_async_context(queue.width.take(judgment.sequences, most))
            began = time.monotonic()
            try:
                await app({**scope, PASSED: True}, once_more(body, receive), send)
            finally:
                ended = time.monotonic()
                if judgment.is_wide:
                    self._pace.end_wide(learner, ended, ended - began)

    def _judge(self, body: bytes, generates: bool, scope: dict[str, Any]) -> _Judgment:
        """Return what the limits say of a body.

        generates: it asks for an answer, else its tokens are only counted.
        """
        problem = request_limits.shape_problem(body)
        if problem:
            return _Judgment(problem)
        engine = _engine_limits(scope)
        try:
            request = read_request(body)
            if not generates:
                problem = request_limits.problem(
                    request, engine, body_bytes=len(body), generates=False
                )
                # a text is read at once, as those of several sequences are
                return _Judgment(problem, sequences=2, is_large=len(body) > LARGE_BYTES)
            longest = max([0, *whole_numbers(request, TOKENS)])
            sequences = count_sequences(request, path_of(scope))
            tokens = answer_tokens(request, path_of(scope), self.max_tokens)
        except Unclear as unclear:
            return _Judgment(f"{unclear}.")
        problem = self._too_much(longest, sequences)
        is_wide = engine.on_cpu and sequences > NARROW_SEQUENCES
        if is_wide and not problem:
            problem = _too_wide(sequences, tokens)
        problem = problem or request_limits.problem(
            request, engine, body_bytes=len(body), sequences=sequences
        )
        if problem:
            return _Judgment(problem)
        is_large = (
            sequences > LARGE_SEQUENCES
            or len(body) > LARGE_BYTES
            or request_limits.logprobs_a_step(request, sequences) > LARGE_LOGPROBS
        )
        return _Judgment(
            sequences=sequences, is_large=is_large, is_wide=is_wide, on_cpu=engine.on_cpu
        )

    def _too_much(self, longest: int, sequences: int) -> str:
        if longest > self.max_tokens:
            return (
                f"{_short(longest)} tokens are more than one answer may have in this class: "
                f"{self.max_tokens}."
            )
        if sequences > self.max_sequences:
            return (
                f"{_short(sequences)} sequences (prompts × n) are more than one request may have "
                f"in this class: {self.max_sequences}."
            )
        return ""


def _too_wide(sequences: int, tokens: int) -> str:
    """Return why a wide request has too many tokens in all, or ''."""
    if sequences * tokens <= WIDE_TOKENS:
        return ""
    return (
        f"{sequences} sequences × {tokens:,} tokens are more than one request may have "
        f"in this class: send {NARROW_SEQUENCES} sequences at a time, "
        f"or set max_tokens to {WIDE_TOKENS // sequences} or less."
    )


def _engine_limits(scope: dict[str, Any]) -> request_limits.EngineLimits:
    """Return the limits that vLLM was started with; in front of another application, a class's own."""
    state = getattr(scope.get("app"), "state", None)
    config = getattr(state, "vllm_config", None)
    backend = getattr(getattr(config, "structured_outputs_config", None), "backend", None)
    model = getattr(config, "model_config", None)
    device = getattr(config, "device_config", None)
    logprobs = getattr(model, "max_logprobs", MAX_LOGPROBS)
    return request_limits.EngineLimits(
        guidance=backend in (None, "guidance"),
        max_logprobs=logprobs if logprobs >= 0 else MAX_LOGPROBS,  # -1: the whole vocabulary
        media_domains=tuple(getattr(model, "allowed_media_domains", None) or ()),
        on_cpu=getattr(device, "device_type", "") == "cpu",
    )


def _learner(scope: dict[str, Any]) -> bytes:
    """Return who asks: the name that the request gives, or its address."""
    name = header_of(scope.get("headers", ()), LEARNER)
    if name:
        return name[:MAX_NAME]
    client = scope.get("client") or ("",)
    return client[0].encode()


def _looks(scope: dict[str, Any], paths: Collection[str]) -> bool:
    return scope["method"] == "GET" and path_of(scope) in paths


def _closed(scope: dict[str, Any]) -> tuple[int, str]:
    """Return the status and the reason of a request that is refused unread, or (0, "").

    A request's id stands in every line of a trace and log, so its length has a limit.
    """
    most = MAX_IDENTIFIER
    for name, value in scope.get("headers", ()):
        if name.lower() == REQUEST_ID and len(value) > most:
            return 400, f"X-Request-Id has {len(value):,} characters; at most {most} may be."
        if name.lower() in request_limits.CLOSED_HEADERS:
            return 400, f"{name.decode('latin-1')[:60]} is closed in this class: leave it out."
    path = path_of(scope)
    if _looks(scope, SECONDS) or (scope["method"] == "POST" and path in OPEN):
        return 0, ""
    request = f"{scope['method']} {path}"[:100]
    message = f"GET {', '.join((HEALTH, *SECONDS))}; POST {', '.join(OPEN)}"
    return 403, f"{request} is not open in this class; these are: {message}."


def _short(number: int) -> str:
    if abs(number) < 10**12:
        return str(number)
    return "Far too many"


def _whole(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{variable} is {text!r}: give a whole number from 1")
    return int(text)

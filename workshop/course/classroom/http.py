"""The HTTP connection of a simulated learner.

Asks what the server allows, and sends one request, recording the times of its tokens.
"""

import re
import time

import aiohttp

from workshop.batch import servers
from workshop.batch.rows import CHAT, COMPLETIONS
from workshop.client import reach, received, refusals
from workshop.client.strict_json import Malformed
from workshop.course.classroom.plan import (
    ALL_LOGPROBS,
    CITIES,
    LABELLED,
    OPENINGS,
    QUESTIONS,
    Allowed,
    Ask,
    Cell,
    ask,
    chat,
)
from workshop.course.classroom.report import Request
from workshop.errors import WorkshopError


class Refused(Exception):
    """The server answered, and not with what was asked for."""


async def meet(server: servers.Server) -> dict:
    """Return the entry of the model that it serves; one sentence if there is none."""
    try:
        models = await server.models()
    except servers.AWAY as error:
        problem = f"No server answers at {server.url} ({str(error) or type(error).__name__})."
        raise WorkshopError(problem, servers.KNOWN) from None
    if not models:
        raise WorkshopError(
            f"{server.url} serves no model.",
            "Give the address of a vLLM server, which ends in /v1.",
        )
    return models[0]


async def find_limits(
    server: servers.Server, model: str, max_model_len: int | None, cells: list[Cell]
) -> Allowed:
    """Ask every text once for one token, and find out what the server allows.

    Nothing of it is counted.
    """
    counted, talks, header = {}, False, ""
    for text, request in _texts(cells).items():
        body = {"model": model, "max_tokens": 1}
        for name in ("prompt", "messages"):
            if name in request.body:
                body[name] = request.body[name]
        status, raw, header = await _post(server, request.path, body)
        if status in (401, 403):
            raise server.key_refused()
        # chat with a model that has no template: refused, or a crash of it
        if status >= 500 and request.path != CHAT:
            raise WorkshopError(
                f"{server.url} answers {status}: {first_line(raw)}.",
                "Look at its log: `workshop servers`.",
            )
        if status == 200:
            try:
                counted[text], _ = received.usage(received.body(raw))
            except Malformed as bad:
                remedy = "Give the address of a vLLM server, which ends in /v1."
                raise WorkshopError(f"{server.url} answers with {bad}.", remedy) from None
            talks = talks or request.path == CHAT
    body = {"model": model, "prompt": CITIES[0], "max_tokens": 1, "logprobs": ALL_LOGPROBS}
    _, raw, _ = await _post(server, COMPLETIONS, body)
    most = refusals.logprobs_limit(raw.decode(errors="replace"))
    return Allowed(max_model_len, most, talks, counted, **_class_limits(header))


def _texts(cells: list[Cell]) -> dict[str, Ask]:
    """Return every text that a learner may send, with a request that has it."""
    requests = {}
    for cell in cells:
        for request in cell.asks:
            requests[request.text] = request
    for text in (*OPENINGS, *LABELLED):
        requests[text] = ask(text)
    for text in QUESTIONS:
        requests[text] = chat(text)
    return requests


def _class_limits(header: str) -> dict[str, int]:
    """Return the limits of one learner that a server for a class names."""
    limits = {}
    for name, phrase in Allowed.SAID.items():
        number = re.search(rf"(\d+) {phrase}", header)
        if number:
            limits[name] = int(number[1])
    return limits


async def _post(server: servers.Server, path: str, body: dict) -> tuple[int, bytes, str]:
    """POST; (status, body, what a server for a class says of its limits)."""

    async def once() -> tuple[int, bytes, str]:
        async with server.post(path, json=body) as answer:
            error = reach.redirected(server.url, answer.status, answer.headers.get("Location"))
            if error:
                raise error
            return answer.status, await answer.read(), answer.headers.get("x-workshop-limits", "")

    try:
        try:
            return await once()
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # the server closed the connection after the answer before (see use.client)
            return await once()
    except servers.AWAY as error:
        problem = f"{server.url} broke off ({str(error) or type(error).__name__})."
        raise WorkshopError(problem, "`workshop servers` says whether it still runs.") from None


async def send(
    server: servers.Server, model: str, question: Ask, number: int, request: Request
) -> None:
    """Send one request and write into `request` when its tokens came."""
    body = {"model": model, **question.body}
    if question.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    # a server for a class gives each a share
    headers = {"X-Workshop-Learner": f"classroom-{number}"}
    async with server.post(question.path, json=body, headers=headers) as answer:
        if answer.status != 200:
            raise Refused(f"{answer.status}: {first_line(await answer.read())}")
        try:
            if question.stream:
                return await _read_stream(answer, began, request)
            sequences = received.sequences(question.body.get("prompt"), question.body.get("n"))
            answered = received.answer(await answer.read(), sequences)
        except (Malformed, ValueError) as error:  # aiohttp's, for a line without an end
            raise Refused(f"200: {error}") from None
    if question.body["max_tokens"] == 1:  # its only token is its first
        request.ttft_s = time.monotonic() - began
    _count((answered.prompt_tokens, answered.completion_tokens), request)


async def _read_stream(answer: aiohttp.ClientResponse, began: float, request: Request) -> None:
    last: dict[int, float] = {}
    async for line in answer.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk, now = received.body(data), time.monotonic()
        if "error" in chunk:
            raise Refused(f"500: {first_line(data)}")
        for index, text in received.pieces(chunk):
            if not text:
                continue
            if request.ttft_s is None:
                request.ttft_s = now - began
            if index in last:
                request.itl_s.append(now - last[index])
            last[index] = now
        _count(received.usage(chunk), request)
    raise Refused("the answer was cut")


def _count(tokens: tuple[int, int], request: Request) -> None:
    request.prompt_tokens = tokens[0] or request.prompt_tokens
    request.completion_tokens = tokens[1] or request.completion_tokens


def first_line(raw: bytes) -> str:
    """Return the first line of a refusal."""
    return refusals.sentence(received.refusal_message(raw))[:160]

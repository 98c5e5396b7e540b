"""Reads what vLLM reports about the tokens of an answer, while the answer passes.

Answers are JSON or a stream of server-sent events; either comes in pieces that end anywhere.
OpenAI's, Anthropic's and vLLM's own routes name the same two numbers differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from workshop.servers.guard.asgi import header_of

# vLLM reads its fields with pydantic, which takes all of these for true, and for false.
TRUE_WORDS = ("1", "true", "t", "yes", "y", "on")
FALSE_WORDS = ("0", "false", "f", "no", "n", "off")
# Routes whose streams report their usage only if "stream_options" asks for it.
ASKED_FOR = ("/completions", "/invocations", "/generate")
FINAL_EVENTS = (
    None,
    "message_delta",
    "response.completed",
    "response.incomplete",
    "response.failed",
)
END_OF_EVENT = re.compile(rb"(?:\r\n|\n|\r(?!\n))(?:\r\n|\n|\r)")


class Meter:
    """A `send` that reads the usage as it passes.

    It leaves out the event that the client did not ask for.
    """

    def __init__(self, send, hides_usage: bool = False, answers: int = 1):
        """answers: n of the request, how many choices of an answer share a prompt."""
        self._send = send
        self._hides_usage = hides_usage
        self._answers = answers
        self._is_stream: bool | None = None
        self._unread = b""  # what has come of an event
        self._json: list[bytes] = []
        self._total: tuple[int, int] | None = None
        self._running: dict[int, tuple[int, int]] = {}  # by the index of a choice
        self._prompt_tokens = 0
        self._tokens = 0  # that were seen in events

    @property
    def reported(self) -> tuple[int, int] | None:
        """The (prompt tokens, completion tokens) of the whole answer, once they were reported."""
        return self._total

    @property
    def seen(self) -> tuple[int, int]:
        """The same as far as an answer that broke off tells.

        At least a token for each event with text.
        """
        if not self._running:
            return self._prompt_tokens, self._tokens
        prompt_tokens: dict[int, int] = {}
        completion_tokens = 0
        for index, (prompt, completion) in self._running.items():
            prompt_tokens[index // self._answers] = prompt
            completion_tokens += completion
        return sum(prompt_tokens.values()), completion_tokens

    def close(self) -> None:
        """Read what is left when the answer has ended, or broke off."""
        usage = _usage_in(_parsed(b"".join(self._json)))
        if usage is not None:
            self._total = _numbers(usage)

    async def __call__(self, message) -> None:
        if message["type"] == "http.response.start":
            kind = header_of(message.get("headers", ()), b"content-type")
            if kind:
                self._is_stream = kind.lower().startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            message = self._read(message)
        if message is not None:
            await self._send(message)

    def _read(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Return the message to pass on; None while the event that it belongs to is not whole."""
        body = message.get("body", b"")
        ends = not message.get("more_body", False)
        if self._is_stream is None and body.strip():
            self._is_stream = not body.lstrip().startswith((b"{", b"["))
        if not self._is_stream:
            self._json.append(body)
            return message
        self._unread += body
        visible = b"".join(self._events(ends))
        if not self._hides_usage:
            return message
        if not visible and not ends:
            return None
        return {**message, "body": visible}

    def _events(self, ends: bool) -> Iterator[bytes]:
        """Yield the events that are whole, but for one that is to be left out."""
        begin = 0
        for end in END_OF_EVENT.finditer(self._unread):
            event = self._unread[begin : end.end()]
            begin = end.end()
            if not self._read_event(event):
                yield event
        self._unread = self._unread[begin:]
        if ends and self._unread:
            if not self._read_event(self._unread):
                yield self._unread
            self._unread = b""

    def _read_event(self, event: bytes) -> bool:
        """Read one event; return whether it is the one to leave out."""
        answer = _parsed(_data_of(event))
        if not answer:
            return False
        usage = _usage_in(answer)
        choices = answer.get("choices")
        if usage is None:
            self._tokens += _tokens_in(answer)
        elif choices:
            for choice in choices:
                if isinstance(choice, dict) and type(choice.get("index")) is int:
                    self._running[choice["index"]] = _numbers(usage)
        else:
            prompt, completion = _numbers(usage)
            self._prompt_tokens = max(self._prompt_tokens, prompt)
            if answer.get("type") in FINAL_EVENTS:
                self._total = (self._prompt_tokens, completion)
        return self._hides_usage and usage is not None and choices == []


def ask_for_usage(body: bytes, path: str) -> tuple[bytes, bool, int]:
    """Make a stream report its usage.

    Returns:
        The body to pass on, whether the report is to be hidden from the client, and the request's
        n.
    """
    if not path.endswith(ASKED_FOR):
        return body, False, 1
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body, False, 1
    if not isinstance(request, dict):
        return body, False, 1
    answers = max(1, _whole(request, "n"))
    options = request.get("stream_options")
    if options is None:
        options = {}
    if not _is(request.get("stream"), TRUE_WORDS) or not isinstance(options, dict):
        return body, False, answers
    include_usage = options.get("include_usage")
    # The client wants it, or gives a word that vLLM refuses.
    if include_usage is not None and not _is(include_usage, FALSE_WORDS):
        return body, False, answers
    options = {**options, "include_usage": True}
    if "continuous_usage_stats" in options:
        options["continuous_usage_stats"] = False  # without include_usage vLLM leaves it out
    return json.dumps({**request, "stream_options": options}).encode(), True, answers


def _is(value: object, spellings: tuple[str, ...]) -> bool:
    """Return whether pydantic takes a value for what these spellings mean."""
    if isinstance(value, str):
        return value.lower() in spellings
    return isinstance(value, (bool, int, float)) and value == int(spellings is TRUE_WORDS)


def _data_of(event: bytes) -> bytes:
    lines = event.splitlines()
    return b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    return value


def _usage_in(answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return the usage of an answer or event: its own, or that of its response or message."""
    for holder in (answer, answer.get("response"), answer.get("message")):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return holder["usage"]
    return None


def _numbers(usage: dict[str, Any]) -> tuple[int, int]:
    """Return (prompt tokens, completion tokens), whatever the route calls them."""
    if "prompt_tokens" in usage:
        prompt = _whole(usage, "prompt_tokens")
    else:  # Anthropic's input_tokens leave out what came from the prefix cache
        parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        prompt = sum(_whole(usage, part) for part in parts)
    return prompt, _whole(usage, "completion_tokens") or _whole(usage, "output_tokens")


def _whole(usage: dict[str, Any], name: str) -> int:
    value = usage.get(name)
    if type(value) is int and value > 0:
        return value
    return 0


def _tokens_in(event: dict[str, Any]) -> int:
    """Return how many tokens an event without usage has, as far as it tells.

    One for a piece of text.
    """
    if str(event.get("type", "")).endswith("delta"):
        return 1
    choices = event.get("choices")
    if not choices:
        return 0
    return sum(_tokens_of_choice(choice) for choice in choices if isinstance(choice, dict))


def _tokens_of_choice(choice: dict[str, Any]) -> int:
    if isinstance(choice.get("token_ids"), list):
        return len(choice["token_ids"])
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return int(any(value for name, value in delta.items() if name != "role"))
    return int(bool(choice.get("text")))

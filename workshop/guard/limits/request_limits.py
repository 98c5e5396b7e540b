"""Refuses what a learner may not ask for: fields that are not open, long lists and texts, and forms.

`problem` is pure: it takes the request as parsed JSON and says in one sentence why it is refused.
What a request may ask for in tokens and sequences depends on the server's settings, and is
`fairshare`'s.

The standard library only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from workshop.guard.limits import forms
from workshop.guard.limits.allow_list import FIELDS, UNLIMITED

KIB = 1024
MAX_TEXT_BYTES = 1024 * KIB  # of a request, without the pictures and sounds in it
# of the prompts of several sequences, each counted as often as it is answered
MAX_READ_BYTES = 32 * KIB
MAX_TOKENIZE_BYTES = 64 * KIB  # of a request that only counts tokens
MAX_CONTAINERS = 10_000  # objects and lists
MAX_COMMAS = 150_000  # a prompt of token ids has one a token
MAX_MEDIA = 16  # pictures, sounds and films
CLOSED_HEADERS = frozenset({b"x-vllm-priority"})
MAX_LOGPROBS_A_STEP = 64  # of all sequences of a request
MAX_PROMPT_LOGPROBS = 8000  # of all tokens of its prompts
BYTES_A_TOKEN = 4  # of English text
LOGPROBS = {"logprobs": "sample", "top_logprobs": "sample", "prompt_logprobs": "prompt"}
MEDIA = ("image_url", "video_url", "audio_url", "file_url", "url")
UNPACKED = ("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds", "image_pil")
TEXT_IN_QUOTES = re.compile(rb'"(?:[^"\\]|\\.)*"')


def shape_problem(body: bytes) -> str:
    """Return why a body would take long to parse (objects, lists or values), or ''."""
    if body.count(b"{") + body.count(b"[") <= MAX_CONTAINERS and body.count(b",") <= MAX_COMMAS:
        return ""
    structure = TEXT_IN_QUOTES.sub(b"", body)
    if structure.count(b"{") + structure.count(b"[") > MAX_CONTAINERS:
        return f"A request may have at most {MAX_CONTAINERS:,} objects and lists in this class."
    if structure.count(b",") > MAX_COMMAS:
        return f"A request may have at most {MAX_COMMAS:,} values in this class."
    return ""


@dataclass(frozen=True)
class EngineLimits:
    """The limits that the engine itself was started with.

    Attributes:
        guidance: whether its back end for forms is guidance (see forms).
        max_logprobs: the most logprobs a token.
        media_domains: hosts from which it may fetch pictures (vLLM's --allowed-media-domains).
        on_cpu: whether it runs without a GPU.
    """

    guidance: bool = True
    max_logprobs: int = 20
    media_domains: tuple[str, ...] = ()
    on_cpu: bool = False


def problem(
    request: dict[str, Any],
    engine: EngineLimits,
    *,
    body_bytes: int = 0,
    sequences: int = 1,
    generates: bool = True,
) -> str:
    """Return in one sentence why a request is refused, or ''.

    Args:
        request: the parsed body.
        body_bytes: how long the body was.
        sequences: how many answers it asks for: prompts × n.
        generates: whether it asks for an answer; else its tokens are only counted.
    """
    try:
        _fields(request)
        if generates:
            _logprobs(request, engine.max_logprobs)
            _many_logprobs(request, sequences)
        media = _Media(engine.media_domains)
        for name in ("messages", "input", "system", "previous_input_messages"):
            media.look(request.get(name))
        _text(body_bytes - media.inline_bytes, generates)
        _read_often(request, body_bytes - media.inline_bytes, sequences)
        forms.check(request, engine.guidance)
    except (_Refused, forms.NotOpen) as refused:
        return str(refused)
    except RecursionError:
        return "The request has too many objects and lists inside each other."
    return ""


def logprobs_a_step(request: dict[str, Any], sequences: int) -> int:
    """Return how many logprobs a request asks for at each step, the chosen tokens' included."""
    per_sequence = 0
    for name in ("logprobs", "top_logprobs"):
        value = request.get(name)
        if value is True:
            per_sequence = max(per_sequence, 1)
        elif isinstance(value, int) and value is not False:
            per_sequence = max(per_sequence, value + 1)
    token_ids = request.get("logprob_token_ids")
    if isinstance(token_ids, list):
        per_sequence = max(per_sequence, len(token_ids) + 1)
    return per_sequence * sequences


def _many_logprobs(request: dict[str, Any], sequences: int) -> None:
    """Refuse too many logprobs in all: the API server turns each into text."""
    if logprobs_a_step(request, sequences) > MAX_LOGPROBS_A_STEP:
        raise _Refused(
            f"A request may have {MAX_LOGPROBS_A_STEP} logprobs a step in this class "
            "(sequences × (logprobs + 1)): ask for fewer of either."
        )
    logprobs = request.get("prompt_logprobs")
    if not isinstance(logprobs, int):
        return
    tokens = _prompt_tokens(request) * _answers(request)
    per_token = int(logprobs) + 1
    if tokens * per_token > MAX_PROMPT_LOGPROBS:
        raise _Refused(
            f"A request may have {MAX_PROMPT_LOGPROBS:,} prompt_logprobs in all in this class, "
            f"and this is about {tokens:,} tokens × {per_token}: take a shorter prompt, or fewer."
        )


def _answers(request: dict[str, Any]) -> int:
    """Return how many answers each prompt gets."""
    count = request.get("n")
    if isinstance(count, int) and count > 0:
        return count
    return 1


def _read_often(request: dict[str, Any], size: int, sequences: int) -> None:
    if sequences <= 1:
        return
    # several prompts are in the body one by one, and each is read n times
    total = size * _answers(request)
    if total > MAX_READ_BYTES:
        raise _Refused(
            f"{sequences} sequences of such long prompts are more than one request may have in "
            f"this class: {MAX_READ_BYTES // KIB} KiB of text, each prompt counted as often as it "
            "is answered."
        )


def _prompt_tokens(request: dict[str, Any]) -> int:
    """Return about how many tokens the prompts have."""
    prompt = request.get("prompt")
    if prompt is None:
        return sum(map(_characters, _list(request.get("messages")))) // BYTES_A_TOKEN
    parts = prompt
    if not isinstance(prompt, list):
        parts = [prompt]
    total = 0
    for part in parts:
        if isinstance(part, int):
            total += 1
        elif isinstance(part, list):
            total += len(part)
        else:
            total += _characters(part) // BYTES_A_TOKEN
    return total


def _characters(value: Any) -> int:
    """Return the length of all texts in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_characters, value))
    return 0


class _Refused(ValueError):
    """The reason for which a request is refused: a whole sentence."""


def _fields(request: dict[str, Any]) -> None:
    """Refuse a field that is not on the list, or larger than the list allows."""
    for name, value in request.items():
        limit = FIELDS.get(name)
        if limit is None:
            if value:
                raise _Refused(
                    f"{json.dumps(name[:60])} is not open in this class: "
                    "leave it out, or use a server of your own."
                )
            continue
        if isinstance(value, list | dict) and len(value) > limit.entries:
            raise _Refused(
                f'"{name}" has {len(value):,} entries; '
                f"a request may have {limit.entries:,} in this class."
            )
        if limit.characters < UNLIMITED:
            longest = max(map(_longest, _entries(value)), default=0)
            if longest > limit.characters:
                raise _Refused(
                    f'"{name}" has a text of {longest:,} characters; '
                    f"at most {limit.characters:,} may be in this class."
                )
        if limit.number < UNLIMITED:
            for part in _entries(value):
                if isinstance(part, int) and part > limit.number:
                    raise _Refused(
                        f'"{name}" may have numbers up to {limit.number:,} in this class.'
                    )


def _entries(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list):
        return value
    return [value]


def _longest(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | dict):
        return max(map(_longest, _entries(value)), default=0)
    return 0


def _logprobs(request: dict[str, Any], most: int) -> None:
    """Refuse more logprobs than the class has, in vLLM's words: clients read the limit there."""
    for name, kind in LOGPROBS.items():
        value = request.get(name)
        if isinstance(value, bool) or value is None:
            continue
        if not isinstance(value, int):
            raise _Refused(f'"{name}" must be a whole number in this class, as in "{name}": 5')
        if value > most or value < 0:
            raise _Refused(
                f"Requested {kind} logprobs of {value}, which is greater than max allowed: {most}"
            )


def _text(size: int, generates: bool) -> None:
    most = MAX_TOKENIZE_BYTES
    if generates:
        most = MAX_TEXT_BYTES
    if size > most:
        raise _Refused(
            f"The request has {size // KIB:,} KiB of text; "
            f"{most // KIB:,} KiB may be in this class: split it into several requests."
        )


class _Media:
    """Finds the pictures, sounds and films of messages, and refuses those that must be fetched.

    An address can name a service inside the cluster that answers nobody else (server-side request
    forgery).
    """

    def __init__(self, domains: tuple[str, ...]):
        self._domains = domains
        self._count = 0
        self.inline_bytes = 0

    def look(self, content: Any) -> None:
        """Look at a list of messages, or at the content of one."""
        if isinstance(content, list):
            for part in content:
                if isinstance(part, dict):
                    self._part(part)
                self.look(part)

    def _part(self, part: dict[str, Any]) -> None:
        for name in UNPACKED:
            if part.get(name) is not None:
                raise _Refused(
                    f'"{name}" is a file that the server would have to unpack, '
                    "and is closed in this class."
                )
        for name in MEDIA:
            address = part.get(name)
            if isinstance(address, dict):
                address = address.get("url")
            self._address(address)
        source = part.get("source")
        if isinstance(source, dict):
            self._address(source.get("url"))
            self._inline(source.get("data"))
        sound = part.get("input_audio")
        if isinstance(sound, dict):
            self._inline(sound.get("data"))
        for name in ("file_data", "data"):
            self._inline(part.get(name))
        for name in ("content", "output"):
            self.look(part.get(name))

    def _address(self, address: Any) -> None:
        if not isinstance(address, str):
            return
        if address[:5].lower() == "data:":
            self._inline(address)
            return
        try:
            parts = urlsplit(address)
            allowed = parts.scheme in ("http", "https") and parts.hostname in self._domains
        except ValueError:
            allowed = False
        if not allowed:
            where = ""
            if self._domains:
                where = f"; allowed hosts: {', '.join(self._domains)}"
            raise _Refused(
                f"The server fetches nothing from {address[:60]!r} for a class{where}: "
                "send the file itself, as data:image/png;base64,…"
            )
        self._count_one()

    def _inline(self, text: Any) -> None:
        if isinstance(text, str):
            self.inline_bytes += len(text)
            self._count_one()

    def _count_one(self) -> None:
        self._count += 1
        if self._count > MAX_MEDIA:
            raise _Refused(
                f"A request may have {MAX_MEDIA} pictures, sounds and films in this class."
            )


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []

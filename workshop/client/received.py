"""Checks a server's answers before they are used; errors complete "… answers with …".

A login page, a proxy's error and a broken server sometimes answer with status 200; `openai` and
`json` accept much of that. Here pydantic parses an answer, once, and compares it with the fields
that are used. Pure.
"""

from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError
from pydantic_core import from_json

from workshop.client.strict_json import Malformed, json_type


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)  # "3" is no number, and True none either


class _Usage(_Part):
    prompt_tokens: NonNegativeInt | None = None
    completion_tokens: NonNegativeInt | None = None


class _Message(_Part):
    content: str | None = None


class _Choice(_Part):
    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None  # in a stream
    finish_reason: str | None = None
    logprobs: dict | None = None


class _Reply(_Part):
    model: str | None = None
    usage: _Usage | None = None
    choices: list[_Choice] | None = None


class _Vector(_Part):
    index: int
    embedding: list | str  # numbers, or base64


class _Embeddings(_Reply):
    data: list[_Vector]


class _Model(_Part):
    id: str
    max_model_len: int | None = None
    root: str | None = None


class _Models(_Part):
    data: list[_Model]


Kind = TypeVar("Kind", bound=_Part)


@dataclass(frozen=True)
class Answer:
    """A whole answer, with as many choices as were requested.

    body: all of it; the choices, or embeddings, are objects in it.
    Tokens are 0 if the server does not count them.
    """

    body: dict
    choices: list[dict]
    model: str | None
    prompt_tokens: int
    completion_tokens: int
    id: str | None = None  # vLLM's has the X-Request-Id in it


def body(raw: bytes) -> dict:
    """Decode the JSON object that an answer must be.

    Raises Malformed: it is something else; the text completes "… answers with".
    """
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        description = shown(raw)
        if raw.lstrip()[:1] in (b"{", b"["):
            description = f"{description}: {error}"
        raise Malformed(description) from None
    if not isinstance(data, dict):
        raise Malformed(f"JSON that is {json_type(data)}")
    return data


def _checked(kind: type[Kind], data: dict) -> Kind:
    """Return the fields of an answer that are used. Raises Malformed: one is of another type."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))
        reason = problem["msg"].split(" or instance of")[0]
        raise Malformed(f"{place} that cannot be used ({reason})") from None


def shown(raw: bytes) -> str:
    """Return a short description of an answer that is not JSON."""
    text = raw.strip()
    if not text:
        return "nothing"
    if text[:1] == b"<":
        return "an HTML page, as a login page or a proxy sends"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return "bytes that are not UTF-8"
    return repr(text[:60].decode(errors="replace"))


def answer(raw: bytes, sequences: int | None = 1) -> Answer:
    """Return the answer to a completion or a chat.

    Args:
        raw: the body of the answer.
        sequences: how many choices it must have: `n` times the number of prompts; None if that is
            unknown.

    Raises Malformed: it is no answer, or has fewer or more choices.
    """
    data = body(raw)
    reply = _checked(_Reply, data)
    choices = reply.choices or []
    if not choices or (sequences is not None and len(choices) != sequences):
        raise Malformed(f"{len(choices)} choices, and {sequences or 'at least 1'} should be there")
    if any(choice.text is None and choice.message is None for choice in choices):
        raise Malformed("a choice without text or message")
    numbers = sorted(choice.index for choice in choices)
    if numbers != list(range(len(choices))):
        raise Malformed(
            f"choices numbered {str(numbers[:8])[:60]}, not from 0 to {len(choices) - 1}"
        )
    return _whole(reply, data, data["choices"])


def embeddings(raw: bytes, inputs: int) -> Answer:
    """Return the answer of /v1/embeddings; its `choices` are the objects with one embedding each.

    Raises Malformed: it is no answer, or has fewer or more embeddings than `inputs`.
    """
    data = body(raw)
    reply = _checked(_Embeddings, data)
    numbers = [vector.index for vector in reply.data]
    if numbers != list(range(inputs)):
        raise Malformed(f"embeddings numbered {str(numbers[:8])[:60]}, not from 0 to {inputs - 1}")
    return _whole(reply, data, data["data"])


def _whole(reply: _Reply, data: dict, choices: list[dict]) -> Answer:
    answer_id = data.get("id")
    if not isinstance(answer_id, str):
        answer_id = None
    return Answer(data, choices, reply.model, *_tokens(reply.usage), answer_id)


def _tokens(usage: _Usage | None) -> tuple[int, int]:
    """Return (prompt tokens, generated tokens); 0 if the server does not count them."""
    if usage is None:
        return 0, 0
    return usage.prompt_tokens or 0, usage.completion_tokens or 0


def refusal_message(raw: bytes) -> str:
    """Return the message of a refusal, or a description of an answer that has none."""
    try:
        data = body(raw)
    except Malformed:
        return shown(raw)
    message = data.get("error", data)
    if isinstance(message, dict):
        message = message.get("message")
    return str(message or data)


def pieces(data: dict) -> list[tuple[int, str]]:
    """Return (index of the sequence, text) of each choice of a piece of a stream."""
    indexed_texts = []
    for choice in _checked(_Reply, data).choices or []:
        text = choice.text
        if text is None and choice.delta is not None:
            text = choice.delta.content
        indexed_texts.append((choice.index, text or ""))
    return indexed_texts


def usage(data: dict) -> tuple[int, int]:
    """Return (prompt tokens, generated tokens) of an answer or of the last piece of a stream."""
    return _tokens(_checked(_Reply, data).usage)


def sequences(prompt: object, n: object) -> int | None:
    """Return how many sequences a request asks for; None where the server has to judge that."""
    samples = 1 if n is None else n
    if not isinstance(samples, int):
        return None
    if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
        return len(prompt) * samples
    return samples


def models(raw: bytes) -> list[dict]:
    """Return the entries of /v1/models; max_model_len and root are None if not given."""
    data = body(raw)
    checked = _checked(_Models, data).data
    return [entry | model.model_dump() for entry, model in zip(data["data"], checked, strict=True)]

"""Checks a server's answers before they are used.

If one is not valid, the error completes "… answers with …".

A login page, a proxy's error and a broken server sometimes answer with status 200; `openai` and
`json` accept much of that. `remedy` says what to do about a refusal, as refusals.toml has it. Pure.
"""

import codecs
import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeVar

from workshop.client.strict_json import Malformed, decode, kind_of

_REFUSALS_FILE = files("workshop.client") / "refusals.toml"
_KNOWN = tomllib.loads(_REFUSALS_FILE.read_text(encoding="utf-8"))["refusal"]
COUNTS = ("prompt_tokens", "completion_tokens")
Kind = TypeVar("Kind")
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"\xef\xbb\xbf")


@dataclass(frozen=True)
class Answer:
    """A whole answer, with as many choices as were requested.

    Tokens are 0 if the server does not count them.
    """

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
        data = decode(raw.decode(), answer=True)
    except UnicodeDecodeError:
        raise Malformed(shown(raw)) from None
    except Malformed as bad:
        description = shown(raw)
        if raw.lstrip()[:1] in (b"{", b"["):
            description = f"{description}: {bad}"
        raise Malformed(description) from None
    return _typed(data, dict, "JSON that is")


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
    if raw.startswith(_WIDE) or b"\0" in raw:
        return "text that is not plain UTF-8"
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
    choices = [_choice(value) for value in _typed(data.get("choices"), list, "choices that are")]
    if not choices or (sequences is not None and len(choices) != sequences):
        raise Malformed(f"{len(choices)} choices, and {sequences or 'at least 1'} should be there")
    numbers = [choice.get("index", 0) for choice in choices]
    all_whole = all(type(number) is int for number in numbers)
    if not all_whole or sorted(numbers) != list(range(len(choices))):
        raise Malformed(
            f"choices numbered {str(numbers[:8])[:60]}, not from 0 to {len(choices) - 1}"
        )
    model = _optional(data.get("model"), str, "a model that is")
    answer_id = data.get("id")
    if not isinstance(answer_id, str):
        answer_id = None
    prompt_tokens, completion_tokens = usage(data)
    return Answer(choices, model, prompt_tokens, completion_tokens, answer_id)


def embeddings(raw: bytes, inputs: int) -> Answer:
    """Return the answer of /v1/embeddings; its `choices` are the objects with one embedding each.

    Raises Malformed: it is no answer, or has fewer or more embeddings than `inputs`.
    """
    data = body(raw)
    vectors = []
    for value in _typed(data.get("data"), list, "data that are"):
        vector = _typed(value, dict, "an embedding that is")
        if not isinstance(vector.get("embedding"), list | str):  # numbers, or base64
            raise Malformed(f"an embedding that is {kind_of(vector.get('embedding'))}")
        vectors.append(vector)
    numbers = [vector.get("index") for vector in vectors]
    if numbers != list(range(inputs)):
        raise Malformed(f"embeddings numbered {str(numbers[:8])[:60]}, not from 0 to {inputs - 1}")
    model = _optional(data.get("model"), str, "a model that is")
    answer_id = data.get("id")
    if not isinstance(answer_id, str):
        answer_id = None
    prompt_tokens, completion_tokens = usage(data)
    return Answer(vectors, model, prompt_tokens, completion_tokens, answer_id)


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
    for choice in _optional(data.get("choices"), list, "choices that are") or []:
        choice = _typed(choice, dict, "a choice that is")
        delta = _optional(choice.get("delta"), dict, "a delta that is") or {}
        text = _optional(choice.get("text", delta.get("content")), str, "a text that is")
        index = _typed(choice.get("index"), int, "an index that is")
        indexed_texts.append((index, text or ""))
    return indexed_texts


def usage(data: dict) -> tuple[int, int]:
    """Return (prompt tokens, generated tokens) of an answer or of the last piece of a stream."""
    fields = _optional(data.get("usage"), dict, "a usage that is") or {}
    counts = {}
    for name in COUNTS:
        counts[name] = _optional(fields.get(name), int, f"{name} that are") or 0
    for name, count in counts.items():
        if count < 0:
            raise Malformed(f"{name} of {count}")
    return counts["prompt_tokens"], counts["completion_tokens"]


def sequences(prompt: object, n: object) -> int | None:
    """Return how many sequences a request asks for; None where the server has to judge that."""
    samples = 1 if n is None else n
    if not isinstance(samples, int):
        return None
    if isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
        return len(prompt) * samples
    return samples


def models(raw: bytes) -> list[dict]:
    """Return the entries of /v1/models.

    Each has an id; max_model_len and root are None if the server omits them.
    """
    entries = []
    for entry in _typed(body(raw).get("data"), list, "data that is"):
        entry = _typed(entry, dict, "a model that is")
        name = _typed(entry.get("id"), str, "a model whose id is")
        length = _optional(entry.get("max_model_len"), int, "a max_model_len that is")
        root = _optional(entry.get("root"), str, "a root that is")
        entries.append({**entry, "id": name, "max_model_len": length, "root": root})
    return entries


def _choice(value: object) -> dict:
    """Return a choice of an answer.

    Raises Malformed: it has neither a text nor a message, or one of an odd type.
    """
    choice = _typed(value, dict, "a choice that is")
    _optional(choice.get("finish_reason"), str, "a finish_reason that is")
    _optional(choice.get("logprobs"), dict, "logprobs that are")
    if "text" in choice:
        _typed(choice["text"], str, "a text that is")
    else:
        message = _typed(choice.get("message"), dict, "a choice without text, its message")
        content = message.get("content")
        if not isinstance(content, list):  # of parts, each with a type
            _optional(content, str, "a content that is")
    return choice


def _typed(value: object, kind: type[Kind], subject: str) -> Kind:
    """Return a value that is of a kind.

    Raises Malformed: it is of another; `subject` begins the sentence.
    """
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    name = "null" if value is None else kind_of(value)
    raise Malformed(f"{subject} {name}")


def _optional(value: object, kind: type[Kind], subject: str) -> Kind | None:
    """Return a value that is null or of a kind, as `_typed` does."""
    if value is None:
        return None
    return _typed(value, kind, subject)


def remedy(message: str) -> str:
    """Return what to do about a refusal; '' if vLLM's own sentence is all there is."""
    for row in _KNOWN:
        match = re.search(row["says"], message)
        if match:
            return row["remedy"].format(*match.groups())
    return ""


def sentence(message: str) -> str:
    """Return the first line of a refusal without its full stop.

    Of a list of validation errors, the first error.
    """
    first = (message.strip().splitlines() or ["no word"])[0].rstrip(".")
    if not first.endswith(":"):
        return first
    text = re.search(r"'msg': (['\"])(?:Value error, )?(.+?)\1, 'input'", message)
    if not text:
        return first
    problem = text[2].rstrip(".")
    place = re.search(r"'loc': \('body', .*?'?(\w+)'?\)", message)
    if not place:
        return problem
    return f"{place[1]}: {problem}"


def logprobs_limit(message: str) -> int | None:
    """Return the server's --max-logprobs if that is what the request exceeded, else None."""
    match = re.search(r"greater than max allowed: (\d+)", message)
    if not match:
        return None
    return int(match[1])

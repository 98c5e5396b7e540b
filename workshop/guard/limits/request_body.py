"""Reads the JSON body of a request, and refuses one that vLLM could understand in another way.

The standard library only.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from workshop.guard.limits.allow_list import ANSWER_LENGTHS, CHAT, COMPLETIONS, EMBEDDINGS

COMPLETION_TOKENS = 16  # vLLM's default for a completion that names no max_tokens
TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")  # of one answer
COUNTS = ("n", "best_of")  # of answers to one prompt


class Unclear(ValueError):
    """A body that vLLM might read in another way; the text is a sentence without its full stop."""


def read_request(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        Unclear: the body is no JSON object in UTF-8, has a name twice in one object, or has NaN or
            Infinity.
    """
    try:
        request = read_json(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise Unclear("The request's body is no JSON in UTF-8") from None
    if not isinstance(request, dict):
        raise Unclear("The request's body is no JSON object")
    return request


def read_json(text: str) -> Any:
    """Return what a JSON text says.

    Raises:
        Unclear: it is no JSON, has a name twice in one object, or has NaN or Infinity.
    """
    try:
        return json.loads(text, object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
    except Unclear:
        raise
    except (ValueError, RecursionError):
        raise Unclear("The JSON of the request cannot be read") from None


def whole_numbers(request: dict[str, Any], names: tuple[str, ...]) -> list[int]:
    """Return the values of these fields, without those that are missing or null.

    Raises:
        Unclear: a value is no whole number. vLLM would also take "50", 50.0 and true for one.
    """
    numbers: list[int] = []
    for name in names:
        value = request.get(name)
        if value is None:
            continue
        if type(value) is not int:
            raise Unclear(f'"{name}" must be a whole number in this class, as in "{name}": 50')
        numbers.append(value)
    return numbers


def count_sequences(request: dict[str, Any], route: str = COMPLETIONS) -> int:
    """Return how many sequences a request has in the engine: prompts × answers to each."""
    names: tuple[str, ...] = ("prompt",)
    if route == EMBEDDINGS:
        names = ("input", "messages")
    prompts = 0
    for name in names:
        if request.get(name):
            prompts += _count_prompts(request[name])
    return max(1, prompts) * max([1, *whole_numbers(request, COUNTS)])


def answer_tokens(request: dict[str, Any], route: str, default: int) -> int:
    """Return how many tokens one answer may have: what the request says, or what vLLM then takes.

    Args:
        request: the parsed body.
        route: its path; an unknown one is taken for a chat's.
        default: the server's own limit, which holds where a request names none.
    """
    if route == EMBEDDINGS:
        return 1
    lengths = whole_numbers(request, ANSWER_LENGTHS.get(route, ANSWER_LENGTHS[CHAT]))
    if lengths:
        return max(lengths)
    if route == COMPLETIONS and "max_tokens" not in request:
        return COMPLETION_TOKENS
    return default


def _count_prompts(value: Any) -> int:
    """Return how many prompts a field has: a list of token ids, or of messages, is one."""
    if not isinstance(value, list):
        return 1
    if all(type(part) in (int, dict) for part in value):
        return 1
    return len(value)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Unclear("A name stands twice in one object of the request's JSON")
    return fields


def _refuse_constant(word: str) -> NoReturn:
    raise Unclear(f"{word} is no number of JSON")

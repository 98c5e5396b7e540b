"""Reads the JSON of input files strictly: only what every other program reads in the same way.

Python's own reader accepts NaN, the last of two equal keys, and half of a surrogate pair. None of
it can be sent on.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from workshop.errors import BadInput

DEEPEST = 100  # lists and objects in each other; Python's own writer gives up at some 900
ARRAY = 'Give a JSON array: ["first prompt", "second prompt"].'
_SPACE = re.compile(r"[ \t\r\n]*")
_KINDS = {type(None): "nothing", dict: "an object", list: "a list", str: "text", bool: "true or false",
          int: "a number", float: "a number"}  # fmt: skip


class Malformed(Exception):
    """The row or the answer is not valid; the text completes "line 7: …"."""


def json_type(value: object) -> str:
    """Return a JSON value's type in words, such as "a list"."""
    return _KINDS.get(type(value), type(value).__name__)


def _unique(pairs: list[tuple[str, object]]) -> dict:
    """Return the members of an object. Raises Malformed: two have the same name."""
    unique_members = dict(pairs)
    if len(unique_members) < len(pairs):
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise Malformed(f"it has {name!r} twice")
    return unique_members


def _finite(text: str) -> float:
    """Return a number. Raises Malformed: it is too large for one."""
    value = float(text)
    if math.isinf(value):
        raise Malformed(f"{text[:40]} is too large for a number")
    return value


def _refuse_constant(name: str):
    """Raise Malformed for NaN and Infinity, which are not JSON."""
    raise Malformed(f"{name} is no JSON number")


_ROWS = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant
)
_ITEMS = json.JSONDecoder(parse_int=str)  # finds where an item ends; any number of digits


def decode(text: str) -> object:
    """Decode the JSON text of a row.

    Raises Malformed: it is no JSON, or would not mean the same to every reader.
    """
    try:
        value = _ROWS.decode(text)
        if text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
            raise RecursionError
    except json.JSONDecodeError as error:
        raise Malformed(
            f"it is not JSON ({error.msg} at column {error.colno}): {text[:60]!r}"
        ) from None
    except RecursionError:
        raise Malformed(
            f"it is nested too deeply: more than {DEEPEST} lists and objects in each other"
        ) from None
    except ValueError:
        raise Malformed(
            f"it has a number of more than {sys.get_int_max_str_digits():,} digits"
        ) from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = repr(error.object[error.start])
            raise Malformed(
                f"it holds half of a surrogate pair ({half}), which is no character"
            ) from None
    return value


def _after_space(text: str, at: int) -> int:
    """Return the position after the white space that begins at `at`; there may be none."""
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _depth(value: object) -> int:
    """Return how many lists and objects are nested in each other at most."""
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def array_items(data: bytes, path: Path) -> Iterator[str]:
    """Yield the text of each item of a JSON array; `path` is its file's name for messages.

    Raises BadInput: the data is no array, or holds more than one array; the text names the line.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = len(data) - len(error.object) + error.start  # in the file: a mark in front was removed
        problem = f"{path} is not UTF-8 (byte {at + 1:,}: 0x{data[at]:02x})."
        raise BadInput(problem, "Save it as UTF-8.") from None

    def broken(what: str, at: int) -> BadInput:
        line = 1 + text.count("\n", 0, at)
        return BadInput(f"{path}, line {line:,}: {what}. Nothing was started.", ARRAY)

    at = _after_space(text, 0)
    if text[at : at + 1] != "[":
        problem = f"{path} begins with {text[at : at + 1]!r}, not with '['."
        raise BadInput(
            problem, f"{ARRAY} Where each line is JSON of its own, call the file .jsonl."
        )
    at = _after_space(text, at + 1)
    count = 0
    while text[at : at + 1] != "]":
        if count and text[at : at + 1] != ",":
            raise broken(f"the array is cut, or lacks a comma, after item {count:,}", at)
        begin = _after_space(text, at + 1) if count else at
        count += 1
        try:
            _, end = _ITEMS.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            raise broken(f"item {count:,} is not JSON ({error.msg})", error.pos) from None
        except RecursionError:
            raise broken(f"item {count:,} is nested too deeply", begin) from None
        yield text[begin:end]
        at = _after_space(text, end)
    at = _after_space(text, at + 1)
    if at < len(text):
        raise broken(f"after the array's end there is more, beginning with {text[at]!r}", at)

"""Reads the JSON of input files strictly: only what every other program reads in the same way.

It says why it refuses the rest.

Python's own reader accepts NaN, the last of two equal keys, and half of a surrogate pair. None of
it can be sent on.
"""

import codecs
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from workshop.errors import BadInput

DEEPEST = 100  # lists and objects in each other; Python's own writer gives up at some 900
CHUNK_BYTES = 1 << 20
LONGEST_TOKEN = 12  # two escapes, a number's end, or -Infinity: what a chunk's end may have cut
ARRAY = 'Give a JSON array: ["first prompt", "second prompt"].'
_SPACE = re.compile(r"[ \t\r\n]*")
_KINDS = {type(None): "nothing", dict: "an object", list: "a list", str: "text", bool: "true or false",
          int: "a number", float: "a number"}  # fmt: skip


class Malformed(Exception):
    """The row or the answer is not valid; the text completes "line 7: …"."""


def kind_of(value: object) -> str:
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
DECODER_OF_ITEMS = json.JSONDecoder(parse_int=str)  # finds where an item ends; any number of digits


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


def array_items(file: IO[bytes], path: Path) -> Iterator[str]:
    """Yield the text of each item of the JSON array in a file. Memory holds a chunk and one item.

    `path` is its name for messages.

    Raises BadInput: the file is no array, or holds more than one array; the text names the line.
    """
    text = _Text(file, path)
    count = 0
    first = text.next_character()
    if first != "[":
        problem = f"{path} begins with {first!r}, not with '['."
        raise BadInput(
            problem, f"{ARRAY} Where each line is JSON of its own, call the file .jsonl."
        )
    text.at += 1
    character = text.next_character()
    while character != "]":
        if count and character != ",":
            raise text.broken(f"the array is cut, or lacks a comma, after item {count:,}")
        if count:
            text.at += 1
            text.next_character()
        count += 1
        yield text.item(count)
        character = text.next_character()
    text.at += 1
    more = text.next_character()
    if more:
        raise text.broken(f"after the array's end there is more, beginning with {more!r}")


class _Text:
    """The text of a file as far as it is read.

    `buffer[at:]` is the part that is still to be parsed, `line` the number of the line where the
    buffer begins.
    """

    def __init__(self, file, path: Path):
        self._file = file
        self._path = path
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.buffer = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def broken(self, what: str, at: int | None = None) -> BadInput:
        """Return the error that names the line of a position (by default the present one)."""
        if at is None:
            at = self.at
        line = self.line + self.buffer.count("\n", 0, at)
        return BadInput(f"{self._path}, line {line:,}: {what}. Nothing was started.", ARRAY)

    def more(self) -> None:
        """Read at least as much again as waits.

        A long item is then scanned a few times, not once for each chunk.
        """
        data = self._file.read(max(CHUNK_BYTES, len(self.buffer) - self.at))
        try:
            text = self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            byte = self._file.tell() - len(error.object) + error.start
            problem = (
                f"{self._path} is not UTF-8 (byte {byte + 1:,}: 0x{error.object[error.start]:02x})."
            )
            raise BadInput(problem, "Save it as UTF-8.") from None
        self.line += self.buffer.count("\n", 0, self.at)
        self.buffer = self.buffer[self.at :] + text
        self.at = 0
        self.ended = not data

    def next_character(self) -> str:
        """Return the next character that is not white space, and move `at` to it.

        '' at the end.
        """
        while True:
            self.at = _after_space(self.buffer, self.at)
            if self.at < len(self.buffer) or self.ended:
                return self.buffer[self.at : self.at + 1]
            self.more()

    def item(self, number: int) -> str:
        """Return the text of the JSON value that begins here, and move `at` behind it."""
        while True:
            try:
                _, end = DECODER_OF_ITEMS.raw_decode(self.buffer, self.at)
                if self.ended or len(self.buffer) - end >= LONGEST_TOKEN:  # else a number may go on
                    break
            except json.JSONDecodeError as error:
                cut = (
                    error.msg.startswith("Unterminated string")
                    or len(self.buffer) - error.pos < LONGEST_TOKEN
                )
                if self.ended or not cut:
                    raise self.broken(
                        f"item {number:,} is not JSON ({error.msg})", error.pos
                    ) from None
            except RecursionError:
                raise self.broken(f"item {number:,} is nested too deeply") from None
            self.more()
        begin = self.at
        self.at = end
        return self.buffer[begin:end]

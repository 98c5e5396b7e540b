"""One answer as a line of the output, OpenAI's batch format, and back.

What is written here can be read by json.loads a line, by pandas and as Parquet, whatever a server said: JSON knows no
NaN and no Infinity (null stands instead), text knows no half of a surrogate pair (U+FFFD, as in vLLM), and many
readers know no number of more than 64 bits (it becomes text).
"""

import json
import math
import re
import time
from typing import NamedTuple

_HEAD = re.compile(rb'\{"custom_id": "(?:[^"\\]|\\.)*", "key": "[0-9a-f]{32}", "row": (\d+), ')
_START = b'{"custom_id": '
# What makes a body worth a second look; the separators of lines that only Unicode knows break str.splitlines().
_HAZARDS = (b"NaN", b"Infinity", b"\\ud", b"\\uD", b"\0", b"\r", b"\n")
_BEYOND_ASCII = (b"\xed", b"\xc2\x85", b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xef\xbb\xbf")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_UTF_16 = re.compile(rb"\0[^\0]{1,3}\0")


class Answer(NamedTuple):
    """One whole line of an output: `line` as it was read, `raw` as it stands there, `end` where it ends."""

    line: dict
    raw: bytes
    end: int
    custom_id: str
    key: bytes
    row: int

    def has(self, samples: int) -> bool:
        """Return True if all samples are there, each of them once: one of three is no answer."""
        choices = self.line["response"]["body"]["choices"]
        found = [choice.get("index", number) for number, choice in enumerate(choices)]
        return all(type(index) is int for index in found) and sorted(found) == list(range(samples))

    def renumbered(self, row: int) -> bytes:
        """Return the line with another row's number: rows may have been put in front of it since."""
        head = _HEAD.match(self.raw)
        if head is None:
            raise ValueError("this line is no answer of a batch")  # `read_answer` makes none of it
        start, end = head.span(1)
        return self.raw[:start] + str(row).encode() + self.raw[end:]


def answer_line(custom_id: str, key: bytes, row: int, answer: bytes, extra: dict) -> bytes:
    """Return one line of OpenAI's batch output, with `key`, `row` and the row's own fields added.

    Raises ValueError: the answer, the body of the server's, is no JSON.
    """
    name, digest = json.dumps(custom_id), key.hex()
    fields = b', "metadata": ' + _sound(json.dumps(extra, default=str).encode()) if extra else b""
    return (f'{{"custom_id": {name}, "key": "{digest}", "row": {row}, "id": "batch_req_{digest}", "response": '
            f'{{"status_code": 200, "request_id": "{digest}", "body": ').encode() + _sound(answer) + (
            b'}, "error": null' + fields + b"}")  # fmt: skip


def error_line(
    custom_id: str | None, row: int, place: int, status: int | None, code: str, message: str
) -> bytes:
    """Return one line of the file of errors, in OpenAI's form."""
    found = {"custom_id": custom_id, "row": row, "place": place}
    found["response"] = {"status_code": status} if status else None
    found["error"] = {"code": code, "message": _mended(message)}
    return json.dumps({**found, "time": round(time.time(), 3)}).encode()


def read_answer(raw: bytes, end: int) -> Answer | None:
    """Return the answer that a line is; None: it is not whole, or none of ours."""
    if not raw.endswith(b"}\n") or b"\0" in raw or not _HEAD.match(raw):
        return None
    try:
        line = json.loads(_sound(raw[:-1]) if b"\\ud" in raw or b"\\uD" in raw else raw)
        answer = Answer(line, raw, end, line["custom_id"], bytes.fromhex(line["key"]), line["row"])
        choices = line["response"]["body"]["choices"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    sound = isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices)
    return answer if sound else None


def is_torn(raw: bytes) -> bool:
    """Return True if this could be a truncated answer line. Only such lines are cut off, so foreign files are never damaged."""
    return raw.startswith(_START) or _START.startswith(raw) or _has_zeros(raw)


def is_zeroed(raw: bytes) -> bool:
    """Return True if a line can be one or more answers of which a power cut left a part as zeros."""
    return _has_zeros(raw) and raw.endswith((b"}\n", b"\0\n"))


def _has_zeros(raw: bytes) -> bool:
    """Tell ours from text in UTF-16, which has zeros, too."""
    before, zero, _ = raw.partition(b"\0")
    return (
        bool(zero)
        and (before.startswith(_START) or _START.startswith(before))
        and not _UTF_16.search(raw)
    )


def _sound(data: bytes) -> bytes:
    """Return JSON as it is; written anew, in ASCII, where only some readers take what is in it."""
    hazards = _HAZARDS if data.isascii() else _HAZARDS + _BEYOND_ASCII
    if not any(hazard in data for hazard in hazards) and b"0" * 20 not in data.translate(_DIGITS):
        return data.strip()
    text = data.decode(json.detect_encoding(data), "surrogatepass")
    decoder = json.JSONDecoder(parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)
    return json.dumps(
        json.loads(_mended(json.dumps(decoder.decode(text), ensure_ascii=False)))
    ).encode()


def _mended(text: str) -> str:
    """Join the halves of surrogate pairs, and put U+FFFD where one is alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) < 19 else digits

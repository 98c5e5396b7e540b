"""Writes one answer as a line of the output, in OpenAI's batch format, and reads it back."""

import json
import re
import time
from typing import NamedTuple

_HEAD = re.compile(rb'\{"custom_id": "(?:[^"\\]|\\.)*", "key": "[0-9a-f]{32}", "row": (\d+), ')
_START = b'{"custom_id": '
_HAZARDS = (b"NaN", b"Infinity", b"\r", b"\n")  # what makes a body worth a second look


class KeptAnswer(NamedTuple):
    """One whole line of an output: its JSON (`line`), bytes (`raw`) and end in the file (`end`)."""

    line: dict
    raw: bytes
    end: int
    custom_id: str
    key: bytes
    row: int

    @property
    def choices(self) -> list[dict]:
        """The samples of the answer; of embeddings, one object for each input."""
        return choices_of(self.line["response"]["body"])

    @property
    def usage(self) -> dict:
        """The server's counts of tokens; empty if it has none."""
        usage = self.line["response"]["body"].get("usage")
        return usage if isinstance(usage, dict) else {}

    @property
    def tokens_of_retry(self) -> int | None:
        """The limit of tokens with which the row was asked again; None if it was not."""
        retry = self.line.get("retry")
        tokens = retry.get("max_tokens") if isinstance(retry, dict) else None
        return tokens if type(tokens) is int else None

    def has(self, samples: int) -> bool:
        """Return True if all samples are there, each of them once: one of three is no answer."""
        choices = self.choices
        indexes = [choice.get("index", number) for number, choice in enumerate(choices)]
        if not all(type(index) is int for index in indexes):
            return False
        return sorted(indexes) == list(range(samples))

    def renumbered(self, row: int) -> bytes:
        """Return the line with its row's present number: rows may have been added before it.

        Raises ValueError: the line is no answer of a batch.
        """
        head = _HEAD.match(self.raw)
        if head is None:
            raise ValueError("this line is no answer of a batch")  # `read_answer` makes none of it
        start, end = head.span(1)
        return self.raw[:start] + str(row).encode() + self.raw[end:]


def choices_of(body: dict) -> list[dict]:
    """Return the choices of an answer's body, or its embeddings.

    Raises KeyError: it has neither.
    """
    if "choices" not in body and body.get("object") == "list":
        return body["data"]
    return body["choices"]


def metadata_text(fields: dict) -> str:
    """Return as JSON the fields of a row that are not part of its request; '' if there are none.

    What JSON does not have, such as a date of a table, becomes text.
    """
    if not fields:
        return ""
    return json.dumps(fields, default=str)


def answer_line(
    custom_id: str,
    key: bytes,
    row: int,
    answer: bytes,
    metadata: str = "",
    more_tokens: int | None = None,
) -> bytes:
    """Return one line of OpenAI's batch output, with `key`, `row` and the row's own fields added.

    metadata: the row's own fields, as `metadata_text` gives them.
    more_tokens: the limit with which a row was asked again whose first answer was cut.

    Raises ValueError: the answer, the body of the server's, is no JSON.
    """
    name = json.dumps(custom_id)
    digest = key.hex()
    fields = b""
    if more_tokens is not None:
        fields = b', "retry": {"max_tokens": %d}' % more_tokens
    if metadata:
        fields += b', "metadata": ' + _one_line(metadata.encode())
    return (f'{{"custom_id": {name}, "key": "{digest}", "row": {row}, "id": "batch_req_{digest}", "response": '
            f'{{"status_code": 200, "request_id": "{digest}", "body": ').encode() + _one_line(answer) + (
            b'}, "error": null' + fields + b"}")  # fmt: skip


def error_line(
    custom_id: str | None, row: int, place: int, status: int | None, code: str, message: str
) -> bytes:
    """Return one line of the file of errors, in OpenAI's form."""
    fields = {
        "custom_id": custom_id,
        "row": row,
        "place": place,
        "response": {"status_code": status} if status else None,
        "error": {"code": code, "message": message},
        "time": round(time.time(), 3),
    }
    return json.dumps(fields).encode()


def read_answer(raw: bytes, end: int) -> KeptAnswer | None:
    """Return the answer in a line; None if the line is not whole, or was not written by a batch."""
    if not raw.endswith(b"}\n") or b"\0" in raw or not _HEAD.match(raw):
        return None
    try:
        line = json.loads(raw)
        answer = KeptAnswer(
            line, raw, end, line["custom_id"], bytes.fromhex(line["key"]), line["row"]
        )
        choices = choices_of(line["response"]["body"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        return None
    return answer


def is_rest(raw: bytes) -> bool:
    """Return True if this can be the rest of an answer line, cut by a kill or with zeros in it.

    Zeros are what a power cut leaves. Only such lines are passed over, so foreign files are not
    damaged.
    """
    begins = raw.partition(b"\0")[0]
    return begins.startswith(_START) or _START.startswith(begins)


def _one_line(data: bytes) -> bytes:
    """Return JSON in one line, with null in place of NaN and Infinity, which JSON does not have."""
    if not any(hazard in data for hazard in _HAZARDS):
        return data.strip()
    return json.dumps(json.loads(data, parse_constant=lambda _: None)).encode()

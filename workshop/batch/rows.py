"""What is asked for each row: endpoint, request body, and the key under which its answer is kept."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

from workshop.batch.inputs import PROMPTS
from workshop.errors import BadInput
from workshop.use.strict_json import Malformed, decode, kind_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
KEY_BYTES = 16
# Sampling parameters by vLLM's names, as both endpoints take them; in a row of any fields these are the row's own.
SAMPLING = frozenset([
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "bad_words", "include_stop_str_in_output", "ignore_eos",
    "logprobs", "prompt_logprobs", "n", "skip_special_tokens", "spaces_between_special_tokens",
    "truncate_prompt_tokens", "logit_bias", "allowed_token_ids", "add_special_tokens", "return_tokens_as_token_ids",
    "return_token_ids", "structured_outputs", "response_format", "priority", "echo", "top_logprobs",
    "max_completion_tokens", "chat_template_kwargs",
])  # fmt: skip
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


@dataclass
class Row:
    """One request."""

    number: int  # which row of the input it is, from 0
    place: int  # where it stands: its line, item, or row of a table, from 1
    custom_id: str
    url: str
    body: str  # the request as canonical JSON, without the model
    extra: dict = field(default_factory=dict)  # fields that are not part of the request; they go into the output

    @cached_property
    def key(self) -> bytes:
        """The hash of what is asked and under which id: the answer belongs to this, not to a position."""
        asked = f"{self.custom_id}\0{self.url}\0{self.body}".encode("utf-8", "surrogatepass")
        return blake2b(asked, digest_size=KEY_BYTES).digest()

    @property
    def samples(self) -> int:
        return json.loads(self.body).get("n", 1) if '"n":' in self.body else 1

    def payload(self, model: str) -> bytes:
        return f'{{"model":{json.dumps(model)},{self.body[1:]}'.encode()


def check_sampling(sampling: Mapping[str, object]) -> dict:
    """Return the sampling parameters that were given (None: not given), or say which one does not exist."""
    for name in sampling:
        if name not in SAMPLING:
            near = difflib.get_close_matches(name, SAMPLING, n=1)
            said = f"vLLM has no sampling parameter {name!r}."
            raise BadInput(said, f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(SAMPLING))}.")
    given = {name: value for name, value in sampling.items() if value is not None}
    try:
        _encode(given)
        json.dumps(given, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # NaN, Infinity, half of a surrogate pair
        remedy = "Give finite numbers and whole characters."
        raise BadInput(f"The sampling parameters cannot be sent as JSON ({error}).", remedy) from None
    if (given.get("n") or 1) > 1 and given.get("temperature") == 0:
        said = f"At temperature 0 all {given['n']} samples of a prompt are the same."
        raise BadInput(said, "Give one sample, or a temperature such as 1.0.")
    return given


@dataclass(frozen=True)
class Builder:
    """Turns what the input holds into rows."""

    sampling: Mapping[str, object] = field(default_factory=dict)  # for every row; what a row says itself counts more
    column: str | None = None  # field that holds the prompt; None: prompt or messages
    chat: bool = False  # send plain prompts as a user's message
    model: str = ""  # the server's: rows that name another are refused …
    any_model: bool = False  # … but here
    table: bool = False

    def content(self, record: object) -> tuple[str | None, str, str, dict]:
        """Return (custom_id or None, endpoint, canonical body, extra fields).

        Raises Malformed: no request can be made of it.
        """
        if isinstance(record, str):
            return None, *self._prompt(record, {}), {}
        if not isinstance(record, dict):
            raise Malformed(f"it is {kind_of(record)}, not a string or an object")
        custom_id = _custom_id(record)
        if isinstance(record.get("body"), dict) or ("url" in record and "method" in record):
            extra = {name: record[name] for name in record if name not in ("custom_id", "method", "url", "body")}
            return custom_id, *self._openai(record), extra
        own = {name: value for name, value in record.items() if name in SAMPLING and value not in (None, "")}
        if self.table and any(isinstance(value, str) for value in own.values()):
            own = {name: _number(name, value) for name, value in own.items()}
        name = self._prompt_field(record)
        extra = {each: record[each] for each in record if each not in ("custom_id", name, *own)}
        if name == "messages":
            return custom_id, *self._messages(record[name], own), extra
        return custom_id, *self._prompt(record[name], own), extra

    def _prompt_field(self, record: dict) -> str:
        if self.column is not None:
            if self.column not in record:
                raise Malformed(f"it has no field {self.column!r}; it has {_names(record)}")
            return self.column
        if found := next((name for name in PROMPTS if name in record), None):
            return found
        raise Malformed(f"it has neither prompt nor messages; it has {_names(record)} (--column chooses one)")

    def _prompt(self, prompt: object, own: dict) -> tuple[str, str]:
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt) and not self.chat:
            return COMPLETIONS, self._encode({"prompt": prompt}, own)
        if not isinstance(prompt, str):
            raise Malformed(f"its prompt is {kind_of(prompt)}, not text")
        if not prompt:
            raise Malformed("its prompt is empty")
        if self.chat:
            return self._messages([{"role": "user", "content": prompt}], own)
        return COMPLETIONS, self._encode({"prompt": prompt}, own)

    def _messages(self, messages: object, own: dict) -> tuple[str, str]:
        if isinstance(messages, str) and self.table:
            messages = decode(messages)
        sound = isinstance(messages, list) and messages
        if not sound or not all(isinstance(each, dict) and isinstance(each.get("role"), str) for each in messages):
            raise Malformed("its messages are not a list of objects with role and content")
        return CHAT, self._encode({"messages": messages}, own)

    def _openai(self, record: dict) -> tuple[str, str]:
        if record.get("method", "POST") != "POST":
            raise Malformed(f"its method is {record['method']!r}; POST is the only one")
        url, body = record.get("url"), record.get("body")
        if not isinstance(body, dict):
            raise Malformed(f"its body is {kind_of(body)}, not an object")
        url = url or (CHAT if "messages" in body else COMPLETIONS)
        if url not in (COMPLETIONS, CHAT):
            raise Malformed(f"its url is {url!r}; there are {COMPLETIONS} and {CHAT}")
        if body.get("stream"):
            raise Malformed("it asks for a stream, which a batch cannot keep")
        model = body.get("model")
        if model and self.model and model != self.model and not self.any_model:
            told = f"the server has {self.model!r} (--model {self.model} uses that for all rows)"
            raise Malformed(f"it asks for the model {model!r}, and {told}")
        given = {name: value for name, value in body.items() if name not in ("model", "prompt", "messages", "stream")}
        if url == CHAT:
            return self._messages(body.get("messages"), given)
        prompt = body.get("prompt")
        if prompt is None or prompt == "" or (isinstance(prompt, list) and not all(type(t) is int for t in prompt)):
            raise Malformed("its body has no prompt, or several: give one prompt a row")
        return COMPLETIONS, self._encode({"prompt": prompt}, given)

    def _encode(self, content: dict, own: dict) -> str:
        body = {**self.sampling, **own, **content}
        if type(n := body.get("n", 1)) not in (int, float) or not n >= 1 or n % 1:  # tables with gaps say 2.0
            raise Malformed(f"its n is {n!r}, not a whole number from 1")
        try:
            return _encode(body)
        except (TypeError, ValueError) as error:  # dates and bytes of a Parquet table
            raise Malformed(f"it cannot be sent as JSON ({error})") from None


def derived_id(url: str, body: str, occurrence: int) -> str:
    """Return the id of a row that has none: of its content, so that rows put in front of it change nothing."""
    digest = blake2b(f"{url}\0{body}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{digest}-{occurrence}"


def _custom_id(record: dict) -> str | None:
    value = record.get("custom_id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise Malformed(f"its custom_id is {value!r}, not a text or a whole number")
    return str(value)


def _number(name: str, value: object) -> object:
    """A table of text says 16 or 0.7 in letters."""
    if not isinstance(value, str) or name in ("stop", "bad_words"):
        return value
    try:
        return decode(value.lower() if value.lower() in ("true", "false", "null") else value)
    except Malformed as bad:
        raise Malformed(f"its {name} is {value[:40]!r}, not a number ({bad})") from None


def _names(record: dict) -> str:
    return ", ".join(list(map(repr, record))[:8]) or "nothing"

"""Turns each row into a request: endpoint, body, and the key under which its answer is kept."""

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from workshop.batch.read.inputs import PROMPTS
from workshop.client.sampling_settings import PARAMETERS, check_value
from workshop.client.strict_json import Malformed, decode, json_type
from workshop.errors import BadInput

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
COMPLETION_TOKENS = 16  # max_tokens of a completion that gives none; a chat has the whole context
# Names of forms that vLLM has forgotten, and ignores without a word; each is a field of
# structured_outputs now.
OLD_FORMS = {
    "guided_json": "json",
    "guided_json_object": "json_object",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")
LOGPROBS = ("logprobs", "top_logprobs", "prompt_logprobs")
# The largest honest answer. A token's text, logprob and bytes take some 70 bytes, and less than
# 1,024 even for the longest token (128 spaces).
LEAST_BYTES = 1 << 20  # every answer may have these; an embedding has less
TOKEN_BYTES = 1024
CONTEXT_TOKENS = 1 << 17  # of a server that does not say how many it has
VOCABULARY_TOKENS = 1 << 18
KEY_BYTES = 16
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
# What is sent: the order of keys tells a model what to write first, so it stays as in the input.
_in_order = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(slots=True)
class InputRow:
    """One request."""

    number: int  # which row of the input it is, from 0
    place: int  # where it stands: its line, item, or row of a table, from 1
    custom_id: str
    url: str
    request: str  # its JSON, without the model
    # The hash of the request and its id: an answer belongs to it, not to a position in the input.
    key: bytes = b""
    samples: int = 1  # of embeddings: the number of inputs
    # fields that are not part of the request, as JSON; they go into the output
    metadata: str = ""
    # of a row that is asked again because its answer was cut: more tokens than it gives itself
    more_tokens: int | None = None

    @property
    def given_request(self) -> str:
        """The request's JSON, with the tokens of a retry."""
        if self.more_tokens is None:
            return self.request
        return with_more_tokens(self.request, self.more_tokens)

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer, as the request says; None: as many as the context holds."""
        body = json.loads(self.request)
        for name in TOKEN_LIMITS:
            if body.get(name) is not None:
                return _whole(body[name])
        if self.url == COMPLETIONS:
            return COMPLETION_TOKENS
        return None

    def most_bytes(self, max_model_len: int | None) -> int:
        """Return more bytes than any honest answer to the row has.

        They follow from the tokens of prompt and answer, the samples, and the logprobs of each
        token. `max_model_len` is the server's, or None if it is unknown.
        """
        if self.url == EMBEDDINGS:
            return LEAST_BYTES * (1 + self.samples)
        context = max_model_len or CONTEXT_TOKENS
        tokens = self.more_tokens or self.token_limit or context
        if not 0 < tokens < context:
            tokens = context
        tokens += min(len(self.request.encode()), context)  # a prompt may be in its answer, too
        body = json.loads(self.request)
        logprobs = [len(body.get("logprob_token_ids") or ())]
        for name in LOGPROBS:
            count = _whole(body.get(name)) or 0
            logprobs.append(VOCABULARY_TOKENS if count < 0 else count)
        return LEAST_BYTES + self.samples * tokens * (1 + max(logprobs)) * TOKEN_BYTES

    def payload(self, model: str) -> bytes:
        """Return the bytes to send: the request for this model."""
        return f'{{"model":{json.dumps(model)},{self.given_request[1:]}'.encode()


def _whole(value: object) -> int | None:
    """Return a number as servers read it (16, 16.0, "16"); None if it is none."""
    try:
        return int(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def key_of(custom_id: str, url: str, body: str) -> bytes:
    """Return the key under which an answer is kept; `body` is the canonical request."""
    content = f"{custom_id}\0{url}\0{body}".encode("utf-8", "surrogatepass")
    return blake2b(content, digest_size=KEY_BYTES).digest()


def with_more_tokens(request: str, tokens: int) -> str:
    """Return a request (JSON) with another limit of tokens."""
    body = json.loads(request)
    limits = [name for name in TOKEN_LIMITS if name in body] or ["max_tokens"]
    return _in_order(body | dict.fromkeys(limits, tokens))


def inputs_of(value: object) -> int:
    """Return how many embeddings an `input` asks for: a text, token ids, or a list of either."""
    if isinstance(value, list) and not _is_token_ids(value):
        return len(value)
    return 1


def check_sampling(sampling: Mapping[str, object]) -> dict[str, object]:
    """Return the sampling parameters that have a value (None: none was given).

    The command line and Python make the same request of the same settings, so that each continues
    what the other began.

    Raises BadInput: one of them does not exist, has a value that vLLM refuses, cannot be sent as
    JSON, or contradicts another.
    """
    for name in sampling:
        if name not in PARAMETERS:
            near = difflib.get_close_matches(name, PARAMETERS, n=1)
            remedy = f"There are: {', '.join(sorted(PARAMETERS))}."
            if near:
                remedy = f"Did you mean {near[0]!r}?"
            raise BadInput(f"vLLM has no sampling parameter {name!r}.", remedy)
    parameters = {name: value for name, value in sampling.items() if value is not None}
    try:
        _encode(parameters)
        json.dumps(parameters, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        # NaN, Infinity, half of a surrogate pair
        remedy = "Give finite numbers and whole characters."
        raise BadInput(
            f"The sampling parameters cannot be sent as JSON ({error}).", remedy
        ) from None
    for name, value in parameters.items():
        check_value(name, value)
        # 0 and 0.0 are one setting, and so one request
        if PARAMETERS[name].kind is float and isinstance(value, int):
            parameters[name] = float(value)
    samples = parameters.get("n")
    if isinstance(samples, int | float) and samples > 1 and parameters.get("temperature") == 0:
        problem = f"At temperature 0 all {samples} samples of a prompt are the same."
        raise BadInput(problem, "Give one sample, or a temperature such as 1.0.")
    return parameters


def _refuse_chat_only(names: Iterable[str]) -> None:
    """Raise Malformed if a request with a prompt has a parameter that only a chat has."""
    for name in names:
        if name in PARAMETERS and PARAMETERS[name].chat_only:
            raise Malformed(
                f"{name} is for messages, and it has a prompt (--chat sends it as a message)"
            )


class Content(NamedTuple):
    """The parts of a request that a row of the input gives."""

    custom_id: str | None
    url: str
    body: dict  # the request without the model
    canonical: str  # the same as JSON with sorted keys: for the hash alone
    extra: dict  # fields that are not part of the request

    @property
    def request(self) -> str:
        """The JSON to send: its keys are in the order of the input."""
        return _in_order(self.body)

    @property
    def samples(self) -> int:
        """The number of samples that it asks for; of embeddings, of its inputs."""
        if self.url == EMBEDDINGS:
            return inputs_of(self.body["input"])
        return int(self.body.get("n", 1))


@dataclass(frozen=True)
class Builder:
    """Makes requests from the records of the input."""

    # for every row; what a row says itself counts more
    sampling: Mapping[str, object] = field(default_factory=dict)
    column: str | None = None  # field that holds the prompt; None: prompt or messages
    chat: bool = False  # send plain prompts as a user's message
    model: str = ""  # the server's: rows that name another are refused; '' refuses none
    table: bool = False
    names: frozenset[str] = frozenset()  # other names of the same model

    def content(self, record: object) -> Content:
        """Return what a row asks for. Raises Malformed: no request can be made of it."""
        if isinstance(record, str):
            return self._of_prompt(None, *self._prompt(record), {}, {})
        if not isinstance(record, dict):
            raise Malformed(f"it is {json_type(record)}, not a string or an object")
        if self._is_openai(record):
            return self._openai(_custom_id(record), record)
        return self._plain(_custom_id(record), record)

    def _is_openai(self, record: dict) -> bool:
        """Return True if a record is a request in OpenAI's batch format."""
        body = record.get("body")
        holds_json = self.table and self.column is None and isinstance(body, str)
        return isinstance(body, dict) or holds_json or ("url" in record and "method" in record)

    def _plain(self, custom_id: str | None, record: dict) -> Content:
        """Return the request of a row with a prompt; its other fields may have any names."""
        parameters = {}
        for name, value in record.items():
            if name in PARAMETERS and value not in (None, ""):
                parameters[name] = self._cell(name, value)
        prompt_field = self._prompt_field(record)
        known_fields = ("custom_id", prompt_field, *parameters)
        extra = {name: record[name] for name in record if name not in known_fields}
        if prompt_field == "messages":
            url = CHAT
            content = {"messages": _checked_messages(self._json(record["messages"]))}
        else:
            url, content = self._prompt(record[prompt_field])
        return self._of_prompt(custom_id, url, content, parameters, extra)

    def _of_prompt(
        self, custom_id: str | None, url: str, content: dict, parameters: dict, extra: dict
    ) -> Content:
        """Return a request with the run's parameters, the row's own, and its prompt or messages."""
        if url == COMPLETIONS:
            _refuse_chat_only((*self.sampling, *parameters))
        return _content(custom_id, url, {**self.sampling, **parameters, **content}, extra)

    def _prompt_field(self, record: dict) -> str:
        """Return the name of the field that holds the prompt. Raises Malformed: there is none."""
        if self.column is not None:
            if self.column not in record:
                raise Malformed(f"it has no field {self.column!r}; it has {_names(record)}")
            return self.column
        for name in PROMPTS:
            if name in record:
                return name
        raise Malformed(
            f"it has neither prompt nor messages; it has {_names(record)} (--column chooses one)"
        )

    def _prompt(self, prompt: object) -> tuple[str, dict]:
        """Return the endpoint and the content of a prompt: text, or token ids.

        Raises Malformed: it is neither.
        """
        if _is_token_ids(prompt) and not self.chat:
            return COMPLETIONS, {"prompt": prompt}
        if not isinstance(prompt, str):
            raise Malformed(f"its prompt is {json_type(prompt)}, not text")
        if not prompt:
            raise Malformed("its prompt is empty")
        if self.chat:
            return CHAT, {"messages": [{"role": "user", "content": prompt}]}
        return COMPLETIONS, {"prompt": prompt}

    def _json(self, value: object) -> object:
        """Return a value as it is sent: in a table it is JSON text, or a struct of Arrow's."""
        if not self.table:
            return value
        if isinstance(value, str):
            return decode(value)
        return _without_nulls(value)

    def _cell(self, name: str, value: object) -> object:
        """Return the value of a parameter; in a table, text such as 16, 0.7 or True means it."""
        if not self.table or name in ("stop", "bad_words"):
            return value
        if not isinstance(value, str):
            return _without_nulls(value)
        text = value.strip()
        if text.lower() in ("true", "false", "null"):
            text = text.lower()
        try:
            return decode(text)
        except Malformed as bad:
            raise Malformed(f"its {name} is {value[:40]!r}, not a number ({bad})") from None

    def _openai(self, custom_id: str | None, record: dict) -> Content:
        """Return the request of a row in OpenAI's batch format."""
        openai_fields = ("custom_id", "method", "url", "body")
        extra = {name: record[name] for name in record if name not in openai_fields}
        method = record.get("method") or "POST"
        if not isinstance(method, str) or method.upper() != "POST":
            raise Malformed(f"its method is {method!r}; POST is the only one")
        body = self._json(record.get("body"))
        if not isinstance(body, dict):
            raise Malformed(f"its body is {json_type(body)}, not an object")
        url = _endpoint(record.get("url"), body)
        if body.get("stream"):
            raise Malformed("it asks for a stream, which a batch cannot keep")
        self._check_model(body.get("model"))
        fields = {name: value for name, value in body.items() if name not in ("model", "stream")}
        if url == EMBEDDINGS:
            _check_embeddings(fields)
            return _content(custom_id, url, fields, extra)
        if url == CHAT:
            messages = body.get("messages")
            if isinstance(messages, str):
                messages = self._json(messages)
            fields["messages"] = _checked_messages(messages)
        else:
            _check_prompt(body.get("prompt"))
            _refuse_chat_only(self.sampling)  # what a body says itself goes out as it is
        lacking = {name: self.sampling[name] for name in self.sampling if name not in body}
        return _content(custom_id, url, lacking | fields, extra)

    def _check_model(self, model: object) -> None:
        """Raise Malformed if a row names another model than the server's."""
        if model and self.model and model not in (self.model, *self.names):
            served = f"the server has {self.model!r} (--model {self.model} uses that for all rows)"
            raise Malformed(f"it asks for the model {model!r}, and {served}")


def _content(custom_id: str | None, url: str, body: dict, extra: dict) -> Content:
    """Return the parts of a request.

    Raises Malformed: it has no sound `n`, names a form as vLLM once did, or cannot be JSON.
    """
    for name, form in OLD_FORMS.items():
        if body.get(name) is not None or extra.get(name) is not None:
            instead = f'"structured_outputs": {{"{form}": …}}'
            raise Malformed(f"{name} is an old name, which vLLM ignores: give {instead}")
    n = body.get("n", 1)
    if type(n) not in (int, float) or not n >= 1 or n % 1:  # tables with gaps say 2.0
        raise Malformed(f"its n is {n!r}, not a whole number from 1")
    try:
        canonical = _encode(body)
    except (TypeError, ValueError, RecursionError) as error:  # dates and bytes of a Parquet table
        raise Malformed(f"it cannot be sent as JSON ({error})") from None
    return Content(custom_id, url, body, canonical, extra)


def _checked_messages(messages: object) -> list:
    """Return the messages of a chat. Raises Malformed: they are none."""
    if isinstance(messages, list) and messages and all(map(_has_role, messages)):
        return messages
    raise Malformed("its messages are not a list of objects with role and content")


def _check_prompt(prompt: object) -> None:
    """Raise Malformed unless this is one prompt."""
    is_several = isinstance(prompt, list) and not all(type(token) is int for token in prompt)
    if prompt is None or prompt == "" or is_several:
        raise Malformed("its body has no prompt, or several: give one prompt a row")


def _check_embeddings(body: dict) -> None:
    """Raise Malformed unless embeddings can be made of the `input` of this body."""
    value = body.get("input")
    texts = value if isinstance(value, list) and not _is_token_ids(value) else [value]
    for text in texts:
        if not _is_token_ids(text) and not (isinstance(text, str) and text):
            raise Malformed(
                f"its input is not a text, the ids of tokens, or a list of either ({EMBEDDINGS})"
            )
    if not texts:
        raise Malformed(f"its input is empty ({EMBEDDINGS})")
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise Malformed(f'its encoding_format is {body["encoding_format"]!r}; give "float"')


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _has_role(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _endpoint(url: object, body: dict) -> str:
    """Return the endpoint that a row's `url` means, with /v1 (OpenAI) or without it (Azure)."""
    if url in (None, ""):
        if "messages" in body:
            return CHAT
        if "input" in body and "prompt" not in body:
            return EMBEDDINGS
        return COMPLETIONS
    if isinstance(url, str) and "://" in url:
        raise Malformed(
            f"its url is {url[:100]!r}; give the path alone, such as {CHAT}: --url says which server"
        )
    path = str(url).split("?")[0].strip("/")
    for endpoint in (CHAT, COMPLETIONS, EMBEDDINGS):
        ending = endpoint.removeprefix("/v1/")
        if isinstance(url, str) and (path == ending or path.endswith(f"/{ending}")):
            return endpoint
    raise Malformed(f"its url is {url!r}; there are {COMPLETIONS}, {CHAT} and {EMBEDDINGS}")


def _without_nulls(value: object) -> object:
    """Return a value without null fields, which Arrow adds to structs and servers refuse."""
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def derived_id(url: str, body: str, occurrence: int) -> str:
    """Return an id for a row without one, made of its content: new rows in front change nothing."""
    digest = blake2b(f"{url}\0{body}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{digest}-{occurrence}"


def _custom_id(record: dict) -> str | None:
    """Return the id that a record gives, as text; None: it gives none.

    Raises Malformed: it is no id.
    """
    value = record.get("custom_id")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise Malformed(f"its custom_id is {value!r}, not a text or a whole number")
    return str(value)


def _names(record: dict) -> str:
    """Return the names of a record's first fields, for a message."""
    return ", ".join(list(map(repr, record))[:8]) or "nothing"

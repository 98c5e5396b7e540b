"""Turns each row into a request: endpoint, body, and the key under which its answer is kept."""

import difflib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import NamedTuple

from workshop.batch.read.inputs import PROMPTS
from workshop.client.sampling_settings import PARAMETERS, check_value
from workshop.client.strict_json import Malformed, decode, kind_of, members
from workshop.errors import BadInput

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
COMPLETION_TOKENS = 16  # max_tokens of a completion that gives none; a chat has the whole context
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
# What is sent: the order of keys tells a model what to write first, so it stays as it was given.
_in_order = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(slots=True)
class Row:
    """One request."""

    number: int  # which row of the input it is, from 0
    place: int  # where it stands: its line, item, or row of a table, from 1
    custom_id: str
    url: str
    request: str  # its JSON, as the input has it
    # The hash of the request and its id: an answer belongs to it, not to a position in the input.
    key: bytes = b""
    samples: int = 1  # of embeddings: the number of inputs
    # fields that are not part of the request, as JSON; they go into the output
    metadata: str = ""
    form: str | None = None  # what `forms.form_text` says of it
    # of a row that is asked again because its answer was cut: more tokens than it gives itself
    more_tokens: int | None = None

    @property
    def given_request(self) -> str:
        """The request's JSON as the input has it.

        The order of its keys and the notation of its numbers stay.
        """
        if self.more_tokens is None:
            return self.request
        return with_more_tokens(self.request, self.more_tokens)

    @property
    def token_limit(self) -> int | None:
        """The most tokens of an answer, as the request says.

        None: as many as the context has room for.
        """
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

    def payload(self, model: str, names: Collection[str] = ()) -> bytes:
        """Return the bytes to send.

        If the row names the model, or another of its `names`, they are those of the input.
        Otherwise the model is added in front, or replaces the one that the row names.
        """
        text = self.given_request
        may_name_one = '"model"' in text or "\\u" in text
        place = members(text).get("model") if may_name_one else None
        if place is None:
            return f'{{"model":{json.dumps(model)},{text[1:]}'.encode()
        begin, end = place
        if json.loads(text[begin:end]) not in (model, *names):
            text = text[:begin] + json.dumps(model) + text[end:]
        return text.encode()


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


def samples_of(url: str, body: str) -> int:
    """Return how many samples a canonical request asks for; of embeddings, its inputs."""
    if url == EMBEDDINGS:
        return inputs_of(json.loads(body).get("input"))
    if '"n":' not in body:
        return 1
    return json.loads(body).get("n", 1)


def with_more_tokens(request: str, tokens: int) -> str:
    """Return a request (JSON) with another limit of tokens; all else stays as it was written."""
    limits = [place for name, place in members(request).items() if name in TOKEN_LIMITS]
    if not limits:
        return f'{{"max_tokens":{tokens},{request[1:]}'
    for begin, end in sorted(limits, reverse=True):
        request = request[:begin] + str(tokens) + request[end:]
    return request


def inputs_of(value: object) -> int:
    """Return how many embeddings an `input` asks for.

    An input is a text, the ids of tokens, or a list of either.
    """
    if isinstance(value, list) and not _is_token_ids(value):
        return len(value)
    return 1


def check_sampling(sampling: Mapping[str, object]) -> dict[str, object]:
    """Return the sampling parameters that have a value (None: none was given).

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
    body: str  # the request as canonical JSON, without the model: for the hash alone
    extra: dict
    request: str  # as given: this is sent


@dataclass(frozen=True)
class Builder:
    """Makes requests from the records of the input."""

    # for every row; what a row says itself counts more
    sampling: Mapping[str, object] = field(default_factory=dict)
    column: str | None = None  # field that holds the prompt; None: prompt or messages
    chat: bool = False  # send plain prompts as a user's message
    model: str = ""  # the server's: rows that name another are refused …
    any_model: bool = False  # … but here
    table: bool = False
    names: frozenset[str] = frozenset()  # other names of the same model

    def content(self, record: object, text: str | None = None) -> Content:
        """Return what a row asks for.

        `text` is the row's JSON as the input has it; None if the row comes from a table or a line
        of text.

        Raises Malformed: no request can be made of it.
        """
        if isinstance(record, str):
            return Content(None, *self._prompt(record, text or _in_order(record), {}, {}))
        if not isinstance(record, dict):
            raise Malformed(f"it is {kind_of(record)}, not a string or an object")
        custom_id = _custom_id(record)
        texts = {}
        if text is not None:
            texts = {name: text[begin:end] for name, (begin, end) in members(text).items()}
        if self._is_openai(record):
            return Content(custom_id, *self._openai(record, texts))
        return Content(custom_id, *self._plain(record, texts))

    def _is_openai(self, record: dict) -> bool:
        """Return True if a record is a request in OpenAI's batch format."""
        body = record.get("body")
        holds_json = self.table and self.column is None and isinstance(body, str)
        return isinstance(body, dict) or holds_json or ("url" in record and "method" in record)

    def _plain(self, record: dict, texts: dict[str, str]) -> tuple[str, str, dict, str]:
        """Return (endpoint, canonical body, extra fields, request) of a row with a prompt.

        Its other fields may have any names.
        """
        parameters = {}
        parameter_texts = {}
        for name, value in record.items():
            if name in PARAMETERS and value not in (None, ""):
                parameters[name] = value
                if name in texts:
                    parameter_texts[name] = texts[name]
        if self.table and any(isinstance(value, str) for value in parameters.values()):
            for name, value in parameters.items():
                parameters[name], parameter_texts[name] = _number(name, value)
        prompt_field = self._prompt_field(record)
        known_fields = ("custom_id", prompt_field, *parameters)
        extra = {name: record[name] for name in record if name not in known_fields}
        make = self._messages if prompt_field == "messages" else self._prompt
        url, body, _, request = make(
            record[prompt_field], texts.get(prompt_field), parameters, parameter_texts
        )
        return url, body, extra, request

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

    def _prompt(
        self, prompt: object, text: str | None, parameters: dict, parameter_texts: dict[str, str]
    ) -> tuple[str, str, dict, str]:
        """Return the request for a prompt: text, or token ids. Raises Malformed: it is neither."""
        if _is_token_ids(prompt) and not self.chat:
            return self._made(
                COMPLETIONS, {"prompt": prompt}, {"prompt": text}, parameters, parameter_texts
            )
        if not isinstance(prompt, str):
            raise Malformed(f"its prompt is {kind_of(prompt)}, not text")
        if not prompt:
            raise Malformed("its prompt is empty")
        if self.chat:
            message = f'[{{"role":"user","content":{text or _in_order(prompt)}}}]'
            return self._messages(
                [{"role": "user", "content": prompt}], message, parameters, parameter_texts
            )
        return self._made(
            COMPLETIONS, {"prompt": prompt}, {"prompt": text}, parameters, parameter_texts
        )

    def _messages(
        self, messages: object, text: str | None, parameters: dict, parameter_texts: dict[str, str]
    ) -> tuple[str, str, dict, str]:
        """Return the request for a conversation.

        Raises Malformed: its messages are not those of a chat.
        """
        if isinstance(messages, str) and self.table:
            text = messages.strip()
            messages = decode(messages)
        _check_messages(messages)
        return self._made(
            CHAT, {"messages": messages}, {"messages": text}, parameters, parameter_texts
        )

    def _made(
        self,
        url: str,
        content: dict,
        content_texts: dict[str, str | None],
        parameters: dict,
        parameter_texts: dict[str, str],
    ) -> tuple[str, str, dict, str]:
        """Join the parts of a request.

        Return the canonical request, and the one to send, whose parts are unchanged.
        """
        if url == COMPLETIONS:
            _refuse_chat_only((*self.sampling, *parameters))
        body = self._canonical(content, parameters)
        values = {**self.sampling, **parameters, **content}
        row_texts = {**dict.fromkeys(parameters), **parameter_texts, **content_texts}
        texts = {**self._sampling_texts, **row_texts}
        parts = []
        for name, value in values.items():
            parts.append(f'"{name}":{texts[name] or _sendable(value)}')
        return url, body, {}, "{" + ",".join(parts) + "}"

    @cached_property
    def _sampling_texts(self) -> dict[str, str]:
        """The JSON of each sampling parameter of the run."""
        return {name: _in_order(value) for name, value in self.sampling.items()}

    def _openai(self, record: dict, texts: dict[str, str]) -> tuple[str, str, dict, str]:
        """Return (endpoint, canonical body, extra fields, request) of a row in OpenAI's format."""
        openai_fields = ("custom_id", "method", "url", "body")
        extra = {name: record[name] for name in record if name not in openai_fields}
        method = record.get("method") or "POST"
        body = record.get("body")
        if not isinstance(method, str) or method.upper() != "POST":
            raise Malformed(f"its method is {method!r}; POST is the only one")
        text = texts.get("body")
        if isinstance(body, str) and self.table:  # a cell of a table, which holds JSON
            text = body.strip()
            body = decode(body)
        if not isinstance(body, dict):
            raise Malformed(f"its body is {kind_of(body)}, not an object")
        if isinstance(body.get("messages"), str) and self.table:
            body = {**body, "messages": decode(body["messages"])}
        url = _endpoint(record.get("url"), body)
        if url == EMBEDDINGS:
            return self._embeddings(body, extra, text)
        if body.get("stream"):
            raise Malformed("it asks for a stream, which a batch cannot keep")
        self._check_model(body.get("model"))
        if url == COMPLETIONS:
            _refuse_chat_only(self.sampling)  # what a body says itself goes out as it is
        canonical = self._canonical_of_openai(url, body)
        return url, canonical, extra, self._completed(text or _sendable(body), body)

    def _embeddings(self, body: dict, extra: dict, text: str | None) -> tuple[str, str, dict, str]:
        """Return the request of a row of embeddings. Raises Malformed: it has no sound input."""
        _check_inputs(body.get("input"))
        if body.get("encoding_format") not in (None, "float", "base64"):
            raise Malformed(f'its encoding_format is {body["encoding_format"]!r}; give "float"')
        self._check_model(body.get("model"))
        fields = {name: value for name, value in body.items() if name != "model"}
        try:
            canonical = _encode(fields)
        except (TypeError, ValueError) as error:
            raise Malformed(f"it cannot be sent as JSON ({error})") from None
        return EMBEDDINGS, canonical, extra, text or _sendable(body)

    def _check_model(self, model: object) -> None:
        """Raise Malformed if a row names another model than the server's."""
        if model and self.model and model not in (self.model, *self.names) and not self.any_model:
            served = f"the server has {self.model!r} (--model {self.model} uses that for all rows)"
            raise Malformed(f"it asks for the model {model!r}, and {served}")

    def _canonical_of_openai(self, url: str, body: dict) -> str:
        """Return the canonical JSON of a body in OpenAI's batch format.

        Raises Malformed: it has no single prompt.
        """
        content_fields = ("model", "prompt", "messages", "stream")
        parameters = {name: value for name, value in body.items() if name not in content_fields}
        if url == CHAT:
            messages = body.get("messages")
            _check_messages(messages)
            return self._canonical({"messages": messages}, parameters)
        prompt = body.get("prompt")
        is_several = isinstance(prompt, list) and not all(type(token) is int for token in prompt)
        if prompt is None or prompt == "" or is_several:
            raise Malformed("its body has no prompt, or several: give one prompt a row")
        return self._canonical({"prompt": prompt}, parameters)

    def _completed(self, text: str, body: dict) -> str:
        """Return a body, with the run's sampling parameters that it lacks added in front."""
        added = ""
        for name, value_text in self._sampling_texts.items():
            if name not in body:
                added += f'"{name}":{value_text},'
        return "{" + added + text[1:]

    def _canonical(self, content: dict, parameters: dict) -> str:
        """Return a request as canonical JSON.

        Raises Malformed: it has no sound `n`, or cannot be JSON.
        """
        body = {**self.sampling, **parameters, **content}
        # tables with gaps say 2.0
        n = body.get("n", 1)
        if type(n) not in (int, float) or not n >= 1 or n % 1:
            raise Malformed(f"its n is {n!r}, not a whole number from 1")
        try:
            return _encode(body)
        except (TypeError, ValueError) as error:  # dates and bytes of a Parquet table
            raise Malformed(f"it cannot be sent as JSON ({error})") from None


def _check_messages(messages: object) -> None:
    """Raise Malformed unless these are the messages of a chat."""
    if isinstance(messages, list) and messages and all(map(_has_role, messages)):
        return
    raise Malformed("its messages are not a list of objects with role and content")


def _check_inputs(value: object) -> None:
    """Raise Malformed unless this is what embeddings can be made of."""
    values: list = [value]
    if isinstance(value, list) and not _is_token_ids(value):
        values = value
    for text in values:
        if not _is_token_ids(text) and not (isinstance(text, str) and text):
            raise Malformed(
                f"its input is not a text, the ids of tokens, or a list of either ({EMBEDDINGS})"
            )
    if not values:
        raise Malformed(f"its input is empty ({EMBEDDINGS})")


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _has_role(message: object) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _endpoint(url: object, body: dict) -> str:
    """Return the endpoint that a row's `url` means.

    It may begin with /v1 or not, as OpenAI and Azure write it.
    """
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


def _sendable(value: object) -> str:
    """Return the JSON of a value that was not given as JSON.

    The empty fields that a table's types add are left out.
    """
    return _in_order(_without_nulls(value))


def _without_nulls(value: object) -> object:
    """Return a value without fields that are null.

    Arrow adds every field of a struct to every row, and servers refuse nulls.
    """
    if isinstance(value, dict):
        return {name: _without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    return value


def derived_id(url: str, body: str, occurrence: int) -> str:
    """Return an id for a row that has none.

    It is made of the content, so that new rows in front change nothing.
    """
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


def _number(name: str, value: object) -> tuple[object, str]:
    """Return what a cell of text such as 16, 0.7 or True means, and its JSON."""
    if not isinstance(value, str) or name in ("stop", "bad_words"):
        return value, _sendable(value)
    text = value.strip()
    if text.lower() in ("true", "false", "null"):
        text = text.lower()
    try:
        return decode(text), text
    except Malformed as bad:
        raise Malformed(f"its {name} is {value[:40]!r}, not a number ({bad})") from None


def _names(record: dict) -> str:
    """Return the names of a record's first fields, for a message."""
    return ", ".join(list(map(repr, record))[:8]) or "nothing"

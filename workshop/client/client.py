"""A thin client over the official `openai` package that finds the server by its record, not by an address.

from workshop import connect
llm = connect()
llm.complete("San Francisco is a", max_tokens=20, temperature=0, top_k=5).choices[0].text
"""

import contextlib
import difflib
import functools
import getpass
import inspect
import json
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import httpx
import openai

from workshop.client import reach, received
from workshop.client.reach import START, find
from workshop.client.strict_json import Malformed
from workshop.engine import http
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

CONNECT_TIMEOUT_S = 5.0
# by name: openai brings its own edition of httpx
CLOSED = "RemoteProtocolError", "ReadError", "WriteError"
REQUESTS_KEPT = 1024  # ids of the last requests: an answer to another of them is known by its id
STALE_S = 1.0  # a connection that the server closed long ago fails at once
# what odd JSON does to `openai`
BROKEN = ValueError, TypeError, AttributeError, KeyError, RecursionError
Parsed = TypeVar("Parsed")


class Client:
    """One server, ready for requests.

    Attributes:
        openai: the official client, for everything that this one does not wrap.
        model: the name that requests give.
        url: ends in /v1; `root` does not.
        headers: what every request must carry: the key.
        http: an `httpx` client that carries the key, and takes no proxy and no redirect that is not meant.
    """

    def __init__(self, record: ServerRecord, *, timeout_s: float = 600.0):
        self.record, self.url, self.model = record, record.url.rstrip("/"), record.model
        self.root, key = self.url.removesuffix("/v1"), {"Authorization": f"Bearer {record.api_key}"}
        self.headers = {**(key if record.api_key else {}), **_who()}
        self.proxy = reach.proxy_to(self.url) if record.where == "given" else None
        self.safe = reach.options(self.proxy)
        self.http = httpx.Client(headers=self.headers, timeout=CONNECT_TIMEOUT_S, **self.safe)
        self._timeout_s = timeout_s
        self._request_ids: deque[str] = deque(maxlen=REQUESTS_KEPT)
        self.openai = self._official()

    def _official(self, **http_options) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=self.url,
            api_key=self.record.api_key or "none",
            max_retries=0,
            default_headers=_who(),
            timeout=openai.Timeout(self._timeout_s, connect=CONNECT_TIMEOUT_S),
            http_client=openai.DefaultHttpxClient(**self.safe, **http_options),
        )

    def __repr__(self) -> str:
        return f"Client(model={self.model!r}, url={self.url!r})"

    def complete(self, prompt: str | list, **sampling):
        """Return the completion of a prompt (an `openai` Completion, with vLLM's extra fields kept).

        Args:
            prompt: a string, a list of strings, or token ids.
            **sampling: vLLM's sampling parameters by their own names (max_tokens, min_tokens, temperature,
                top_k, top_p, min_p, frequency_penalty, logprobs, prompt_logprobs, seed, n, stream, …).
                logprobs=-1 asks for the whole vocabulary, which the server must allow.

        Raises:
            BadInput: the name of a parameter, or its value, is not one that the server takes.
            WorkshopError: the server does not answer.
        """
        create = self._create_completion
        try:
            return self._request(create, "CompletionRequest", sampling, prompt=prompt)
        except BadInput as error:
            if (
                sampling.get("logprobs") != -1
                or "`logprobs` must be a positive value" not in error.message
            ):
                raise
        # vLLM 0.25 knows -1 only as the server's flag, and dies when asked for more than the vocabulary has.
        return self._request(
            create, "CompletionRequest", {**sampling, "logprobs": self._vocabulary()}, prompt=prompt
        )

    def _vocabulary(self) -> int:
        """Return how many tokens the model has, as its folder says where this machine can read it."""
        for served in self.models():
            path = Path(served["root"] or "") / "config.json"
            with contextlib.suppress(OSError, *BROKEN):
                if served["id"] == self.model:
                    config = json.loads(path.read_text(encoding="utf-8"))
                    return int((config.get("text_config") or config)["vocab_size"])
        said = "This server's vLLM does not know logprobs=-1 for the whole vocabulary."
        raise BadInput(
            said, "Say how many tokens the model has, or how many you want to see, such as 20."
        )

    def chat(self, messages: str | list[dict], **sampling):
        """Return the answer to a conversation (an `openai` ChatCompletion); a string is one user message."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._request(
            self._create_chat, "ChatCompletionRequest", sampling, messages=messages
        )

    def _create_completion(self) -> Callable:
        return self.openai.completions.with_raw_response.create

    def _create_chat(self) -> Callable:
        return self.openai.chat.completions.with_raw_response.create

    def _request(self, create: Callable[[], Callable], schema: str, sampling: dict, **content):
        known = _parameters(create())
        direct = {name: value for name, value in sampling.items() if name in known}
        extra = [name for name in sampling if name not in known]
        self._refuse_unknown(extra, known, schema)
        body = {
            **{name: sampling[name] for name in extra},
            **dict(direct.pop("extra_body", None) or {}),
        }
        options = {"model": self.model, **content, **direct, "extra_body": body or None}
        asked = {**direct, **body}
        sequences = received.sequences(content.get("prompt"), asked.get("n"))
        try:
            for _ in range(2):
                request_id, answer = self._answer_to(create, options)
                if asked.get("stream"):
                    return Stream(answer.parse(), self, request_id)
                if error := reach.redirected(
                    self.url, answer.status_code, answer.headers.get("location")
                ):
                    raise error
                found = received.answer(answer.content, sequences)
                if not self.is_of_another_request(found.id, request_id):
                    return answer.parse()
                self._use_each_connection_once()
        except openai.OpenAIError as error:
            raise self.explain(error) from None
        except Malformed as bad:
            raise self.odd(str(bad)) from None
        except BROKEN as error:
            raise self.odd(f"what cannot be read ({type(error).__name__})") from None
        raise self.odd("the answer to another request")

    def _answer_to(self, create: Callable[[], Callable], options: dict):
        """Send one request under an id of its own, which vLLM puts into the answer's id; return (id, answer)."""
        request_id = uuid.uuid4().hex
        self._request_ids.append(request_id)
        headers = {"X-Request-Id": request_id, **dict(options.get("extra_headers") or {})}
        return request_id, self._sent(
            functools.partial(create(), **{**options, "extra_headers": headers})
        )

    def is_of_another_request(self, answer_id: str | None, request_id: str) -> bool:
        """Whether an answer's id names another request of this client: a server, or a proxy, sent that one twice."""
        if not answer_id or request_id in answer_id:
            return False
        return any(other in answer_id for other in self._request_ids)

    def _use_each_connection_once(self) -> None:
        """Close the connections, in which answers of other requests wait, and keep none open from now on."""
        self.openai.close()
        self.openai = self._official(limits=httpx.Limits(max_keepalive_connections=0))

    @staticmethod
    def _sent(send):
        began = time.monotonic()
        try:
            return send()
        except openai.APIConnectionError as error:
            # A server may close a connection after an answer without a word, and the next request finds out
            # (vLLM 0.25 does it after each chat with a model that has no template).
            if type(error.__cause__).__name__ not in CLOSED or time.monotonic() - began > STALE_S:
                raise
            return send()

    def _refuse_unknown(self, names: Iterable[str], known: frozenset[str], schema: str) -> None:
        """vLLM ignores a field that it does not know: `temprature=0` must not pass in silence."""
        for name in names:
            accepted = self._schema(schema)
            if accepted and name not in accepted:
                near = difflib.get_close_matches(name, [*accepted, *known], n=1)
                remedy = (
                    f"Did you mean {near[0]!r}?"
                    if near
                    else "The names are those of vLLM's SamplingParams."
                )
                raise BadInput(f"This server knows no sampling parameter {name!r}.", remedy)

    @functools.lru_cache(maxsize=4)  # noqa: B019 (one client a notebook)
    def _schema(self, name: str) -> frozenset[str]:
        """Return the request fields that the server itself publishes ('' if it publishes none)."""
        try:
            schemas = self.get("/openapi.json")["components"]["schemas"]
            return frozenset(dict(schemas[name]["properties"]))
        except (*BROKEN, WorkshopError):
            return frozenset()

    def models(self) -> list[dict]:
        """Return what it serves: each has an id, and root and max_model_len where they are told."""
        return self._read("/v1/models", received.models)

    def get(self, path: str) -> dict:
        """GET a path of the server, beside /v1 (`/version`, `/openapi.json`), as parsed JSON."""
        return self._read(path, received.body)

    def _read(self, path: str, read: Callable[[bytes], Parsed]) -> Parsed:
        """GET a path of the server; return its answer as `read` parses it."""
        try:
            answer, said = http.get(
                self.root + path, CONNECT_TIMEOUT_S, headers=self.headers, **self.safe
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._gone(str(error) or type(error).__name__, error) from None
        if answer.status_code in (401, 403):
            raise self._key_refused()
        if error := reach.redirected(
            self.root + path, answer.status_code, answer.headers.get("location")
        ):
            raise error
        if answer.status_code != 200:
            raise WorkshopError(f"{self.root}{path} answers {answer.status_code}.", START)
        try:
            return read(said)
        except Malformed as bad:
            raise self.odd(str(bad), self.root + path) from None

    def explain(self, error: openai.OpenAIError) -> WorkshopError:
        """Turn an error of the `openai` package into one sentence and a remedy."""
        if isinstance(error, openai.APITimeoutError):
            said = f"{self.url} did not finish in time."
            return WorkshopError(
                said, "Ask for fewer tokens, or look at the server: `workshop servers`."
            )
        if isinstance(error, openai.APIConnectionError):
            return self._gone(_why(error), error)
        if isinstance(error, openai.AuthenticationError):
            return self._key_refused()
        if isinstance(error, openai.APIStatusError):
            location = error.response.headers.get("location")
            if away := reach.redirected(self.url, error.status_code, location):
                return away
            body = error.body if isinstance(error.body, dict) else {}
            said = received.sentence(str(body.get("message") or error.message))
            if error.status_code < 500:
                return BadInput(
                    f"The server refused the request ({error.status_code}): {said}.",
                    received.remedy(said),
                )
            return self._gone(said)
        return WorkshopError(str(error))

    def odd(self, what: str, address: str = "") -> WorkshopError:
        remedy = (
            "Is this the address of a vLLM server? It ends in /v1, and nothing stands in between."
        )
        return WorkshopError(f"{address or self.url} answers with {what}.", remedy)

    def _started_again(self) -> WorkshopError | None:
        """Say so if the record has another address or key by now: this client is of an earlier start."""
        with contextlib.suppress(WorkshopError):
            now = reach.choose(self.record.name)
            if (now.url, now.api_key) != (self.record.url, self.record.api_key):
                said = f"The server {now.name!r} was started again."
                return WorkshopError(said, "Run the cell with connect() again, then this one.")
        return None

    def _key_refused(self) -> WorkshopError:
        if again := self._started_again():
            return again
        said = (
            "does not accept this key" if self.record.api_key else "wants a key, and none was sent"
        )
        remedy = "Set WORKSHOP_API_KEY to the server's key, or unset WORKSHOP_URL to use its record: connect()."
        return WorkshopError(f"{self.url} {said}.", remedy)

    def _gone(self, said: str = "", error: Exception | None = None) -> WorkshopError:
        """Say why the server is away, as far as its record knows."""
        if again := self._started_again():
            return again
        current = records.read(self.record.name) if self.record.where == "local" else None
        if current is not None and current.state == "failed":
            said = f"The server {current.name!r} has failed: {current.reason}."
            return WorkshopError(said, f"Its own words are in {current.log}. {START}")
        detail = f" ({said})" if said else ""
        remedy = reach.remedy_for(error, self.url) if error else ""
        usual = reach.CHECK_ADDRESS if self.record.where == "given" else START
        return WorkshopError(f"The server at {self.url} does not answer{detail}.", remedy or usual)


class Stream:
    """An `openai` Stream, of which this has everything; one that ends before its text does is an error, too."""

    def __init__(self, stream: openai.Stream, client: Client, request_id: str = ""):
        self._stream, self._client, self._request_id = stream, client, request_id

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator:
        begun, ended = set(), set()
        try:
            for piece in self._stream:
                if self._client.is_of_another_request(piece.id, self._request_id):
                    break
                for choice in piece.choices:
                    (ended if choice.finish_reason else begun).add(choice.index)
                yield piece
        except openai.OpenAIError as error:
            raise self._client.explain(error) from None
        except (
            Exception
        ) as error:  # odd JSON, or a connection that broke: of whichever httpx openai brings
            raise self._client.odd(f"a stream that breaks off ({type(error).__name__})") from None
        if not ended or begun - ended:
            raise self._client.odd("a stream that breaks off")


def _why(error: openai.APIConnectionError) -> str:
    """Return what TLS says about a connection that could not be made; '' for other reasons."""
    return str(error.__cause__ or "") if reach.is_tls(error) else ""


def _who() -> dict[str, str]:
    """Say who asks: a server for a class gives each learner a share (see launch.fairshare)."""
    try:
        return {"X-Workshop-Learner": quote(getpass.getuser(), safe="@")}
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return {}


@functools.cache
def _parameters(create) -> frozenset[str]:
    transport = {"self", "prompt", "messages", "model"}
    return frozenset(inspect.signature(create).parameters) - transport


def connect(name: str | None = None) -> Client:
    """Return a client of the running server, having checked that it answers with the model that it should.

    Looks for WORKSHOP_URL (with WORKSHOP_API_KEY), else this user's own server, else one shared with the class
    in $WORKSHOP_SHARED. Raises WorkshopError: there is none, it is still starting or failed, or several are there.
    """
    record = find(name)
    client = Client(record)
    served = [entry["id"] for entry in client.models()]
    if record.model and record.model not in served:
        said = f"{client.url} serves {', '.join(served) or 'nothing'}, not {record.model}: another server took that port."
        remedy = f"`workshop servers` shows what is known; `workshop stop {record.name}` forgets this one."
        raise WorkshopError(said, remedy)
    if not served:
        raise WorkshopError(
            f"{client.url} serves no model.",
            "Give the address of a vLLM server, which ends in /v1.",
        )
    if record.where != "given" or (client.proxy is None and client.url.startswith("http:")):
        reach.keep_off_proxies(client.url)
    client.model = record.model or served[0]
    return client

"""A thin client over the official `openai` package, which finds the server by its record.

from workshop import connect
llm = connect()
llm.complete("San Francisco is a", max_tokens=20, temperature=0, top_k=5).choices[0].text
"""

import contextlib
import difflib
import functools
import getpass
import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion

from workshop.client import answer_ids, lost, reach, received, refusals, transport, waiting
from workshop.client.reach import START, find
from workshop.client.strict_json import Malformed
from workshop.engine import http
from workshop.errors import BadInput, WorkshopError, plain
from workshop.servers.records import ServerRecord

CONNECT_TIMEOUT_S = 5.0
# by name: openai brings its own edition of httpx
CLOSED = "RemoteProtocolError", "ReadError", "WriteError"
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
        http: an `httpx` client that carries the key, and takes no proxy and no redirect that is not
            meant.
        by: the name that requests show in a trace; "" for none.

    Raises BadInput: `by` cannot be shown.
    """

    def __init__(
        self,
        record: ServerRecord,
        model: str | None = None,
        *,
        timeout_s: float = 600.0,
        by: str = "",
    ):
        if by and not answer_ids.NAME.fullmatch(by):
            remedy = "Use up to 64 letters from a to z, digits, '.', '_', '-' and '@'."
            raise BadInput(f"{by!r} cannot be shown as a name.", remedy)
        self.by = by
        self.record = record
        self.url = record.url.rstrip("/")
        self.root = self.url.removesuffix("/v1")
        self.model = model or record.model
        self.headers = _who()
        if record.api_key:
            self.headers["Authorization"] = f"Bearer {record.api_key}"
        self.proxy = None
        if record.where == "given":
            self.proxy = transport.proxy_to(self.url)
        self.safe = transport.options(self.proxy)
        self.http = httpx.Client(headers=self.headers, timeout=CONNECT_TIMEOUT_S, **self.safe)
        self._timeout_s = timeout_s
        self.ids = answer_ids.AnswerIds()
        self._mixes_answers = False  # the server sent the answer to another request
        self._schemas: dict[str, frozenset[str]] = {}  # what /openapi.json said
        self.openai = self._official()

    def _official(self, **http_options) -> openai.OpenAI:
        """Make the `openai` client, with the proxy, certificates and timeouts of this client."""
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

    def complete(self, prompt: str | list, **sampling) -> Any:
        """Return the completion of a prompt: an `openai` Completion, with vLLM's extra fields.

        Args:
            prompt: a string, a list of strings, or token ids.
            **sampling: vLLM's sampling parameters by their own names (max_tokens, min_tokens,
                temperature, top_k, top_p, min_p, frequency_penalty, logprobs, prompt_logprobs,
                seed, n, stream, …). logprobs=-1 asks for the whole vocabulary, which the server
                must allow.

        Raises:
            BadInput: the name of a parameter, or its value, is not one that the server takes.
            WorkshopError: the server does not answer.
        """
        return self._request(self._create_completion, Completion, sampling, prompt=prompt)

    def chat(self, messages: str | list[dict], **sampling) -> Any:
        """Return the answer to a conversation, as an `openai` ChatCompletion.

        Args:
            messages: the conversation in OpenAI's format; a string is one message of the user.
            **sampling: as for `complete`.

        Raises BadInput, WorkshopError: as `complete` does.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self._request(self._create_chat, ChatCompletion, sampling, messages=messages)

    def _create_completion(self) -> Callable:
        return self.openai.completions.with_raw_response.create

    def _create_chat(self) -> Callable:
        return self.openai.chat.completions.with_raw_response.create

    def _request(
        self,
        create: Callable[[], Callable],
        kind: type[Completion] | type[ChatCompletion],
        sampling: dict,
        **content,
    ):
        openai_names = _parameters(create())
        direct = {}  # what `openai` takes by name
        extra = {}  # what only vLLM takes
        for name, value in sampling.items():
            if name in openai_names:
                direct[name] = value
            else:
                extra[name] = value
        self._refuse_unknown(extra, openai_names, f"{kind.__name__}Request")
        body = {**extra, **dict(direct.pop("extra_body", None) or {})}
        options = {"model": self.model, **content, **direct, "extra_body": body or None}
        parameters = {**direct, **body}
        sequences = received.sequences(content.get("prompt"), parameters.get("n"))
        try:
            if parameters.get("stream"):
                with waiting.told_of_silence():
                    request_id, response = self._answer_to(create(), options)
                return Stream(response.parse(), self, request_id)
            for _ in range(2):
                request_id, response = self._answer_to(create(), options)
                location = response.headers.get("location")
                redirect = transport.redirected(self.url, response.status_code, location)
                if redirect:
                    raise redirect
                answer = received.answer(response.content, sequences)
                if self.ids.allow(answer.id, request_id):
                    lost.forget()
                    return kind.construct(**answer.body)
                self._use_each_connection_once()
        except openai.OpenAIError as error:
            raise self.explain(error) from None
        except Malformed as bad:
            raise self.odd(str(bad)) from None
        except BROKEN as error:
            raise self.odd(f"what cannot be read ({type(error).__name__})") from None
        raise self.odd("the answer to another request")

    def _answer_to(self, create: Callable, options: dict):
        """Send one request under an id of its own; return (id, answer)."""
        own_headers = dict(options.get("extra_headers") or {})
        headers = {"X-Request-Id": answer_ids.new(self.by), **own_headers}
        send = functools.partial(create, **{**options, "extra_headers": headers})
        return headers["X-Request-Id"], self._sent(send)

    def _use_each_connection_once(self) -> None:
        """Close all connections, in which answers to other requests wait, and reuse none.

        The first time it says so on stderr.
        """
        if not self._mixes_answers:
            self._mixes_answers = True
            note = f"{self.url} sent the answer to another request: each request has a connection of its own from now on."
            print(f"! {plain(note)}", file=sys.stderr)
        self.openai.close()
        self.openai = self._official(limits=httpx.Limits(max_keepalive_connections=0))

    @staticmethod
    def _sent(send):
        """Send a request, once more if the server had closed the idle connection long before."""
        began = time.monotonic()
        try:
            return send()
        except openai.APIConnectionError as error:
            # A server may close a connection after an answer without a word, and the next request
            # finds out (vLLM 0.25 does it after each chat with a model that has no template).
            failed_at_once = time.monotonic() - began <= STALE_S
            if type(error.__cause__).__name__ not in CLOSED or not failed_at_once:
                raise
            return send()

    def _refuse_unknown(
        self, names: Iterable[str], openai_names: frozenset[str], schema: str
    ) -> None:
        """Raise BadInput for a name that is not in the server's schema.

        vLLM itself ignores unknown fields: without this check `temprature=0` would have no effect
        and no error.
        """
        for name in names:
            accepted = self._schema(schema)
            if accepted and name not in accepted:
                near = difflib.get_close_matches(name, [*accepted, *openai_names], n=1)
                remedy = "The names are those of vLLM's SamplingParams."
                if near:
                    remedy = f"Did you mean {near[0]!r}?"
                raise BadInput(f"This server knows no sampling parameter {name!r}.", remedy)

    def _schema(self, name: str) -> frozenset[str]:
        """Return the request fields that the server itself publishes; empty if it gives none now.

        Only what it gave is kept: it may have been too busy to answer.
        """
        if name not in self._schemas:
            try:
                schemas = self.get("/openapi.json")["components"]["schemas"]
                self._schemas[name] = frozenset(dict(schemas[name]["properties"]))
            except (*BROKEN, WorkshopError):
                return frozenset()
        return self._schemas[name]

    def models(self) -> list[dict]:
        """Return the served models; their `root` and `max_model_len` are None if not given."""
        return self._read("/v1/models", received.models)

    def get(self, path: str) -> dict:
        """GET a path of the server, beside /v1 (`/version`, `/openapi.json`), as parsed JSON."""
        return self._read(path, received.body)

    def _read(self, path: str, read: Callable[[bytes], Parsed]) -> Parsed:
        """GET a path of the server; return its answer as `read` parses it."""
        try:
            answer, body = http.get(
                self.root + path, CONNECT_TIMEOUT_S, headers=self.headers, **self.safe
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.gone(str(error) or type(error).__name__, error) from None
        if answer.status_code in (401, 403):
            raise self._key_refused()
        location = answer.headers.get("location")
        redirect = transport.redirected(self.root + path, answer.status_code, location)
        if redirect:
            raise redirect
        if answer.status_code != 200:
            raise WorkshopError(f"{self.root}{path} answers {answer.status_code}.", START)
        try:
            return read(body)
        except Malformed as bad:
            raise self.odd(str(bad), self.root + path) from None

    def explain(self, error: openai.OpenAIError) -> WorkshopError:
        """Return an error of the `openai` package as one sentence and a remedy."""
        if isinstance(error, openai.APITimeoutError):
            problem = f"{self.url} did not finish in time."
            return WorkshopError(
                problem, "Ask for fewer tokens, or look at the server: `workshop servers`."
            )
        if isinstance(error, openai.APIConnectionError):
            return self.gone(_why(error), error)
        if isinstance(error, openai.APIStatusError):
            message = error.message
            if isinstance(error.body, dict):
                message = error.body.get("message") or error.message
            return self.refusal(
                error.status_code, str(message), error.response.headers.get("location")
            )
        return WorkshopError(str(error))

    def refusal(self, status: int, message: str, location: str | None = None) -> WorkshopError:
        """Return the error for a status other than 200.

        `message` is what the server wrote, `location` where it leads to.
        """
        if status == 401:
            return self._key_refused()
        redirect = transport.redirected(self.url, status, location)
        if redirect:
            return redirect
        problem = refusals.sentence(message)
        if status < 500:
            return BadInput(
                f"The server refused the request ({status}): {problem}.", refusals.remedy(problem)
            )
        return self.gone(problem)

    def odd(self, what: str, address: str = "") -> WorkshopError:
        """Return the error for an answer that vLLM never gives; `what` follows "answers with"."""
        remedy = (
            "Is this the address of a vLLM server? It ends in /v1, and nothing stands in between."
        )
        return WorkshopError(f"{address or self.url} answers with {what}.", remedy)

    def _started_again(self) -> WorkshopError | None:
        """Return an error if the record has a new address or key, and so the server a new start."""
        with contextlib.suppress(WorkshopError):
            now = reach.ready_server(self.record.name)
            if (now.url, now.api_key) != (self.record.url, self.record.api_key):
                problem = f"The server {now.name!r} was started again."
                return WorkshopError(problem, "Run the cell with connect() again, then this one.")
        return None

    def _key_refused(self) -> WorkshopError:
        started_again = self._started_again()
        if started_again:
            return started_again
        problem = "wants a key, and none was sent"
        if self.record.api_key:
            problem = "does not accept this key"
        remedy = (
            "Set WORKSHOP_API_KEY to the server's key,"
            " or unset WORKSHOP_URL to use its record: connect()."
        )
        return WorkshopError(f"{self.url} {problem}.", remedy)

    def gone(self, cause: str = "", error: Exception | None = None) -> WorkshopError:
        """Return the error for a server that does not answer; later cells say the same."""
        remedy = ""
        if error:
            remedy = transport.remedy_for(error, self.url)
        gone = self._started_again() or reach.silent(self.record, cause, remedy)
        lost.remember(gone)
        return gone


class Stream:
    """An `openai` Stream, with its attributes, that raises an error if it ends before its text."""

    def __init__(self, stream: openai.Stream, client: Client, request_id: str = ""):
        self._stream = stream
        self._client = client
        self._request_id = request_id

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator:
        begun, ended = set(), set()
        pieces = iter(self._stream)
        try:
            with waiting.told_of_silence():
                first = list(itertools.islice(pieces, 1))
            for piece in itertools.chain(first, pieces):
                if not self._client.ids.allow(piece.id, self._request_id):
                    break
                for choice in piece.choices:
                    if choice.finish_reason:
                        ended.add(choice.index)
                    else:
                        begun.add(choice.index)
                yield piece
        except openai.OpenAIError as error:
            raise self._client.explain(error) from None
        except Exception as error:
            # Odd JSON, or a connection that broke, in the classes of the httpx that `openai`
            # brings.
            raise self._client.odd(f"a stream that breaks off ({type(error).__name__})") from None
        if not ended or begun - ended:
            raise self._client.odd("a stream that breaks off")


def _why(error: openai.APIConnectionError) -> str:
    """Return the TLS error that prevented a connection; '' if there was another reason."""
    if not transport.is_tls(error):
        return ""
    return str(error.__cause__ or "")


def _who() -> dict[str, str]:
    """Return the header that names the user, so that a class's server can share fairly."""
    try:
        return {"X-Workshop-Learner": quote(getpass.getuser(), safe="@")}
    except (OSError, KeyError):  # a user id without a name, as in some containers
        return {}


@functools.cache
def _parameters(create) -> frozenset[str]:
    """Return the names that a method of `openai` takes, without those that say what to complete."""
    of_the_request = {"self", "prompt", "messages", "model"}
    return frozenset(inspect.signature(create).parameters) - of_the_request


def connect(name: str | None = None, by: str = "") -> Client:
    """Return a client of the running server, which was asked whether it has the right model.

    `by` is a name that each request shows in a trace of the engine.

    Looks for WORKSHOP_URL (with WORKSHOP_API_KEY), else this user's own server, else one shared
    with the class in $WORKSHOP_SHARED. In a notebook a server that is starting is waited for.

    Raises WorkshopError: there is none, it has failed, it did not start within ten minutes, or
    several are there; outside of notebooks also: it is still starting.
    """
    try:
        record = find(name)
    except reach.StillStarting as error:
        if not waiting.in_notebook():
            raise
        waiting.wait_for(error)
        record = find(name)
    return connect_to(record, by)


def connect_to(record: ServerRecord, by: str = "") -> Client:
    """Return a client of the server of a record, as `connect` does.

    Raises WorkshopError: it does not serve its model.
    """
    client = Client(record, by=by)
    served = [entry["id"] for entry in client.models()]
    if record.model and record.model not in served:
        problem = f"{client.url} serves {', '.join(served) or 'nothing'}, not {record.model}: another server took that port."
        remedy = f"`workshop servers` shows what is known; `workshop stop {record.name}` forgets this one."
        raise WorkshopError(problem, remedy)
    if not served:
        raise WorkshopError(
            f"{client.url} serves no model.",
            "Give the address of a vLLM server, which ends in /v1.",
        )
    if record.where != "given" or (client.proxy is None and client.url.startswith("http:")):
        transport.keep_off_proxies(client.url)
    client.model = record.model or served[0]
    lost.forget()
    return client

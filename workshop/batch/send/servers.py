"""One server of a batch: its address, whether it answers, and what its metrics say."""

import asyncio
import functools
import math
import os
import re
import time
from collections.abc import Mapping

import aiohttp
from yarl import URL

from workshop.batch.read.rows import CHAT, COMPLETIONS, EMBEDDINGS
from workshop.batch.send.clock import clock
from workshop.batch.send.outage import Outage
from workshop.batch.send.pace import Pace
from workshop.client import received, transport
from workshop.client.answer_ids import AnswerIds
from workshop.client.strict_json import Malformed
from workshop.engine import metrics
from workshop.engine.http import LARGEST_BYTES
from workshop.errors import WorkshopError
from workshop.servers import hang, records
from workshop.servers.records import ServerRecord

CONNECT_TIMEOUT_S = 10.0
BUSY_TIMEOUT_S = 20.0  # for a server that may be busy, to say what it serves
READ_AGAIN_S = 10.0  # between two looks at the record of a server that is away
# A look costs the server some 10 ms, so it is frequent only while the pace is sought.
POLL_S = 1.0
QUICK_POLL_S = 0.4
METRICS_TIMEOUT_S = 10.0
QUIET_S = 8.0  # without work, after which the progress says so
AWAY = (aiohttp.ClientError, TimeoutError, OSError)  # what a server that does not answer raises
KNOWN = "`workshop servers` lists those known here; `workshop serve --background` starts one."
_NAMES = (
    "num_requests_running|num_requests_waiting|kv_cache_usage_perc"
    "|num_preemptions|prompt_tokens_total|generation_tokens_total"
)
_LINES = re.compile(f"^vllm:(?:{_NAMES}).*$", re.MULTILINE)  # seven lines of 400


class KeyRefused(WorkshopError):
    """The server refuses the key: it answers 401 or 403."""


class NoModels(WorkshopError):
    """The answer does not come from a vLLM server; it may be a page of a proxy or a tunnel."""


class ServerBusy(aiohttp.ClientError):
    """The server, or a proxy in front of it, says that it is busy: waiting can help."""


class Server:
    """A server that the batch sends to. `url` ends in /v1.

    Its record is read again when it is away or refuses the key, because it may have been restarted.
    There is no record if the user gave the address, or the key by WORKSHOP_API_KEY.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        concurrency: int | None = None,
        record: ServerRecord | None = None,
        accepted: tuple[str, ...] = (),
    ):
        self.record = record
        self.read_at = -math.inf  # when the record was read again
        self.proxy: str | None = None
        self.session: aiohttp.ClientSession  # from `connect` on
        self._fresh: aiohttp.ClientSession  # a connection for each request
        self._aim(url, api_key)
        self.accepted = accepted  # names that the user takes for the model's
        self.names: frozenset[str] = frozenset(accepted)  # … and those that the server lists for it
        self.pace = Pace(concurrency, fixed=True, doubling=False) if concurrency else Pace()
        self.in_flight = 0
        self.answered = 0
        self.up = asyncio.Event()
        self.down_since: float | None = None
        self.movement = hang.Movement(clock.now())
        self.hangs = ""  # what was seen, if it hangs
        self._token: asyncio.Task[int] | None = None  # that was asked for beside the rows
        self._token_at = -math.inf
        self.path = COMPLETIONS  # of the newest row
        self.tasks = set()  # those that send to it
        self.look: metrics.Metrics | None = None
        self.outage = Outage()

    @property
    def is_local(self) -> bool:
        """Return whether the server's own record says that it runs on this machine."""
        return self.record is not None and records.is_local(self.record)

    def _aim(self, url: str, api_key: str) -> None:
        """Set the address and the key that requests are sent with."""
        self.root = url.rstrip("/").removesuffix("/v1")
        self.api_key = api_key
        self.url = f"{self.root}/v1"
        self.ids = AnswerIds()  # another server may run where a restarted one is
        self.mixes_answers = False  # it sent the answer to another request
        self.urls = {
            path: URL(self.root + path, encoded=True) for path in (COMPLETIONS, CHAT, EMBEDDINGS)
        }
        self.headers = {
            "Content-Type": "application/json",
            "User-Agent": "workshop-batch",
            "Accept-Encoding": "identity",
        }
        if api_key:
            self.headers["Authorization"] = f"Bearer {api_key}"

    def connect(self, read_timeout_s: float) -> None:
        """Open the sessions; call it inside the event loop."""
        session = functools.partial(
            transport.session,
            answer_s=read_timeout_s,
            connect_s=CONNECT_TIMEOUT_S,
            auto_decompress=False,  # no request allows a compressed answer
        )
        self.session = session()
        self._fresh = session(reuses=False)

    async def close(self) -> None:
        """Close all connections."""
        if self._token:
            self._token.cancel()
        await self.session.close()
        await self._fresh.close()

    def post(self, path: str, headers: dict | None = None, fresh: bool = False, **body):
        """POST to a path beside /v1 with the present key, without redirects; return a context.

        fresh: use a new connection, so that only the answer to this request can come.
        """
        session = self._fresh if fresh else self.session
        return session.post(
            self.urls[path],
            headers={**self.headers, **(headers or {})},
            proxy=self.proxy,
            allow_redirects=False,
            **body,
        )

    async def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """GET a path beside /v1; return (status, body).

        Raises:
            AWAY: the server does not answer, or with more than LARGEST_BYTES.
            WorkshopError: it redirects to another address.
        """
        options = {
            "headers": self.headers,
            "proxy": self.proxy,
            "timeout": aiohttp.ClientTimeout(total=timeout_s),
        }
        async with self.session.get(self.root + path, allow_redirects=False, **options) as answer:
            location = answer.headers.get("Location")
            redirect = transport.redirected(self.root + path, answer.status, location)
            if redirect:
                raise redirect
            try:
                await answer.content.readexactly(LARGEST_BYTES)
            except asyncio.IncompleteReadError as whole:
                return answer.status, whole.partial
            raise aiohttp.ClientPayloadError(f"its answer has more than {LARGEST_BYTES >> 20} MiB")

    async def read_again(self) -> bool | None:
        """Read the record again; return True if the address or the key changed.

        None: the record is missing, or says that the server has failed. False: nothing changed, or
        there is no record.
        """
        if self.record is None:
            return False
        self.read_at = clock.now()
        try:
            now = await asyncio.to_thread(_current, self.record.name)
        except WorkshopError:
            now = None
        if now is None or now.state == "failed":
            return None
        changed = (now.url.rstrip("/"), now.api_key) != (self.url, self.api_key)
        if changed:  # what is known of the ids stays as long as the address and the key do
            self._aim(now.url, now.api_key)
        return changed

    async def _models(self, timeout_s: float) -> list[dict]:
        """Return the entries of /v1/models; raises as `check` does."""
        status, raw = await self.get("/v1/models", timeout_s)
        if status in (401, 403):
            raise self.key_refused()
        if status == 429 or status >= 500:
            raise ServerBusy(f"it answers {status}: {received.refusal_message(raw)[:200]}")
        try:
            return received.models(raw)
        except Malformed as bad:
            problem = f"{self.url}/models answers {status} with {bad}."
            raise NoModels(
                problem, "Give the address of a vLLM server, which ends in /v1."
            ) from None

    async def check(self, model: str, timeout_s: float) -> dict:
        """Return the entry of a model in /v1/models; '' is the only model that the server has.

        Raises:
            AWAY: the server does not answer; ServerBusy, one of them: it answers that it is busy.
            NoModels: it is not a vLLM server. KeyRefused: it refuses the key.
            WorkshopError: the server does not have the model, or has several and `model` is ''.
        """
        entries = await self._models(timeout_s)
        names = [entry["id"] for entry in entries]
        if not model and not all(_is_same(entry, entries[0]) for entry in entries):
            raise WorkshopError(
                f"{self.url} serves several models: {', '.join(names)}.", "Choose one with --model."
            )
        if not entries or (model and model not in names):
            has = ", ".join(names) or "nothing"
            raise WorkshopError(
                f"{self.url} serves {has}, not {model or 'a model'}.",
                f"Give --model {has}, or the address of the right server."
                " All answers so far are kept.",
            )
        entry = entries[0]
        if model:
            entry = entries[names.index(model)]
        same = [other["id"] for other in entries if _is_same(other, entry, in_doubt=True)]
        self.names = frozenset([*self.accepted, *same])
        return entry

    def is_name_of(self, answered: str, model: str) -> bool:
        """Return True if `answered`, which an answer names, is a name of the requested `model`."""
        if answered == model or answered in self.names:
            return True
        # LiteLLM puts the name of the provider in front.
        return answered.endswith(f"/{model}") or model.endswith(f"/{answered}")

    async def version(self) -> str | None:
        """Return the server's version of vLLM; None if it does not say."""
        try:
            status, raw = await self.get("/version")
            if status != 200:
                return None
            version = received.body(raw).get("version")
        except (*AWAY, Malformed, WorkshopError):
            return None
        if not isinstance(version, str):
            return None
        return version

    async def watch(self, model: str, patience_s: float) -> None:
        """Adjust the pace while the batch runs; notice when the server hangs, or is back."""
        answered_before = self.answered
        looked_at = clock.now()
        has_metrics = True
        while True:
            await asyncio.sleep(QUICK_POLL_S if self.pace.doubling else POLL_S)
            if not self.up.is_set():
                await self._see_whether_it_is_back(model)
                continue
            look = None
            if has_metrics:
                look = await self.metrics_now(min(METRICS_TIMEOUT_S, patience_s))
                has_metrics = look is not False
            now = clock.now()
            engines = {}
            if isinstance(look, metrics.Metrics):
                self._take(look)
                engines = look.engines
            elif not has_metrics and self.answered > answered_before:
                new_answers = self.answered - answered_before
                self.pace.by_rate(self.in_flight, new_answers / max(now - looked_at, 1e-3))
            self.movement.take(engines, now)
            await self._see_whether_it_hangs(model, patience_s, engines)
            answered_before = self.answered
            looked_at = now

    async def _see_whether_it_hangs(
        self, model: str, patience_s: float, engines: Mapping[str, metrics.EngineWork]
    ) -> None:
        """Send the rows elsewhere if the server shows no work for `patience_s`.

        Without counters of engines a token is asked for beside the rows; an answer to it is work.
        """
        now = clock.now()
        if not self.in_flight:
            self.movement.answered(now)
        if self._token and self._token.done():
            if 0 < self._token.result() < 500 and self._token.result() != 429:
                self.movement.answered(now)
            self._token = None
        every_s = min(hang.TOKEN_EVERY_S, patience_s / 3)
        is_due = self._token is None and min(self.still_s, now - self._token_at) > every_s
        if is_due and not engines:
            self._token_at = now
            self._token = asyncio.create_task(self.status_of_a_token(model, patience_s))
        if self.still_s > patience_s:
            since = self.movement.still_since()
            if await self.alive():
                self.hangs = self.movement.still(now)
                if any(engine.is_asleep for engine in engines.values()):
                    self.hangs = hang.SLEEPS
            self.fell(since)
            for task in self.tasks:
                task.cancel()

    @property
    def still_s(self) -> float:
        """The seconds since the server, or an engine of it, showed work; 0 if nothing runs."""
        return clock.now() - self.movement.still_since()

    async def status_of_a_token(self, model: str, timeout_s: float) -> int:
        """Ask for one token, as the rows are asked; return the answer's status, 0 without one."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        body = {"model": model, **hang.ONE_TOKEN[self.path]}
        try:
            async with self.post(self.path, fresh=True, json=body, timeout=timeout) as answer:
                return answer.status
        except AWAY:
            return 0

    def _take(self, look: metrics.Metrics) -> None:
        """Adjust the pace to the server's metrics."""
        preempted = 0
        if self.look:
            preempted = (look.preemptions_total or 0) - (self.look.preemptions_total or 0)
        self.look = look
        self.pace.by_metrics(
            self.in_flight,
            look.requests_running or 0,
            look.requests_waiting or 0,
            look.kv_cache_usage or 0.0,
            max(0.0, preempted),
        )

    async def metrics_now(self, timeout_s: float) -> metrics.Metrics | bool | None:
        """Return the server's metrics; None: it did not answer this time; False: it has none."""
        try:
            status, raw = await self.get("/metrics", timeout_s)
            if status != 200:
                return False
            return metrics.parse("\n".join([*_LINES.findall(raw.decode(errors="replace")), ""]))
        except WorkshopError:
            return False
        except AWAY:
            return None

    async def _see_whether_it_is_back(self, model: str) -> None:
        """Ask a server that is away for a token; send to it again if it answers with the model.

        Raises KeyRefused: it refuses the key, and no record has another one.
        """
        try:
            await self.check(model, BUSY_TIMEOUT_S)
        except NoModels as error:  # a tunnel whose other end is away shows a page of its own
            self.outage.last = error.message
            return
        except AWAY:
            if clock.now() - self.read_at > READ_AGAIN_S:  # it may be back under another address
                await self.read_again()
            return
        except KeyRefused:
            if await self.read_again() is False:
                raise
            return
        if 0 < await self.status_of_a_token(model, BUSY_TIMEOUT_S) < 500:
            self.rise()

    def rise(self) -> None:
        """Send to the server from now on, because it answers."""
        self.down_since = None
        self.hangs = ""
        self.movement = hang.Movement(clock.now())
        self.up.set()

    def fell(self, since: float | None = None) -> None:
        """Send nothing more until it answers again. It is away since now, or `since`."""
        if self.up.is_set():
            self.up.clear()
            self.down_since = since or clock.now()
            self.look = None

    @property
    def away_s(self) -> float:
        """The seconds since the server was heard last; 0 while it answers."""
        since = self.down_since or self.outage.since
        if not since:
            return 0.0
        return clock.now() - since

    def trouble(self) -> tuple[str, str]:
        """Return why no answer comes, and what to do about it; ("", "") while all is well."""
        away_s = f"{self.away_s:.0f} s"
        if self.hangs:
            began = time.strftime("%H:%M:%S", time.localtime(time.time() - self.away_s))
            problem = f"hangs since {began}: it answers /v1/models, and computes nothing"
            remedy = "Stop the server and start it again. Where one answer may take longer than "
            remedy += "that, give a longer --patience."
            return f"{self.url} {problem} ({self.hangs})", remedy
        if self.down_since:
            return f"{self.url} has not answered for {away_s}", "Start the server again."
        if self.outage.since and self.outage.status == 429:
            problem = f"refuses every request for want of quota, for {away_s}"
            remedy = "Wait until the quota allows requests again, or send fewer at once "
            remedy += "(--concurrency); --patience says how long a run waits."
            return f"{self.url} {problem}: {self.outage.last}", remedy
        if self.outage.since:
            problem = f"has not answered for {away_s}; it, or what stands in front of it, said"
            remedy = "Look at the server, and at the proxy or tunnel to it."
            return f"{self.url} {problem}: {self.outage.last}", remedy
        if self.still_s > QUIET_S:
            return f"{self.url} has shown no work for {self.still_s:.0f} s", ""
        return "", ""

    def takes_rows(self) -> int:
        """Return how many requests the server may have now; 1 if a proxy answers in its place."""
        if not self.up.is_set() or clock.now() < self.outage.rests_until:
            return 0
        if self.outage.rests:
            return 1
        return self.pace.limit

    async def alive(self) -> bool:
        """Return True if the server answers at all."""
        try:
            await self.get("/v1/models")
            return True
        except AWAY:
            return False

    def key_refused(self) -> KeyRefused:
        """Return the error for a key that the server refuses."""
        if self.record is None and os.environ.get("WORKSHOP_API_KEY"):
            problem = f"{self.url} refuses the key that WORKSHOP_API_KEY holds."
            return KeyRefused(
                problem, "Set it to the server's key; where the server has a record here, unset it."
            )
        return KeyRefused(
            f"{self.url} refuses the key.", "Set WORKSHOP_API_KEY to the server's key."
        )


def _is_same(entry: dict, other: dict, in_doubt: bool = False) -> bool:
    """Return True if two entries of /v1/models name one model: then vLLM gives them the same root.

    in_doubt: the result if the server gives no roots.
    """
    if entry is other:
        return True
    if entry["root"] is None or other["root"] is None:
        return in_doubt
    return entry["root"] == other["root"]


def _current(name: str) -> ServerRecord | None:
    """Return the present record of a server, this user's own or a shared one; None without one."""
    shared_records = (record for record in records.shared() if record.name == name)
    return records.read(name) or next(shared_records, None)


def answered_as_another(url: str, answered: str, model: str) -> WorkshopError:
    """Return the error that an answer names another model than the requested one."""
    problem = f"{url} serves {answered}, not {model}: an answer says so."
    remedy = f"If {answered} is the same model by another name, add --accept-model {answered}; else give the address of "
    return WorkshopError(problem, f"{remedy}the right server. All answers so far are kept.")

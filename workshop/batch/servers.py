"""One server of a batch: where it is, whether it answers, and what it says of itself."""

import asyncio
import os
import re
import resource
from collections import OrderedDict
from dataclasses import dataclass

import aiohttp
from yarl import URL

from workshop.batch.clock import clock
from workshop.batch.connections import CleanConnector, Response
from workshop.batch.pace import FIRST_LIMIT, LARGEST_LIMIT, SMALLEST_LIMIT, Pace  # noqa: F401 (names of before)
from workshop.batch.rows import CHAT, COMPLETIONS
from workshop.client import reach, received
from workshop.client.strict_json import Malformed
from workshop.engine import metrics
from workshop.engine.http import LARGEST_BYTES
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

BUSY_TIMEOUT_S = 20.0  # for a server that may be busy, to say what it serves
READ_AGAIN_S = 10.0  # between two looks at the record of a server that is away
# a look costs the server some 10 ms: often only while the pace is sought
POLL_S, QUICK_POLL_S = 1.0, 0.4
AWAY = (aiohttp.ClientError, TimeoutError, OSError)  # what a server that does not answer raises
KNOWN = "`workshop servers` lists those known here; `workshop serve --background` starts one."
OUTAGE = 8  # so many answers of a proxy without one of the server: the server itself is away
ANSWERS_KEPT = 8192  # digests of the last answers, by which one that comes twice is known
SPARE_FILES = 200  # what a run has open beside its connections
KEEP_ALIVE_S = (
    3.0  # uvicorn closes idle connections after 5 s; reusing one as it closes loses a request
)
_NAMES = "num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|num_preemptions"
_DATED = re.compile(r"(-20\d\d-?\d\d-?\d\d|-[01]\d[0-3]\d)$")  # gpt-4o-mini-2024-07-18, gpt-4-0613
_LINES = re.compile(f"^vllm:(?:{_NAMES}).*$", re.MULTILINE)  # five lines of 400


@dataclass
class Outage:
    """Answers of a proxy or a tunnel in the place of a server, since that answered last.

    After some of them it gets nothing for a while, then a row now and then: to see whether the server is back.
    """

    since: float | None = None
    answers: int = 0
    rests: int = 0
    rests_until: float = 0.0
    was_told_to_wait: bool = (
        False  # with Retry-After: it speaks of a time, and patience does not count
    )
    ended: int = 0  # how many outages were over
    last: str = ""  # what it said
    answered_what_was_sent_at: float = 0.0  # the newest request that the server itself answered

    def goes_on(
        self, said: str, told_to_wait: bool, first_rest_s: float, longest_rest_s: float
    ) -> None:
        """Take note of one more answer that is none."""
        now = clock.now()
        self.since = self.since or now
        self.answers += 1
        self.last, self.was_told_to_wait = said, told_to_wait
        if self.answers >= OUTAGE and now >= self.rests_until:
            self.rests_until = now + min(longest_rest_s, first_rest_s * 2 ** min(self.rests, 10))
            self.rests += 1

    def is_over(self, sent_at: float) -> None:
        """Take note that the server itself answered a request that was sent then."""
        self.answered_what_was_sent_at = max(self.answered_what_was_sent_at, sent_at)
        if self.answers:
            self.ended += self.rests > 0
            self.since, self.answers, self.rests, self.rests_until, self.was_told_to_wait = (
                None,
                0,
                0,
                0.0,
                False,
            )


class KeyRefused(WorkshopError):
    """401 or 403."""


class NoModels(WorkshopError):
    """What answers is no server, or a page of a proxy or a tunnel in its place."""


class Busy(aiohttp.ClientError):
    """The server, or a proxy in front of it, says that it has no time: waiting can help."""


class Server:
    """A server that the batch sends to. `url` ends in /v1.

    Its record is read again when it is away or refuses the key, for it may have been started anew; there is none of an
    address that the user gave, nor where the key is WORKSHOP_API_KEY.
    """

    def __init__(
        self,
        url: str,
        api_key: str,
        concurrency: int | None = None,
        record: ServerRecord | None = None,
        accepted: tuple[str, ...] = (),
    ):
        self.record, self.read_at = record, 0.0
        self.proxy: str | None = None
        self.session: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None  # a connection for each request
        self._aim(url, api_key)
        self.accepted = accepted  # names that the user takes for the model's
        self.names: frozenset[str] = frozenset(accepted)  # … and those that the server lists for it
        self.pace = Pace(concurrency, fixed=True, doubling=False) if concurrency else Pace()
        self.in_flight = self.answered = 0
        self.up, self.down_since = asyncio.Event(), None
        # when it last said anything; the tasks that send to it
        self.heard, self.tasks = clock.now(), set()
        self.look: metrics.Metrics | None = None
        self.outage = Outage()
        self.doubles = False  # it sent an answer twice
        self.names_rows = False  # it puts X-Request-Id into the ids of its answers, as vLLM does
        # None: equal answers mean nothing here
        self._last_answers: OrderedDict[int, None] | None = OrderedDict()

    def _aim(self, url: str, api_key: str) -> None:
        self.root, self.api_key = url.rstrip("/").removesuffix("/v1"), api_key
        self.url = f"{self.root}/v1"
        self.urls = {path: URL(self.root + path, encoded=True) for path in (COMPLETIONS, CHAT)}
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.headers = {"Content-Type": "application/json", "User-Agent": "workshop-batch", **key}

    def connect(self, read_timeout_s: float) -> None:
        """Open the session; call it inside the event loop."""
        self._read_timeout_s = read_timeout_s
        self.session = _session(CleanConnector, read_timeout_s, keepalive_timeout=KEEP_ALIVE_S)

    async def close(self) -> None:
        """Close all connections."""
        for session in (self.session, self._fresh):
            if session is not None:
                await session.close()

    def post(self, path: str, headers: dict | None = None, fresh: bool = False, **body):
        """POST to a path beside /v1 with the key of now, which no redirect takes elsewhere; an async context.

        fresh: over a connection of its own, so that nothing but its own answer can come.
        """
        headers = {**self.headers, **(headers or {})}
        session = self._of_one_request() if fresh else self._connected()
        return session.post(
            self.urls[path], headers=headers, proxy=self.proxy, allow_redirects=False, **body
        )

    def _connected(self) -> aiohttp.ClientSession:
        """Return the session that `connect` opened."""
        if self.session is None:
            raise RuntimeError(f"{self.url} is not connected")
        return self.session

    def _of_one_request(self) -> aiohttp.ClientSession:
        if self._fresh is None:
            self._fresh = _session(aiohttp.TCPConnector, self._read_timeout_s, force_close=True)
        return self._fresh

    def came_before(self, raw: bytes) -> bool:
        """Whether the same bytes came before as an answer: it may have been sent twice. The last ones are kept."""
        if self._last_answers is None:
            return False
        digest = hash(raw)
        known = digest in self._last_answers
        self._last_answers[digest] = None
        if len(self._last_answers) > ANSWERS_KEPT:
            self._last_answers.popitem(last=False)
        return known

    def gives_equal_answers(self) -> None:
        """Take note that equal answers are this server's way: it gives them no ids of their own."""
        self._last_answers = None

    async def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """GET a path beside /v1; (status, body). Raises AWAY, or WorkshopError: it leads elsewhere."""
        options = {
            "headers": self.headers,
            "proxy": self.proxy,
            "timeout": aiohttp.ClientTimeout(total=timeout_s),
        }
        session = self._connected()
        async with session.get(self.root + path, allow_redirects=False, **options) as answer:
            if error := reach.redirected(
                self.root + path, answer.status, answer.headers.get("Location")
            ):
                raise error
            try:
                await answer.content.readexactly(LARGEST_BYTES)
            except asyncio.IncompleteReadError as whole:
                return answer.status, whole.partial
            raise aiohttp.ClientPayloadError(f"its answer has more than {LARGEST_BYTES >> 20} MiB")

    async def read_again(self) -> bool | None:
        """Read the record again; return whether address or key changed, None if it is gone or has failed for now."""
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
        self._aim(now.url, now.api_key)
        return changed

    async def models(self, timeout_s: float = 5.0) -> list[dict]:
        """Return what it serves.

        Raises:
            AWAY, of which Busy: it is there, and has no time.
            NoModels: it is no server of this kind. KeyRefused: it refuses the key.
        """
        status, raw = await self.get("/v1/models", timeout_s)
        if status in (401, 403):
            raise self.key_refused()
        if status == 429 or status >= 500:
            raise Busy(f"it answers {status}: {received.said(raw)[:200]}")
        try:
            return received.models(raw)
        except Malformed as bad:
            said = f"{self.url}/models answers {status} with {bad}."
            raise NoModels(said, "Give the address of a vLLM server, which ends in /v1.") from None

    async def check(self, model: str, timeout_s: float = 5.0) -> dict:
        """Return the entry of the model that it is to answer as ('': the only one that it has)."""
        found = await self.models(timeout_s)
        names = [entry["id"] for entry in found]
        if not model and not all(_is_same(entry, found[0]) for entry in found):
            raise WorkshopError(
                f"{self.url} serves several models: {', '.join(names)}.", "Choose one with --model."
            )
        if not found or (model and model not in names):
            raise another_model(self.url, ", ".join(names) or "nothing", model)
        entry = found[names.index(model)] if model else found[0]
        same = [other["id"] for other in found if _is_same(other, entry, in_doubt=True)]
        self.names = frozenset([*self.accepted, *same])
        return entry

    def is_name_of(self, answered: str, model: str) -> bool:
        """Whether an answer's model is the one that was asked for, by one of its names."""
        if answered == model or answered in self.names:
            return True
        undated = _DATED.sub("", answered)  # OpenAI's gpt-4o-mini answers as gpt-4o-mini-2024-07-18
        # LiteLLM puts the name of the provider in front.
        return undated == model or undated.endswith(f"/{model}") or model.endswith(f"/{undated}")

    async def version(self) -> str | None:
        try:
            status, raw = await self.get("/version")
            told = received.body(raw).get("version") if status == 200 else None
            return told if isinstance(told, str) else None
        except (*AWAY, Malformed, WorkshopError):
            return None

    async def watch(self, model: str) -> None:
        """Look at the server as long as the batch runs: adjust the pace, and see when it is back after a fall."""
        before, at, has_metrics = self.answered, clock.now(), True
        while True:
            await asyncio.sleep(QUICK_POLL_S if self.pace.doubling else POLL_S)
            if not self.up.is_set():
                await self._see_whether_it_is_back(model)
                continue
            look = await self.metrics_now() if has_metrics else None
            has_metrics = has_metrics and look is not False
            now, done = clock.now(), self.answered
            if isinstance(look, metrics.Metrics):
                self._take(look)
            elif not has_metrics and done > before:
                self.pace.by_rate(self.in_flight, (done - before) / max(now - at, 1e-3))
            heard = isinstance(look, metrics.Metrics) or done > before or not self.in_flight
            if heard or (not has_metrics and await self.alive()):
                self.heard = clock.now()
            before, at = done, now

    def _take(self, look: metrics.Metrics) -> None:
        last, self.look = self.look, look
        preempted = (look.preemptions_total or 0) - (last.preemptions_total or 0) if last else 0
        seen = look.requests_running or 0, look.requests_waiting or 0, look.kv_cache_usage or 0.0
        self.pace.by_metrics(self.in_flight, *seen, max(0.0, preempted))

    async def metrics_now(self) -> metrics.Metrics | bool | None:
        """Return what /metrics says; None: not this time; False: it has none."""
        try:
            status, raw = await self.get("/metrics", timeout_s=10)
            if status != 200:
                return False
            return metrics.parse("\n".join([*_LINES.findall(raw.decode(errors="replace")), ""]))
        except WorkshopError:
            return False
        except AWAY:
            return None

    async def _see_whether_it_is_back(self, model: str) -> None:
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
        self.rise()

    def rise(self) -> None:
        """It answers: send to it."""
        self.down_since, self.heard = None, clock.now()
        self.up.set()

    def fell(self) -> None:
        """Send nothing more until it answers again."""
        if self.up.is_set():
            self.up.clear()
            self.down_since, self.look = clock.now(), None

    @property
    def away_s(self) -> float:
        """For how long it has not answered; 0: it does."""
        since = self.down_since or (None if self.outage.was_told_to_wait else self.outage.since)
        return clock.now() - since if since else 0.0

    def takes_rows(self) -> int:
        """Return how many requests it may have at once now: one at a time where a proxy answers in its place."""
        if not self.up.is_set() or clock.now() < self.outage.rests_until:
            return 0
        return 1 if self.outage.rests else self.pace.limit

    async def alive(self) -> bool:
        try:
            await self.get("/v1/models")
            return True
        except AWAY:
            return False

    def key_refused(self) -> KeyRefused:
        if self.record is None and os.environ.get("WORKSHOP_API_KEY"):
            said = f"{self.url} refuses the key that WORKSHOP_API_KEY holds."
            return KeyRefused(
                said, "Set it to the server's key; where the server has a record here, unset it."
            )
        return KeyRefused(
            f"{self.url} refuses the key.", "Set WORKSHOP_API_KEY to the server's key."
        )


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files to so many more and a few, as far as the system lets it."""
    wanted, (soft, hard) = (
        len(os.listdir("/dev/fd")) + count + SPARE_FILES,
        resource.getrlimit(resource.RLIMIT_NOFILE),
    )
    if 0 <= soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard)
        )


def find(
    urls: tuple[str, ...],
    concurrency: int | None = None,
    name: str | None = None,
    accepted: tuple[str, ...] = (),
) -> list[Server]:
    """Return the servers at these addresses, by this user's own records where they have one; without, connect(name)'s.

    accepted: names under which answers may come, beside those that a server lists.
    """
    if not urls:
        return [_of(reach.find(name), concurrency, accepted)]
    found = {}
    for url in urls:
        given = reach.given(url, "--url")
        same = given.url.replace("//localhost:", "//127.0.0.1:")
        own = next(
            (record for record in reversed(records.own()) if record.url.rstrip("/") == same), given
        )
        found[given.url] = _of(own, concurrency, accepted, given.api_key)
    return list(found.values())


def _of(
    record: ServerRecord, concurrency: int | None, accepted: tuple[str, ...], api_key: str = ""
) -> Server:
    """Return the server of a record; `api_key` counts more than the record's, which is then not read again."""
    if record.where == "given" or api_key:
        server = Server(record.url, api_key or record.api_key, concurrency, accepted=accepted)
        server.proxy = reach.proxy_to(server.url) if record.where == "given" else None
        return server
    return Server(record.url, record.api_key, concurrency, record, accepted)


def _session(
    connector: type[aiohttp.TCPConnector], read_timeout_s: float, **options
) -> aiohttp.ClientSession:
    certificates = reach.tls()
    if certificates is not None:
        options["ssl"] = certificates
    return aiohttp.ClientSession(
        connector=connector(limit=0, ttl_dns_cache=300, **options),
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # reach.proxy_to decides
        timeout=aiohttp.ClientTimeout(total=read_timeout_s, sock_connect=10),
        response_class=Response,
    )


def _is_same(entry: dict, other: dict, in_doubt: bool = False) -> bool:
    """Whether two entries of /v1/models are two names of one model: vLLM gives those the same root.

    in_doubt: what to say where a server does not tell roots.
    """
    if entry is other:
        return True
    if entry["root"] is None or other["root"] is None:
        return in_doubt
    return entry["root"] == other["root"]


def _current(name: str) -> ServerRecord | None:
    return records.read(name) or next(
        (record for record in records.shared() if record.name == name), None
    )


def another_model(url: str, has: str, asked: str) -> WorkshopError:
    """Say that a server has another model than is asked for."""
    said = f"{url} serves {has}, not {asked or 'a model'}."
    return WorkshopError(
        said,
        f"Give --model {has}, or the address of the right server. All answers so far are kept.",
    )


def answered_as_another(url: str, answered: str, model: str) -> WorkshopError:
    """Say that an answer names another model than was asked for."""
    said = f"{url} serves {answered}, not {model}: an answer says so."
    remedy = f"If {answered} is the same model by another name, add --accept-model {answered}; else give the address of "
    return WorkshopError(said, f"{remedy}the right server. All answers so far are kept.")

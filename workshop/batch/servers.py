"""One server of a batch: where it is, whether it answers, how much it may have at once, and what it says of itself."""

import asyncio
import os
import re
import resource
import time
from dataclasses import dataclass

import aiohttp
from yarl import URL

from workshop.batch.rows import CHAT, COMPLETIONS
from workshop.engine import metrics
from workshop.engine.http import LARGEST_BYTES
from workshop.errors import WorkshopError
from workshop.launch import records
from workshop.launch.records import ServerRecord
from workshop.use import reach, received
from workshop.use.strict_json import Malformed

FIRST_LIMIT, LARGEST_LIMIT, SMALLEST_LIMIT = 32, 1024, 4  # requests at once
READ_AGAIN_S = 10.0  # between two looks at the record of a server that is away
POLL_S, QUICK_POLL_S = 1.0, 0.4  # a look costs the server some 10 ms: often only while the pace is sought
AWAY = (aiohttp.ClientError, TimeoutError, OSError)  # what a server that does not answer raises
KNOWN = "`workshop servers` lists those known here; `workshop serve --background` starts one."
SPARE_FILES = 200  # what a run has open beside its connections
KEEP_ALIVE_S = 3.0  # uvicorn closes idle connections after 5 s; reusing one as it closes loses a request
_NAMES = "num_requests_running|num_requests_waiting|kv_cache_usage_perc|gpu_cache_usage_perc|num_preemptions"
_LINES = re.compile(f"^vllm:(?:{_NAMES}).*$", re.MULTILINE)  # five lines of 400


@dataclass
class Pace:
    """How many requests at once, found by what the server says of itself.

    Doubles while the server takes in all that it is sent, then grows slowly; keeps a short queue waiting, so that the
    engine never lacks work, and no more. Preempted requests are computed twice: then it backs off.
    """

    limit: int = FIRST_LIMIT
    fixed: bool = False
    doubling: bool = True
    best_rows_per_s: float = 0.0

    def by_metrics(self, in_flight: int, running: int, waiting: int, kv_cache_usage: float, preempted: float) -> None:
        """Adjust after one look at /metrics; `preempted` counts since the look before."""
        if self.fixed:
            return
        queue = max(4, running // 8)
        if preempted and kv_cache_usage > 0.5:
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 4 // 5), False
        elif waiting > 2 * queue:
            self.limit, self.doubling = max(SMALLEST_LIMIT, min(self.limit, in_flight) - (waiting - queue)), False
        elif waiting <= queue and in_flight >= self.limit * 0.9 and kv_cache_usage < 0.95:
            self._grow()

    def by_rate(self, in_flight: int, rows_per_s: float) -> None:
        """Adjust where there are no metrics: more, as long as more comes back."""
        if self.fixed or in_flight < self.limit * 0.9:
            return
        if rows_per_s > 1.1 * self.best_rows_per_s:
            self.best_rows_per_s = rows_per_s
            self._grow()

    def refused(self) -> None:
        """The server said 429: it wants less."""
        if not self.fixed:
            self.limit, self.doubling = max(SMALLEST_LIMIT, self.limit * 3 // 4), False

    def _grow(self) -> None:
        self.limit = min(LARGEST_LIMIT, self.limit * 2 if self.doubling else self.limit + max(1, self.limit // 16))


class KeyRefused(WorkshopError):
    """401 or 403."""


class Server:
    """A server that the batch sends to. `url` ends in /v1.

    Its record is read again when it is away or refuses the key, for it may have been started anew; there is none of an
    address that the user gave, nor where the key is WORKSHOP_API_KEY.
    """

    def __init__(self, url: str, api_key: str, concurrency: int | None = None, record: ServerRecord | None = None):
        self.record, self.proxy, self.read_at = record, None, 0.0
        self.session: aiohttp.ClientSession | None = None
        self._aim(url, api_key)
        self.pace = Pace(concurrency, fixed=True, doubling=False) if concurrency else Pace()
        self.in_flight = self.answered = 0
        self.up, self.down_since = asyncio.Event(), None
        self.heard, self.tasks = time.monotonic(), set()  # when it last said anything; the tasks that send to it
        self.look: metrics.Metrics | None = None

    def _aim(self, url: str, api_key: str) -> None:
        self.root, self.api_key = url.rstrip("/").removesuffix("/v1"), api_key
        self.url = f"{self.root}/v1"
        self.urls = {path: URL(self.root + path, encoded=True) for path in (COMPLETIONS, CHAT)}
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.headers = {"Content-Type": "application/json", "User-Agent": "workshop-batch", **key}

    def connect(self, read_timeout_s: float) -> None:
        """Open the session; call it inside the event loop."""
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=300),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=read_timeout_s, sock_connect=10),
        )

    def post(self, path: str, headers: dict | None = None, **body):
        """POST to a path beside /v1 with the key of now, which no redirect takes elsewhere; an async context."""
        headers = {**self.headers, **(headers or {})}
        return self.session.post(self.urls[path], headers=headers, proxy=self.proxy, allow_redirects=False, **body)

    async def get(self, path: str, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """GET a path beside /v1; (status, body). Raises AWAY, or WorkshopError: it leads elsewhere."""
        options = {"headers": self.headers, "proxy": self.proxy, "timeout": aiohttp.ClientTimeout(total=timeout_s)}
        async with self.session.get(self.root + path, allow_redirects=False, **options) as answer:
            if error := reach.redirected(self.root + path, answer.status, answer.headers.get("Location")):
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
        self.read_at = time.monotonic()
        try:
            now = await asyncio.to_thread(_current, self.record.name)
        except WorkshopError:
            now = None
        if now is None or now.state == "failed":
            return None
        changed = (now.url.rstrip("/"), now.api_key) != (self.url, self.api_key)
        self._aim(now.url, now.api_key)
        return changed

    async def models(self) -> list[dict]:
        """Return what it serves. Raises AWAY, or WorkshopError: it refuses the key, or is no server of this kind."""
        status, raw = await self.get("/v1/models")
        if status in (401, 403):
            raise self.key_refused()
        if status == 429 or status >= 500:
            raise aiohttp.ClientError(f"it answers {status}")
        try:
            return received.models(raw)
        except Malformed as bad:
            said = f"{self.url}/models answers {status} with {bad}."
            raise WorkshopError(said, "Give the address of a vLLM server, which ends in /v1.") from None

    async def check(self, model: str) -> dict:
        """Return the entry of the model that it is to answer as ('': the only one that it has)."""
        found = await self.models()
        names = [entry["id"] for entry in found]
        if not model and len(found) > 1:
            raise WorkshopError(f"{self.url} serves several models: {', '.join(names)}.", "Choose one with --model.")
        if not found or (model and model not in names):
            raise another_model(self.url, ", ".join(names) or "nothing", model)
        return found[names.index(model)] if model else found[0]

    async def version(self) -> str | None:
        try:
            status, raw = await self.get("/version")
            told = received.body(raw).get("version") if status == 200 else None
            return told if isinstance(told, str) else None
        except (*AWAY, Malformed, WorkshopError):
            return None

    async def watch(self, model: str) -> None:
        """Look at the server as long as the batch runs: adjust the pace, and see when it is back after a fall."""
        before, at, has_metrics = self.answered, time.monotonic(), True
        while True:
            await asyncio.sleep(QUICK_POLL_S if self.pace.doubling else POLL_S)
            if not self.up.is_set():
                await self._see_whether_it_is_back(model)
                continue
            look = await self.metrics_now() if has_metrics else None
            has_metrics = has_metrics and look is not False
            now, done = time.monotonic(), self.answered
            if isinstance(look, metrics.Metrics):
                self._take(look)
            elif not has_metrics and done > before:
                self.pace.by_rate(self.in_flight, (done - before) / (now - at))
            heard = isinstance(look, metrics.Metrics) or done > before or not self.in_flight
            if heard or (not has_metrics and await self.alive()):
                self.heard = time.monotonic()
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
            await self.check(model)
        except AWAY:
            if time.monotonic() - self.read_at > READ_AGAIN_S:  # it may be back under another address
                await self.read_again()
            return
        except KeyRefused:
            if await self.read_again() is False:
                raise
            return
        self.rise()

    def rise(self) -> None:
        """It answers: send to it."""
        self.down_since, self.heard = None, time.monotonic()
        self.up.set()

    def fell(self) -> None:
        """Send nothing more until it answers again."""
        if self.up.is_set():
            self.up.clear()
            self.down_since, self.look = time.monotonic(), None

    async def alive(self) -> bool:
        try:
            await self.get("/v1/models")
            return True
        except AWAY:
            return False

    def key_refused(self) -> KeyRefused:
        if self.record is None and os.environ.get("WORKSHOP_API_KEY"):
            said = f"{self.url} refuses the key that WORKSHOP_API_KEY holds."
            return KeyRefused(said, "Set it to the server's key; where the server has a record here, unset it.")
        return KeyRefused(f"{self.url} refuses the key.", "Set WORKSHOP_API_KEY to the server's key.")


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files to so many more and a few, as far as the system lets it."""
    wanted, (soft, hard) = len(os.listdir("/dev/fd")) + count + SPARE_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))


def find(urls: tuple[str, ...], concurrency: int | None = None, name: str | None = None) -> list[Server]:
    """Return the servers at these addresses, by this user's own records where they have one; without, connect(name)'s."""
    if not urls:
        return [_of(reach.find(name), concurrency)]
    found = {}
    for url in urls:
        given = reach.given(url, "--url")
        same = given.url.replace("//localhost:", "//127.0.0.1:")
        own = next((record for record in reversed(records.own()) if record.url.rstrip("/") == same), given)
        found[given.url] = _of(own, concurrency, given.api_key)
    return list(found.values())


def _of(record: ServerRecord, concurrency: int | None, api_key: str = "") -> Server:
    """Return the server of a record; `api_key` counts more than the record's, which is then not read again."""
    if record.where == "given" or api_key:
        server = Server(record.url, api_key or record.api_key, concurrency)
        server.proxy = reach.proxy_to(server.url) if record.where == "given" else None
        return server
    return Server(record.url, record.api_key, concurrency, record)


def _current(name: str) -> ServerRecord | None:
    return records.read(name) or next((record for record in records.shared() if record.name == name), None)


def another_model(url: str, has: str, asked: str) -> WorkshopError:
    said = f"{url} serves {has}, not {asked or 'a model'}."
    return WorkshopError(said, f"Give --model {has}, or the address of the right server. All answers so far are kept.")

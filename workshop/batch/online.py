"""`workshop.batch.run`: each row of a file is answered once, whatever process or server dies."""

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import uvloop

from workshop.batch.progress import Progress, Summary
from workshop.batch.read.prepare import Work
from workshop.batch.send import servers
from workshop.batch.send.attempts import Limits
from workshop.batch.send.clock import clock
from workshop.batch.send.pace import LARGEST_LIMIT
from workshop.batch.send.sending import Sender
from workshop.batch.session import REPORT_S, Ledger, Session
from workshop.client import reach, transport
from workshop.errors import BadInput, WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord

FIRST_TIMEOUT_S = 5.0  # for a server to say what it serves; doubles while it is busy
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0  # between two questions to a busy server
WAITING_HELPS = (servers.ServerBusy, TimeoutError)


class Batch(Session):
    """One run; `run()` is what most people call.

    `stop()` may be called from any thread or signal handler.

    url: servers, each ending in /v1; by default the one that connect(name) finds.
    name: of a server that `workshop servers` lists, where several run.
    accept_model: other names of the model, under which a server may answer (a proxy's, an alias).
    limits: how long it tries.
    **options: those of `Session`.

    Raises BadInput: a server's address and its name are both given; else as `Session` does.
    """

    def __init__(
        self,
        input,
        output,
        *,
        url: str | tuple[str, ...] = (),
        name: str | None = None,
        accept_model: str | tuple[str, ...] = (),
        limits: Limits | None = None,
        **options,
    ):
        super().__init__(input, output, **options)
        self.urls = _as_tuple(url)
        if self.urls and name is not None:
            raise BadInput(
                "A server's address and its name are both given.", "Give one of the two."
            )
        self.server_name = name
        self.limits = limits or Limits()
        self.accepted = _as_tuple(accept_model)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: Sender | None = None

    def stop(self) -> None:
        """Send nothing more, and give what is in flight the grace of `limits` to end."""
        super().stop()
        if self._loop and self._sender:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._sender.stop)

    def _run(self) -> None:
        # On uvloop a request costs half as much.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
            self._loop = loop.get_loop()
            loop.run(self._answer())

    async def _answer(self) -> None:
        """Connect to the servers, and answer the rows."""
        fleet = find_servers(self.urls, self.concurrency, self.server_name, self.accepted)
        transport.allow_connections(len(fleet) * (self.concurrency or LARGEST_LIMIT))
        for server in fleet:
            server.connect(self.limits.read_timeout_s)
        try:
            entry = await self._meet(fleet)
            names = frozenset().union(*(server.names for server in fleet))
            # --model sends all rows to that model, whatever they name
            named_model = "" if self.model else entry["id"]
            with self.prepared(named_model, names) as work:
                await self._send(work, fleet, entry)
        finally:
            for server in fleet:
                await server.close()

    async def _meet(self, fleet: list[servers.Server]) -> dict:
        """Return the entry of the model in /v1/models, of the first server that answers.

        Others may come back later. If all are only busy, ask again until the patience of `limits`
        is over.

        Raises WorkshopError: no server answers.
        """
        began = clock.now()
        timeout_s = FIRST_TIMEOUT_S
        pause_s = FIRST_PAUSE_S
        while True:
            entry, errors = await self._ask_all(fleet, timeout_s)
            if entry is not None:
                return entry
            left_s = self.limits.patience_s - (clock.now() - began)
            if left_s <= 0 or not any(isinstance(error, WAITING_HELPS) for error in errors):
                raise _nobody(fleet, errors)
            await self._wait(min(pause_s, left_s), fleet, errors)
            timeout_s = max(FIRST_TIMEOUT_S, min(2 * timeout_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _ask_all(
        self, fleet: list[servers.Server], timeout_s: float
    ) -> tuple[dict | None, list[Exception]]:
        """Return what the first server that answers serves, and the errors of those that do not."""
        first_entry = None
        errors = []
        model = self.model or ""  # after the first answer, the other servers must have the same
        for server in fleet:
            try:
                entry = await server.check(model, timeout_s)
            except servers.AWAY as error:
                errors.append(error)
                server.down_since = clock.now()
                continue
            if first_entry is None:
                first_entry = entry
                model = self.model or entry["id"]
            server.rise()
        return first_entry, errors

    async def _wait(
        self, seconds: float, fleet: list[servers.Server], errors: list[Exception]
    ) -> None:
        """Wait before the servers are asked again. Raises StillReading: the run is told to stop."""
        message = f"waiting for {_urls_with_errors(fleet, errors)}"
        self.report(Progress(0, 0, 0, 0, 0.0, 0.0, 0.0, 0, 0, message=message))
        until = clock.now() + seconds
        while clock.now() < until:
            self.source.poll()
            await asyncio.sleep(0.1)

    async def _send(self, work: Work, fleet: list[servers.Server], entry: dict) -> None:
        """Send the rows that are left, and report; `entry` is the model's entry in /v1/models."""
        facts = {
            "model": entry["id"],
            "model_path": entry.get("root"),
            "max_model_len": entry.get("max_model_len"),
            "vllm_version": await fleet[0].version(),
            "urls": [server.url for server in fleet],
        }
        with self.recorded(work, facts, [server.pace for server in fleet]) as ledger:
            if all(server.is_local for server in fleet):
                ledger.count_energy()
            self._sender = Sender(ledger, fleet, entry["id"], self.limits)
            if self.stopping:
                self._sender.stop()
            reporting = asyncio.create_task(self._report_regularly(ledger, fleet))
            try:
                await self._sender.run()
            finally:
                reporting.cancel()

    async def _report_regularly(self, ledger: Ledger, fleet: list[servers.Server]) -> None:
        """Report the progress until cancelled, with the sums of what the servers' metrics say."""
        while True:
            self.report(ledger.look(**_load(fleet)))
            await asyncio.sleep(REPORT_S)


def find_servers(
    urls: tuple[str, ...], concurrency: int | None, name: str | None, accepted: tuple[str, ...]
) -> list[servers.Server]:
    """Return the servers at these addresses, each with this user's own record of it, if there is one.

    Without addresses, return the server that `connect(name)` finds.

    Args:
        urls: addresses that end in /v1.
        concurrency: requests at once; None: it is found.
        name: of a record, where `urls` is empty.
        accepted: names of the model that answers may give, besides those that a server lists.
    """
    if not urls:
        return [_of(reach.find(name), concurrency, accepted)]
    by_url = {}
    for url in urls:
        typed_record = reach.record_of_address(url, "--url")
        same_url = typed_record.url.replace("//localhost:", "//127.0.0.1:")
        record = typed_record
        for own_record in reversed(records.own()):
            if own_record.url.rstrip("/") == same_url:
                record = own_record
                break
        by_url[typed_record.url] = _of(record, concurrency, accepted, typed_record.api_key)
    return list(by_url.values())


def _of(
    record: ServerRecord, concurrency: int | None, accepted: tuple[str, ...], api_key: str = ""
) -> servers.Server:
    """Return a record's server; an `api_key` replaces the record, which is not read again then."""
    if record.where != "given" and not api_key:
        return servers.Server(record.url, record.api_key, concurrency, record, accepted)
    server = servers.Server(record.url, api_key or record.api_key, concurrency, accepted=accepted)
    if record.where == "given":
        server.proxy = transport.proxy_to(server.url)
    return server


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return several names as a tuple, and a single one as a tuple of one."""
    if isinstance(names, str):
        return (names,)
    return tuple(names)


def _load(fleet: list[servers.Server]) -> dict:
    """Return the fields of a Progress that tell how busy the servers are; None without metrics."""
    in_flight = limit = running = waiting = 0
    usages = []
    problems = []
    for server in fleet:
        in_flight += server.in_flight
        limit += server.pace.limit
        if server.look:
            running += server.look.requests_running or 0
            waiting += server.look.requests_waiting or 0
            usages.append(server.look.kv_cache_usage or 0.0)
        problem, _ = server.trouble()
        if problem:
            problems.append(f"waiting: {problem}")
    return {
        "in_flight": in_flight,
        "limit": limit,
        "running": running if usages else None,
        "waiting": waiting if usages else None,
        "kv_cache_usage": max(usages, default=None),
        "message": "; ".join(problems),
    }


def _urls_with_errors(fleet: list[servers.Server], errors: list[Exception]) -> str:
    """Return the servers that did not answer, each with its error."""
    texts = []
    for server, error in zip(fleet, errors, strict=True):
        texts.append(f"{server.url} ({str(error) or type(error).__name__})")
    return ", ".join(texts)


def _nobody(fleet: list[servers.Server], errors: list[Exception]) -> WorkshopError:
    """Return the error that no server answers, with the remedy for the first cause that has one."""
    remedy = ""
    for server, error in zip(fleet, errors, strict=True):
        remedy = remedy or transport.remedy_for(error, server.url)
    if not remedy:
        is_ours = any(server.record for server in fleet)
        remedy = servers.KNOWN if is_ours else reach.CHECK_ADDRESS
    return WorkshopError(f"No server answers: {_urls_with_errors(fleet, errors)}.", remedy)


def run(input: str | Path, output: str | Path, **options) -> Summary:
    """Answer every row of `input` once, into `output`; run it again and it goes on.

        workshop.batch.run("prompts.json", "answers.jsonl", max_tokens=100, temperature=1.0, samples=10)

    Options are those of `Batch`. In a notebook the kernel's stop button ends it in order: what has
    come is kept.
    """
    batch = Batch(input, output, **options)
    # a notebook's main thread has an event loop already
    with ThreadPoolExecutor(1, "workshop-batch") as thread:
        running = thread.submit(batch.run)
        while not running.done():
            try:
                wait([running], 0.2)
            except KeyboardInterrupt:
                batch.stop()
    return running.result()

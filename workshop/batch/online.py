"""`workshop.batch.run`: every row of a file answered exactly once, by one server or several, whatever dies."""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import uvloop

from workshop.batch import servers
from workshop.batch.prepare import Work
from workshop.batch.progress import Summary
from workshop.batch.send import Limits, Sender
from workshop.batch.session import REPORT_S, Session
from workshop.errors import WorkshopError


class Batch(Session):
    """One run; `run()` is what most people call. `stop()` may be called from any thread or signal handler.

    url: servers, each ending in /v1; by default the one that connect() finds.
    limits: how long it tries.
    **options: those of `Session`.
    """

    def __init__(self, input, output, *, url: str | tuple[str, ...] = (), limits: Limits | None = None, **options):
        super().__init__(input, output, **options)
        self.urls, self.limits = (url,) if isinstance(url, str) else tuple(url), limits or Limits()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: Sender | None = None

    def stop(self) -> None:
        super().stop()
        if self._loop and self._sender:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._sender.stop)

    def _run(self) -> Summary:
        with runner() as loop:
            self._loop = loop.get_loop()
            return loop.run(self._answered())

    async def _answered(self) -> Summary:
        fleet = servers.find(self.urls, self.concurrency)
        servers.allow_connections(len(fleet) * (self.concurrency or servers.LARGEST_LIMIT))
        for server in fleet:
            server.connect(self.limits.read_timeout_s)
        try:
            entry = await self._meet(fleet)
            with self.prepared(entry["id"], bool(self.model)) as work:
                await self._send(work, fleet, entry)
        finally:
            for server in fleet:
                await server.session.close()
        return self.summary

    async def _meet(self, fleet: list[servers.Server]) -> dict:
        """Ask every server what it serves; those that are away now may come back, but one must be there."""
        found, away = None, []
        for server in fleet:
            try:
                entry = await server.check(self.model or (found["id"] if found else ""))
            except servers.AWAY as error:
                away.append(f"{server.url} ({str(error) or type(error).__name__})")
                server.down_since = time.monotonic()
                continue
            found = found or entry
            server.rise()
        if found is None:
            raise WorkshopError(f"No server answers: {', '.join(away)}.", servers.KNOWN)
        return found

    async def _send(self, work: Work, fleet: list[servers.Server], entry: dict) -> None:
        facts = {"model": entry["id"], "model_path": entry.get("root"), "max_model_len": entry.get("max_model_len")}
        facts |= {"vllm_version": await fleet[0].version(), "urls": [server.url for server in fleet]}
        with self.recorded(work, facts, [server.pace for server in fleet]) as ledger:
            self._sender = Sender(ledger, fleet, entry["id"], self.limits)
            if self.stopping:
                self._sender.stop()
            reporting = asyncio.create_task(self._report_regularly(fleet))
            try:
                await self._sender.run()
            finally:
                reporting.cancel()

    async def _report_regularly(self, fleet: list[servers.Server]) -> None:
        while True:
            looks = [server.look for server in fleet if server.look]
            away = [server.url for server in fleet if not server.up.is_set()]
            self.report(
                self._sender.ledger.look(
                    in_flight=sum(server.in_flight for server in fleet),
                    limit=sum(server.pace.limit for server in fleet),
                    running=sum(look.requests_running or 0 for look in looks) if looks else None,
                    waiting=sum(look.requests_waiting or 0 for look in looks) if looks else None,
                    kv_cache_usage=max((look.kv_cache_usage or 0.0 for look in looks), default=None),
                    message=f"waiting for {', '.join(away)}" if away else "",
                )
            )
            await asyncio.sleep(REPORT_S)


def run(input: str | Path, output: str | Path, **options) -> Summary:
    """Answer every row of `input` once, into `output`; run it again and it goes on. Options are those of `Batch`.

        workshop.batch.run("prompts.json", "answers.jsonl", max_tokens=100, temperature=1.0, samples=10)

    In a notebook the kernel's stop button ends it in order: what has come is kept.
    """
    batch = Batch(input, output, **options)
    with ThreadPoolExecutor(1, "workshop-batch") as thread:  # a notebook's main thread has an event loop already
        running = thread.submit(batch.run)
        while not running.done():
            try:
                wait([running], 0.2)
            except KeyboardInterrupt:
                batch.stop()
    return running.result()


def runner() -> asyncio.Runner:
    """Return a runner with uvloop's event loop, on which a request costs half as much."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)

"""Sends the rows: bounded in flight, never a barrier, each row again where that can help."""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import aiohttp

from workshop.batch import servers
from workshop.batch.rows import Row
from workshop.batch.servers import Server
from workshop.batch.session import Ledger
from workshop.batch.store import COMMIT_S
from workshop.errors import WorkshopError
from workshop.use import reach, received
from workshop.use.strict_json import Malformed

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})  # asking again can help
BUSY = frozenset({429, 503})  # … and the row is not at fault
CUT = frozenset({None, "abort", "error"})  # finish reasons of answers that did not end


@dataclass(frozen=True)
class Limits:
    """How long the sender tries; the defaults suit a server on a cluster."""

    attempts: int = 6  # of a row that the server answers with an error
    busy_attempts: int = 30  # of a row that meets 429 or 503
    deaths: int = 10  # of servers while they worked on a row
    backoff_s: float = 0.5  # before the second attempt; doubles, up to longest_backoff_s
    longest_backoff_s: float = 30.0
    patience_s: float = 120.0  # for a server that is away
    read_timeout_s: float = 3600.0  # for one answer
    grace_s: float = 5.0  # for what is in flight when the run is told to stop


class Cut(Exception):
    """An answer that is not whole."""


@dataclass(slots=True)
class Attempt:
    """A row on its way, and what became of it so far."""

    row: Row
    errors: int = 0
    busy: int = 0
    deaths: int = 0


class Sender:
    """Sends the rows that are left to the servers, and gives answers and errors to the ledger."""

    def __init__(self, ledger: Ledger, fleet: list[Server], model: str, limits: Limits):
        self.ledger, self.fleet, self.model, self.limits = ledger, fleet, model, limits
        self.fatal: Exception | None = None
        self.stopping = False
        self._rows = ledger.work.rows()
        self._exhausted = False
        self._returned: deque[Attempt] = deque()  # to be asked again now
        self._delayed = 0  # to be asked again later
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Send until everything is answered, or `stop` is called.

        Raises WorkshopError: the run cannot go on: servers gone, another model, key refused, disk full.
        """
        helpers = [asyncio.create_task(self._ending(server.watch, self.model)) for server in self.fleet]
        helpers.append(asyncio.create_task(self._ending(self._commit_regularly)))
        try:
            while not self.fatal and not self.stopping:
                self._check_fleet()
                for server in self.fleet:
                    self._staff(server)
                if not self._workers() and not self._delayed and not self._returned and self._exhausted:
                    break
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), 0.1)
            if self._workers() and self.stopping and not self.fatal:
                await asyncio.wait(self._workers(), timeout=self.limits.grace_s)
        finally:
            ending = [*self._workers(), *helpers]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
        if self.fatal:
            raise self.fatal

    def stop(self) -> None:
        """Send nothing more; what is in flight has `grace_s` to end."""
        self.stopping = True
        self._wake.set()

    async def _ending(self, work: Callable[..., Awaitable], *given: object) -> None:
        """Do a part of the work; what it raises ends the run."""
        try:
            await work(*given)
        except Exception as error:
            self.fatal = self.fatal or error
            self._wake.set()

    def _check_fleet(self) -> None:
        now, patience_s = time.monotonic(), self.limits.patience_s
        for server in self.fleet:
            if server.up.is_set() and server.in_flight and now - server.heard > patience_s:
                server.fell()  # it holds its connections, and answers nothing: frozen, or cut off
                server.down_since = server.heard
                for task in server.tasks:
                    task.cancel()
        gone = [server for server in self.fleet if server.down_since and now - server.down_since > patience_s]
        if len(gone) == len(self.fleet):
            remedy = "Start the server again, and run the same command again: it goes on where it stopped."
            raise WorkshopError(f"{gone[0].url} has not answered for {patience_s:.0f} s.", remedy)

    def _workers(self) -> list[asyncio.Task]:
        return [task for server in self.fleet for task in server.tasks]

    def _staff(self, server: Server) -> None:
        """Start workers up to the server's pace, as long as there is work for them."""
        while server.up.is_set() and len(server.tasks) < server.pace.limit and (self._returned or self._may_read()):
            task = asyncio.create_task(self._ending(self._work, server))
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
            task.add_done_callback(lambda _: self._wake.set())
            if len(server.tasks) > server.in_flight + 64:  # let those start first
                self._wake.set()
                return

    def _may_read(self) -> bool:
        """A server that fails every row must not fill the memory with rows to be asked again."""
        return not self._exhausted and self._delayed <= 4 * sum(server.pace.limit for server in self.fleet)

    async def _work(self, server: Server) -> None:
        while not (self.stopping or self.fatal) and server.up.is_set() and len(server.tasks) <= server.pace.limit:
            attempt = await self._next()
            if attempt is None:
                return
            server.in_flight += 1
            try:
                await self._ask(attempt, server)
            except asyncio.CancelledError:
                self._returned.append(attempt)
                raise
            finally:
                server.in_flight -= 1

    async def _next(self) -> Attempt | None:
        if self._returned:
            return self._returned.popleft()
        if not self._may_read():
            return None
        for row in self._rows:
            if row is not None:
                return Attempt(row)
            await asyncio.sleep(0)
        self._exhausted = True
        return None

    async def _ask(self, attempt: Attempt, server: Server) -> None:
        row, asked = attempt.row, (server.url, server.api_key)
        try:
            async with server.post(row.url, data=row.payload(self.model)) as answer:
                raw = await answer.read()
                status, headers = answer.status, answer.headers
            if status == 200:
                return self._keep(row, server, raw)
        except (aiohttp.ClientPayloadError, Cut) as error:
            return self._again(attempt, "cut_answer", f"the answer was cut: {error}"[:500])
        except Malformed as bad:
            return self._again(attempt, "bad_answer", f"the server answers with {bad}"[:500])
        except servers.AWAY as error:
            return await self._lost(attempt, server, error)
        if status in (401, 403):
            return await self._key_refused(attempt, server, asked)
        if error := reach.redirected(server.url, status, headers.get("Location")):
            raise error
        self._refused(attempt, server, status, raw, headers.get("Retry-After"))

    async def _key_refused(self, attempt: Attempt, server: Server, asked: tuple[str, str]) -> None:
        """Ask again if the server was started anew since: its record has another key, or is not there for now."""
        if asked == (server.url, server.api_key):
            changed = await server.read_again()  # meanwhile another row may have done so
            if changed is None:
                server.fell()
            elif asked == (server.url, server.api_key):
                raise server.key_refused()
        self._returned.append(attempt)

    def _keep(self, row: Row, server: Server, raw: bytes) -> None:
        answer = received.answer(raw, row.samples)
        if answer.model not in (None, self.model):
            raise servers.another_model(server.url, answer.model, self.model)
        if any(choice.get("finish_reason") in CUT for choice in answer.choices):
            raise Cut("a choice has no end")
        self.ledger.keep(row, raw, answer.prompt_tokens, answer.completion_tokens)
        server.answered += 1
        server.heard = time.monotonic()

    def _refused(self, attempt: Attempt, server: Server, status: int, raw: bytes, wait: str | None) -> None:
        said = received.said(raw)[:2000]
        if status == 404 and "does not exist" in said:
            raise WorkshopError(f"{server.url} says: {said}", "Give --model, or the right server.")
        if status not in AGAIN:
            return self.ledger.refuse(attempt.row, status, "refused", said)
        if status in BUSY:
            server.pace.refused()
        self._again(attempt, "server_error", said, status, _seconds(wait))

    def _again(
        self, attempt: Attempt, code: str, said: str, status: int | None = None, wait_s: float | None = None
    ) -> None:
        attempt.busy += status in BUSY
        attempt.errors += status not in BUSY
        if attempt.errors >= self.limits.attempts or attempt.busy >= self.limits.busy_attempts:
            tries = attempt.errors + attempt.busy
            return self.ledger.refuse(attempt.row, status, code, f"{said} ({tries} attempts)")
        doubled = self.limits.backoff_s * 2 ** min(10, attempt.errors + attempt.busy - 1)
        pause = wait_s or min(self.limits.longest_backoff_s, doubled) * random.uniform(0.5, 1.0)
        self._delayed += 1
        asyncio.get_running_loop().call_later(pause, self._return, attempt)

    def _return(self, attempt: Attempt) -> None:
        self._delayed -= 1
        self._returned.append(attempt)
        self._wake.set()

    async def _lost(self, attempt: Attempt, server: Server, error: Exception) -> None:
        """The connection broke: a closed one that was used again, a server that died, or one that died of this row."""
        reused = isinstance(error, aiohttp.ServerDisconnectedError) and not attempt.deaths
        attempt.deaths += 1
        if attempt.deaths >= self.limits.deaths:
            kind = f"{type(error).__name__}: {error}".removesuffix(": ")
            said = f"the connection broke {attempt.deaths} times ({kind})"
            return self.ledger.refuse(attempt.row, None, "connection", said)
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
            return self._again(attempt, "timeout", f"no answer in {self.limits.read_timeout_s:.0f} s")
        self._returned.append(attempt)
        if not reused and not await server.alive():
            server.fell()
        elif attempt.deaths > 1:
            await asyncio.sleep(self.limits.backoff_s * attempt.deaths)

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            self.ledger.commit()


def _seconds(text: str | None) -> float | None:
    try:
        return min(300.0, max(0.0, float(text))) if text else None
    except ValueError:
        return None  # a date: the usual pause does

"""Sends the rows to the servers: a limited number at once, no barriers, and again if useful."""

import asyncio
import contextlib
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp

from workshop.batch.keep.cut_answers import UNFINISHED
from workshop.batch.keep.store import COMMIT_S
from workshop.batch.read.rows import EMBEDDINGS, LEAST_BYTES, Row
from workshop.batch.send import retries, servers
from workshop.batch.send.clock import clock
from workshop.batch.send.servers import Server
from workshop.batch.session import Ledger
from workshop.client import received, transport
from workshop.client.answer_ids import MARK
from workshop.client.strict_json import Malformed
from workshop.errors import WorkshopError, plain


@dataclass(frozen=True)
class Limits:
    """The limits of the sender's attempts; the defaults suit a server on a cluster."""

    attempts: int = 6  # of a row that the server answers with an error
    deaths: int = 10  # of servers while they worked on a row
    backoff_s: float = 0.5  # before the second attempt; doubles, up to longest_backoff_s
    longest_backoff_s: float = 30.0
    patience_s: float = 120.0  # for a server that is away, hangs, or refuses every request
    read_timeout_s: float = 3600.0  # for one answer
    grace_s: float = 5.0  # for what is in flight when the run is told to stop


class Cut(Exception):
    """The answer is not complete."""


class Foreign(Exception):
    """The answer belongs to another request."""


@dataclass(slots=True)
class Attempt:
    """A row that is being sent, with the counts of what went wrong so far."""

    row: Row
    errors: int = 0
    deaths: int = 0
    requests_sent: int = 0
    fresh: bool = False  # over a new connection, so that nothing but its own answer can come
    sent_at: float = 0.0
    failed_first_at: float | None = None  # in an outage

    def request_id(self) -> str:
        """Return the id of one request: the row's key, and which request of the row it is.

        Some versions of vLLM refuse an id that another request has.
        """
        self.requests_sent += 1
        return f"{self.row.key.hex()}{MARK}-{self.requests_sent}"


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

        Raises WorkshopError: the run cannot go on: servers gone, another model, key refused, disk
        full.
        """
        helpers = []
        for server in self.fleet:
            helpers.append(
                asyncio.create_task(self._ending(server.watch, self.model, self.limits.patience_s))
            )
        helpers.append(asyncio.create_task(self._ending(self._commit_regularly)))
        try:
            while not self.fatal and not self.stopping:
                self._check_fleet()
                for server in self.fleet:
                    self._staff(server)
                waiting = self._delayed or self._returned
                if self._exhausted and not waiting and not self._workers():
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

    async def _ending(self, work: Callable[..., Awaitable], *arguments: object) -> None:
        """Do a part of the work. An exception of it ends the run."""
        try:
            await work(*arguments)
        except Exception as error:
            self.fatal = self.fatal or error
            self._wake.set()

    def _check_fleet(self) -> None:
        """Raise WorkshopError if no server has answered for as long as the run waits."""
        if all(server.away_s > self.limits.patience_s for server in self.fleet):
            problems, remedies = zip(*(server.trouble() for server in self.fleet), strict=True)
            again = "Then run the same command again: it goes on where it stopped."
            raise WorkshopError(f"{'; '.join(problems)}.", f"{remedies[0]} {again}")

    def _workers(self) -> list[asyncio.Task]:
        """Return the tasks that send rows, of all servers."""
        return [task for server in self.fleet for task in server.tasks]

    def _staff(self, server: Server) -> None:
        """Start workers up to the server's pace, as long as there is work for them."""
        while len(server.tasks) < server.takes_rows() and (self._returned or self._may_read()):
            task = asyncio.create_task(self._ending(self._work, server))
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
            task.add_done_callback(lambda _: self._wake.set())
            if len(server.tasks) > server.in_flight + 64:  # let those start first
                self._wake.set()
                return

    def _may_read(self) -> bool:
        """Return True if another row may be read: rows to send again must not fill the memory."""
        if self._exhausted:
            return False
        return self._delayed <= 4 * sum(server.pace.limit for server in self.fleet)

    async def _work(self, server: Server) -> None:
        """Send rows to one server, until none are left or it takes fewer at once."""
        while not (self.stopping or self.fatal) and len(server.tasks) <= server.takes_rows():
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
        """Return the next row to send: first those to be sent again; None if there is none now."""
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
        """Send one row, and decide by the answer: keep it, send the row again, or give it up."""
        row = attempt.row
        address_and_key = (server.url, server.api_key)
        attempt.sent_at = clock.now()
        server.path = row.url
        if server.mixes_answers or not server.ids.name_requests:
            # the answer to another row may wait in a connection that was used before
            attempt.fresh = True
        try:
            async with server.post(
                row.url,
                headers={"X-Request-Id": attempt.request_id()},
                fresh=attempt.fresh,
                data=row.payload(self.model),
            ) as answer:
                server.movement.answered(clock.now())
                status, headers = answer.status, answer.headers
                raw = await self._body(answer, row)
            if retries.is_outage(status, raw):
                return self._outage(attempt, server, status, raw, headers)
            if status == 200:
                return self._keep(attempt, server, raw)
        except Foreign as error:
            if not server.mixes_answers:
                server.mixes_answers = True
                note = (
                    f"{server.url} sent {error}: each row has a connection of its own from now on."
                )
                print(f"! {plain(note)}", file=sys.stderr)
            return self._again(attempt, server, "bad_answer", f"the server answers with {error}")
        except (aiohttp.ClientPayloadError, Cut) as error:
            return self._again(attempt, server, "cut_answer", f"the answer was cut: {error}"[:500])
        except Malformed as bad:
            return self._again(
                attempt, server, "bad_answer", f"the server answers with {bad}"[:500]
            )
        except servers.AWAY as error:
            return await self._lost(attempt, server, error)
        if status in (401, 403):
            return await self._key_refused(attempt, server, address_and_key)
        redirect = transport.redirected(server.url, status, headers.get("Location"))
        if redirect:
            raise redirect
        self._refused(attempt, server, status, raw, headers)

    async def _body(self, answer: aiohttp.ClientResponse, row: Row) -> bytes:
        """Return the body of an answer, or of a refusal.

        Raises Malformed: it is compressed, or larger than any answer to this row.
        """
        encoding = answer.headers.get("Content-Encoding", "").strip()
        if encoding.lower() not in ("", "identity"):
            raise Malformed(f"the Content-Encoding {encoding[:40]!r}, which no request allows")
        body = bytearray()
        limit = LEAST_BYTES
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > limit:
                limit = row.most_bytes(self.ledger.work.max_model_len)
            if len(body) > limit:
                raise Malformed(
                    f"{len(body):,} bytes or more; no answer to this row can have over {limit:,}"
                )
        return bytes(body)

    async def _key_refused(
        self, attempt: Attempt, server: Server, address_and_key: tuple[str, str]
    ) -> None:
        """Send the row again if the server was restarted: its record is new, or missing for now.

        `address_and_key` are those that the request was sent with. Raises KeyRefused: they are
        still the server's.
        """
        if address_and_key == (server.url, server.api_key):
            changed = await server.read_again()  # meanwhile another row may have done so
            if changed is None:
                server.fell()
            elif address_and_key == (server.url, server.api_key):
                raise server.key_refused()
        self._returned.append(attempt)

    def _keep(self, attempt: Attempt, server: Server, raw: bytes) -> None:
        """Give a whole answer to the ledger.

        Raises:
            Malformed, Cut, Foreign: it is not a whole answer to this row, which has to be sent
                again.
            WorkshopError: it is the answer of another model.
        """
        row = attempt.row
        read = received.embeddings if row.url == EMBEDDINGS else received.answer
        answer = read(raw, row.samples)
        if not server.ids.allow(answer.id, row.key.hex()):
            raise Foreign("the answer to another request")
        if answer.model is not None and not server.is_name_of(answer.model, self.model):
            raise servers.answered_as_another(server.url, answer.model, self.model)
        if row.url != EMBEDDINGS:
            for choice in answer.choices:
                if choice.get("finish_reason") in UNFINISHED:
                    raise Cut("a choice has no end")
        self.ledger.keep(row, raw, answer.prompt_tokens, answer.completion_tokens, answer.choices)
        server.answered += 1
        server.pace.answered()
        server.outage.is_over(attempt.sent_at)

    def _outage(
        self, attempt: Attempt, server: Server, status: int, raw: bytes, headers: Mapping[str, str]
    ) -> None:
        """Send a row again that a proxy answered in the place of its server, or that got a 429.

        The row is not at fault, unless the server answers others meanwhile. So it waits as long as
        there is patience. A 429 is never the row's fault.
        """
        message = received.refusal_message(raw)[:200]
        reason = f"{status} ({message})"
        if status == 200:
            reason = f"the server answers with {message}"
        retry_after_s = retries.pause_s(headers)
        server.outage.goes_on(
            status, reason, retry_after_s or 0.0, self.limits.backoff_s, self._longest_rest_s()
        )
        now = clock.now()
        if attempt.failed_first_at is None:
            attempt.failed_first_at = now
        if status in retries.BUSY:
            server.pace.refused()
        else:
            attempt.errors += 1
        backoff_s = min(self._backoff_s(attempt), self._longest_rest_s())
        pause = min(retry_after_s or backoff_s, self.limits.patience_s)
        away_since = server.outage.since or now
        patience_ends = now - away_since + pause > self.limits.patience_s
        is_at_fault = server.outage.answered_what_was_sent_at > attempt.failed_first_at
        if status != 429 and is_at_fault and (self._is_last(attempt) or patience_ends):
            return self._give_up(attempt, status, "server_error", reason)
        self._delay(attempt, pause)

    def _longest_rest_s(self) -> float:
        """Return the longest pause of a server that does not answer itself: several in a patience."""
        return min(self.limits.longest_backoff_s, self.limits.patience_s / 4)

    def _refused(
        self, attempt: Attempt, server: Server, status: int, raw: bytes, headers: Mapping[str, str]
    ) -> None:
        """Refuse a row, or send it again, after the server itself answered with an error.

        Raises WorkshopError: the server does not have the model.
        """
        message = received.refusal_message(raw)[:2000]
        if status == 404 and "does not exist" in message:
            raise WorkshopError(
                f"{server.url} says: {message}", "Give --model, or the right server."
            )
        if status < 500:
            server.outage.is_over(attempt.sent_at)
        if not retries.can_help(status):
            if attempt.fresh:
                return self.ledger.refuse(attempt.row, status, "refused", message)
            # a refusal names no request: another row's may have come a second time
            attempt.fresh = True
            return self._returned.append(attempt)
        self._again(attempt, server, "server_error", message, status, retries.pause_s(headers))

    def _again(
        self,
        attempt: Attempt,
        server: Server,
        code: str,
        reason: str,
        status: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        """Count a failed attempt; send the row again later, or give it up after the last attempt.

        Args:
            code: the kind of error, for the file of errors.
            reason: what happened, for people.
            status: of HTTP; None if there was no answer.
            wait_s: how long the server says to wait; by default as the backoff says.
        """
        attempt.errors += 1
        if server.outage.status == 429:  # it does not refuse every request
            server.outage.is_over(attempt.sent_at)
        if self._is_last(attempt):
            return self._give_up(attempt, status, code, reason)
        self._delay(attempt, wait_s or self._backoff_s(attempt))

    def _is_last(self, attempt: Attempt) -> bool:
        """Return True if the row has had as many attempts as the limits allow."""
        return attempt.errors >= self.limits.attempts

    def _give_up(self, attempt: Attempt, status: int | None, code: str, reason: str) -> None:
        """Write the row to the file of errors."""
        attempts = f"{attempt.requests_sent} attempts"
        self.ledger.refuse(attempt.row, status, code, f"{reason} ({attempts})")

    def _backoff_s(self, attempt: Attempt) -> float:
        """Return the pause before the next attempt: doubled each time, up to half of it random."""
        doubled = self.limits.backoff_s * 2 ** min(10, attempt.requests_sent - 1)
        return min(self.limits.longest_backoff_s, doubled) * random.uniform(0.5, 1.0)

    def _delay(self, attempt: Attempt, pause_s: float) -> None:
        """Send the row again after a pause."""
        self._delayed += 1
        asyncio.get_running_loop().call_later(pause_s, self._return, attempt)

    def _return(self, attempt: Attempt) -> None:
        """Put a delayed row back among those to be sent now."""
        self._delayed -= 1
        self._returned.append(attempt)
        self._wake.set()

    async def _lost(self, attempt: Attempt, server: Server, error: Exception) -> None:
        """Send a row again whose connection broke.

        The server may have closed an idle connection, died, or died of this very row.
        """
        reused = isinstance(error, aiohttp.ServerDisconnectedError) and not attempt.deaths
        attempt.deaths += 1
        if attempt.deaths >= self.limits.deaths:
            kind = f"{type(error).__name__}: {error}".removesuffix(": ")
            reason = f"the connection broke {attempt.deaths} times ({kind})"
            return self.ledger.refuse(attempt.row, None, "connection", reason)
        could_not_connect = isinstance(error, aiohttp.ConnectionTimeoutError)
        if isinstance(error, TimeoutError) and not could_not_connect:
            reason = f"no answer in {self.limits.read_timeout_s:.0f} s"
            return self._again(attempt, server, "timeout", reason)
        self._returned.append(attempt)
        if not reused and not await server.alive():
            server.fell()
        elif attempt.deaths > 1:
            await asyncio.sleep(self.limits.backoff_s * attempt.deaths)

    async def _commit_regularly(self) -> None:
        """Write the new answers to disk every COMMIT_S, until this task is cancelled."""
        while True:
            await asyncio.sleep(COMMIT_S)
            self.ledger.commit()

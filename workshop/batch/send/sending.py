"""Sends the rows to the servers: a limited number at once, no barriers, and again if useful."""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable

import aiohttp

from workshop.batch.keep.store import COMMIT_S
from workshop.batch.read.rows import LEAST_BYTES, InputRow
from workshop.batch.send import retries, servers
from workshop.batch.send.attempts import Attempt, Limits, Queue
from workshop.batch.send.clock import clock
from workshop.batch.send.outcomes import Cut, Foreign, Outcomes
from workshop.batch.send.servers import Server
from workshop.batch.session import Ledger
from workshop.client import transport
from workshop.client.strict_json import Malformed
from workshop.errors import WorkshopError, plain


class Sender:
    """Sends the rows that are left to the servers, and gives answers and errors to the ledger."""

    def __init__(self, ledger: Ledger, fleet: list[Server], model: str, limits: Limits):
        self.ledger = ledger
        self.fleet = fleet
        self.model = model
        self.limits = limits
        self.queue = Queue(ledger.work.rows(), fleet)
        self.outcomes = Outcomes(ledger, self.queue, model, limits)
        self.fatal: Exception | None = None
        self.stopping = False

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
                if self.queue.is_done and not self._workers():
                    break
                self.queue.wake.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.queue.wake.wait(), 0.1)
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
        self.queue.wake.set()

    async def _ending(self, work: Callable[..., Awaitable], *arguments: object) -> None:
        """Do a part of the work. An exception of it ends the run."""
        try:
            await work(*arguments)
        except Exception as error:
            self.fatal = self.fatal or error
            self.queue.wake.set()

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
        while len(server.tasks) < server.takes_rows() and self.queue.has_rows:
            task = asyncio.create_task(self._ending(self._work, server))
            server.tasks.add(task)
            task.add_done_callback(server.tasks.discard)
            task.add_done_callback(lambda _: self.queue.wake.set())
            if len(server.tasks) > server.in_flight + 64:  # let those start first
                self.queue.wake.set()
                return

    async def _work(self, server: Server) -> None:
        """Send rows to one server, until none are left or it takes fewer at once."""
        while not (self.stopping or self.fatal) and len(server.tasks) <= server.takes_rows():
            attempt = await self.queue.next()
            if attempt is None:
                return
            server.in_flight += 1
            try:
                await self._ask(attempt, server)
            except asyncio.CancelledError:
                self.queue.send_again(attempt)
                raise
            finally:
                server.in_flight -= 1

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
                return self.outcomes.outage(attempt, server, status, raw, headers)
            if status == 200:
                return self.outcomes.keep(attempt, server, raw)
        except Foreign as error:
            if not server.mixes_answers:
                server.mixes_answers = True
                note = (
                    f"{server.url} sent {error}: each row has a connection of its own from now on."
                )
                print(f"! {plain(note)}", file=sys.stderr)
            return self.outcomes.again(
                attempt, server, "bad_answer", f"the server answers with {error}"
            )
        except (aiohttp.ClientPayloadError, Cut) as error:
            return self.outcomes.again(
                attempt, server, "cut_answer", f"the answer was cut: {error}"[:500]
            )
        except Malformed as bad:
            return self.outcomes.again(
                attempt, server, "bad_answer", f"the server answers with {bad}"[:500]
            )
        except servers.AWAY as error:
            return await self.outcomes.lost(attempt, server, error)
        if status in (401, 403):
            return await self.outcomes.key_refused(attempt, server, address_and_key)
        redirect = transport.redirected(server.url, status, headers.get("Location"))
        if redirect:
            raise redirect
        self.outcomes.refused(attempt, server, status, raw, headers)

    async def _body(self, answer: aiohttp.ClientResponse, row: InputRow) -> bytes:
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

    async def _commit_regularly(self) -> None:
        """Write the new answers to disk every COMMIT_S, until this task is cancelled."""
        while True:
            await asyncio.sleep(COMMIT_S)
            self.ledger.commit()

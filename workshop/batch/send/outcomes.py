"""Decides what becomes of a row by what a server answered: kept, sent again, or given up."""

import asyncio
from collections.abc import Mapping

import aiohttp

from workshop.batch.keep.cut_answers import UNFINISHED
from workshop.batch.read.rows import EMBEDDINGS
from workshop.batch.send import retries, servers
from workshop.batch.send.attempts import Attempt, Limits, Queue
from workshop.batch.send.clock import clock
from workshop.batch.send.servers import Server
from workshop.batch.session import Ledger
from workshop.client import received
from workshop.errors import WorkshopError


class Cut(Exception):
    """The answer is not complete."""


class Foreign(Exception):
    """The answer belongs to another request."""


class Outcomes:
    """Gives answers and errors to the ledger, and rows that are to be sent again to the queue."""

    def __init__(self, ledger: Ledger, queue: Queue, model: str, limits: Limits):
        self.ledger = ledger
        self.queue = queue
        self.model = model
        self.limits = limits

    def keep(self, attempt: Attempt, server: Server, raw: bytes) -> None:
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

    def outage(
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
            status, reason, retry_after_s or 0.0, self.limits.backoff_s, self.limits.longest_rest_s
        )
        now = clock.now()
        if attempt.failed_first_at is None:
            attempt.failed_first_at = now
        if status in retries.BUSY:
            server.pace.refused()
        else:
            attempt.errors += 1
        backoff_s = min(self.limits.pause_s(attempt), self.limits.longest_rest_s)
        pause = min(retry_after_s or backoff_s, self.limits.patience_s)
        away_since = server.outage.since or now
        patience_ends = now - away_since + pause > self.limits.patience_s
        is_at_fault = server.outage.answered_what_was_sent_at > attempt.failed_first_at
        if status != 429 and is_at_fault and (self._is_last(attempt) or patience_ends):
            return self._give_up(attempt, status, "server_error", reason)
        self.queue.send_later(attempt, pause)

    def refused(
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
            return self.queue.send_again(attempt)
        self.again(attempt, server, "server_error", message, status, retries.pause_s(headers))

    def again(
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
        self.queue.send_later(attempt, wait_s or self.limits.pause_s(attempt))

    def _is_last(self, attempt: Attempt) -> bool:
        """Return True if the row has had as many attempts as the limits allow."""
        return attempt.errors >= self.limits.attempts

    def _give_up(self, attempt: Attempt, status: int | None, code: str, reason: str) -> None:
        """Write the row to the file of errors."""
        attempts = f"{attempt.requests_sent} attempts"
        self.ledger.refuse(attempt.row, status, code, f"{reason} ({attempts})")

    async def lost(self, attempt: Attempt, server: Server, error: Exception) -> None:
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
            return self.again(attempt, server, "timeout", reason)
        self.queue.send_again(attempt)
        if not reused and not await server.alive():
            server.fell()
        elif attempt.deaths > 1:
            await asyncio.sleep(self.limits.backoff_s * attempt.deaths)

    async def key_refused(
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
        self.queue.send_again(attempt)

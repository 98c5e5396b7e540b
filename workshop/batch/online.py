"""`workshop.batch.run`: every row of a file answered exactly once, by one server or several, whatever dies."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from workshop.batch import provenance, servers
from workshop.batch.inputs import Source
from workshop.batch.lines import error_line
from workshop.batch.paths import Paths, cannot_write
from workshop.batch.prepare import Work, shard_of
from workshop.batch.progress import COMPLETE, FAILED, INTERRUPTED, Progress, Rate, Summary
from workshop.batch.rows import Builder, check_sampling
from workshop.batch.send import Limits, Sender
from workshop.batch.store import Journal, Lock
from workshop.errors import BadInput, WorkshopError

REPORT_S = 0.5
Report = Callable[[Progress], None]


class Batch:
    """One run; `run()` is what most people call. `stop()` may be called from any thread or signal handler."""

    def __init__(
        self,
        input: str | Path,
        output: str | Path,
        *,
        url: str | tuple[str, ...] = (),
        model: str | None = None,
        concurrency: int | None = None,
        samples: int = 1,
        skip_bad: bool = False,
        column: str | None = None,
        chat: bool = False,
        limits: Limits | None = None,
        report: Report | None = None,
        shard: str | None = None,
        **sampling,
    ):
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise BadInput(f"A concurrency of {concurrency} sends nothing.", "Give a whole number from 1, or none.")
        if type(samples) is not int or samples < 1:
            raise BadInput(f"{samples} samples of each prompt cannot be.", "Give a whole number from 1.")
        if samples > 1:
            sampling["n"] = samples
        self.paths, self.source = Paths(output, input), Source(input, column)
        self.sampling, self.samples, self.chat, self.skip_bad = check_sampling(sampling), samples, chat, skip_bad
        self.urls = (url,) if isinstance(url, str) else tuple(url)
        self.model, self.concurrency = model or "", concurrency
        self.limits, self.report, self.shard = limits or Limits(), report, shard_of(shard)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: Sender | None = None
        self._stop = False

    def stop(self) -> None:
        """Send nothing more, keep what has come, return with the state `interrupted`."""
        self._stop = True
        if self._loop and self._sender:
            with contextlib.suppress(RuntimeError):  # it has just ended by itself
                self._loop.call_soon_threadsafe(self._sender.stop)

    def run(self) -> Summary:
        """Run until every row is dealt with, or `stop` is called.

        Raises:
            BadInput: input, output or a parameter cannot be right; nothing was sent.
            WorkshopError: it cannot go on; what came is kept, and running it again goes on.
        """
        lock = Lock(self.paths)
        try:
            with _runner() as runner:
                self._loop = runner.get_loop()
                return runner.run(self._run())
        finally:
            self._loop = None
            lock.release()

    async def _run(self) -> Summary:
        fleet = servers.find(self.urls, self.concurrency)
        for server in fleet:
            server.connect(self.limits.read_timeout_s)
        try:
            entry = await self._meet(fleet)
            work = self._prepare(entry["id"])
            facts = {
                "model": entry["id"],
                "model_path": entry.get("root"),
                "max_model_len": entry.get("max_model_len"),
                "vllm_version": await fleet[0].version(),
                "urls": [server.url for server in fleet],
            }
            meta = provenance.begin(self.paths, self.source, work, facts, self.sampling)
            try:
                return await self._send(work, fleet, entry["id"], meta)
            finally:
                work.index.close()
        finally:
            for server in fleet:
                await server.session.close()

    async def _meet(self, fleet: list[servers.Server]) -> dict:
        """Ask every server what it serves; those that are away now may come back, but one must be there."""
        found, away = None, []
        for server in fleet:
            try:
                entry = await server.check(self.model or (found["id"] if found else ""))
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                away.append(f"{server.url} ({str(error) or type(error).__name__})")
                server.down_since = time.monotonic()
                continue
            found = found or entry
            server.rise()
        if found is None:
            raise WorkshopError(
                f"No server answers: {', '.join(away)}.",
                "`workshop servers` lists those known here; `workshop serve --background` starts one.",
            )
        return found

    def _prepare(self, model: str) -> Work:
        builder = Builder(self.sampling, self.source.column, self.chat, model, bool(self.model), self.source.table)
        work = Work(self.source, builder, shard=self.shard)
        try:
            work.check(self.skip_bad)
            work.resume(self.paths.journal)
        except WorkshopError:
            work.index.close()
            raise
        return work

    async def _send(self, work: Work, fleet: list[servers.Server], model: str, meta: dict) -> Summary:
        began, stamp = time.monotonic(), self.source.stamp()
        already = work.index.done.count
        answers = Journal(self.paths.journal, work.keep_bytes)
        errors = Journal(self.paths.errors, 0)
        for bad in work.bad:
            errors.add(error_line(None, bad.row, bad.place, None, "bad_row", bad.reason))
        self._sender = sender = Sender(work, fleet, model, answers, errors, self.limits)
        if self._stop:
            sender.stop()
        reporting = asyncio.create_task(self._report_regularly(work, fleet, sender, began))
        state, reason, failure = COMPLETE, "", None
        try:
            await sender.run()
            state = INTERRUPTED if sender.stopping and work.left - sender.failed > 0 else COMPLETE
        except WorkshopError as error:
            state, reason, failure = FAILED, error.message, error
        finally:
            reporting.cancel()
            try:
                close_journals(answers, errors, self.paths)
            except WorkshopError as error:
                state, reason, failure = FAILED, error.message, failure or error
        if failure is None and answers.committed != sender.new:
            raise RuntimeError(f"{sender.new} answers came, and {answers.committed} were written: a fault of ours")
        if self.source.stamp() != stamp:
            reason = f"{reason} The input changed meanwhile: run it again for the rows that are new.".strip()
        summary = Summary(state, work.mine, work.index.done.count, work.index.done.count - already,
                          sender.failed, work.index.bad.count, work.superseded, time.monotonic() - began,
                          sender.prompt_tokens, sender.completion_tokens, self.paths.output,
                          self.paths.errors if self.paths.errors.exists() else None, reason)  # fmt: skip
        summary, failure = provenance.end(self.paths, meta, summary, [server.pace.limit for server in fleet], failure)
        if self.report:
            self.report(self._look(work, fleet, sender, began, Rate(), summary))
        if failure:
            raise failure
        return summary

    async def _report_regularly(self, work: Work, fleet: list, sender: Sender, began: float) -> None:
        rate = Rate()
        while self.report:
            self.report(self._look(work, fleet, sender, began, rate))
            await asyncio.sleep(REPORT_S)

    @staticmethod
    def _look(
        work: Work, fleet: list, sender: Sender, began: float, rate: Rate, summary: Summary | None = None
    ) -> Progress:
        seconds = time.monotonic() - began
        rows_per_s, tokens_per_s = rate.at(sender.new, sender.completion_tokens)
        if summary:
            rows_per_s, tokens_per_s = sender.new / max(seconds, 1e-9), sender.completion_tokens / max(seconds, 1e-9)
        looks = [server.look for server in fleet if server.look and not summary]  # the last look is old by then
        away = [server.url for server in fleet if not server.up.is_set()]
        return Progress(
            rows=work.mine - work.index.bad.count,
            done=work.index.done.count,
            errors=sender.failed,
            new=sender.new,
            seconds=seconds,
            rows_per_s=rows_per_s,
            generation_tokens_per_s=tokens_per_s,
            in_flight=sum(server.in_flight for server in fleet),
            limit=sum(server.pace.limit for server in fleet),
            running=sum(look.requests_running or 0 for look in looks) if looks else None,
            waiting=sum(look.requests_waiting or 0 for look in looks) if looks else None,
            kv_cache_usage=max((look.kv_cache_usage or 0.0 for look in looks), default=None),
            message=str(summary) if summary else f"waiting for {', '.join(away)}" if away else "",
        )


def run(input: str | Path, output: str | Path, **options) -> Summary:
    """Answer every row of `input` once, into `output`; run it again and it goes on. Options are those of `Batch`.

        workshop.batch.run("prompts.json", "answers.jsonl", max_tokens=100, temperature=1.0, samples=10)

    In a notebook the kernel's stop button ends it in order: what has come is kept.
    """
    batch = Batch(input, output, **options)
    result: list[Summary | BaseException] = []

    def work() -> None:
        try:
            result.append(batch.run())
        except BaseException as error:
            result.append(error)

    # A thread of its own: a notebook's main thread has an event loop already.
    thread = threading.Thread(target=work, name="workshop-batch", daemon=True)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(0.2)
        except KeyboardInterrupt:
            batch.stop()
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


def close_journals(answers: Journal, errors: Journal, paths: Paths) -> None:
    """Commit and close both; a file of errors in which nothing stands is removed."""
    try:
        answers.close()
    finally:
        errors.close()
        if errors.committed == 0:
            try:
                paths.errors.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(paths.errors, error) from None


def _runner() -> asyncio.Runner:
    """Return a runner; with uvloop, where it is installed, a request costs half as much."""
    try:
        import uvloop
    except ImportError:
        return asyncio.Runner()
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)

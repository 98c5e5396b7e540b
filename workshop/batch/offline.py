"""`--offline`: the same batch without a server, with vLLM's `LLM` class in this process.

Rows are fed to the engine as others finish, so that there is no barrier and a kill loses what was in flight at most.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workshop.batch import engine_rows, provenance
from workshop.batch.inputs import Source
from workshop.batch.lines import answer_line, error_line
from workshop.batch.online import REPORT_S, Report, close_journals
from workshop.batch.paths import Paths
from workshop.batch.prepare import Work, shard_of
from workshop.batch.progress import COMPLETE, FAILED, INTERRUPTED, Progress, Rate, Summary
from workshop.batch.rows import Builder, Row, check_sampling
from workshop.batch.store import COMMIT_S, Journal, Lock
from workshop.errors import BadInput, WorkshopError

QUEUE = 1.5  # sequences given to the engine, per sequence that it computes at once: it must never lack one
AHEAD = 64  # rows that are read and tokenized together
HOPELESS = 50


class OfflineBatch:
    """One run; the same inputs, output and resumption as `online.Batch`, without a server.

    Args:
        model: a folder, a Hub id, or None for the teaching model.
        engine_args: any flags of vLLM's engine, such as ("--tensor-parallel-size", "4").
        concurrency: sequences given to the engine at once; by default half as many again as it computes at once.
        llm: an `LLM` that is there already, instead of a model.
    """

    def __init__(
        self,
        input: str | Path,
        output: str | Path,
        *,
        model: str | None = None,
        engine_args: Iterable[str] = (),
        concurrency: int | None = None,
        samples: int = 1,
        skip_bad: bool = False,
        column: str | None = None,
        chat: bool = False,
        report: Report | None = None,
        llm=None,
        shard: str | None = None,
        **sampling,
    ):
        if (concurrency is not None and concurrency < 1) or samples < 1:
            raise BadInput("Concurrency and samples are whole numbers from 1.", "Give 1 or more.")
        if samples > 1:
            sampling["n"] = samples
        self.paths, self.source = Paths(output, input), Source(input, column)
        self.sampling, self.chat, self.skip_bad = check_sampling(sampling), chat, skip_bad
        self.model, self.engine_args, self.concurrency, self.llm = model, tuple(engine_args), concurrency, llm
        self.report, self._stop, self._own, self.shard = report, False, llm is None, shard_of(shard)

    def stop(self) -> None:
        """Send nothing more, keep what has come, return with the state `interrupted`."""
        self._stop = True

    def run(self) -> Summary:
        """Run until every row is dealt with, or `stop` is called; raises as `online.Batch.run` does."""
        from workshop.launch import local

        lock = Lock(self.paths)
        try:
            path, served = (self.model or "", self.model or "llm") if self.llm else local.resolve_model(self.model)
            work = Work(
                self.source,
                Builder(self.sampling, self.source.column, self.chat, served, any_model=True, table=self.source.table),
                shard=self.shard,
            )
            try:
                work.check(self.skip_bad)  # before the engine starts: that takes half a minute
                work.resume(self.paths.journal)
                return self._run(work, path, served)
            finally:
                work.index.close()
        finally:
            lock.release()

    def _run(self, work: Work, path: str, served: str) -> Summary:
        from workshop.launch.vllm_main import installed

        facts = {
            "model": served,
            "model_path": path,
            "vllm_version": installed()[1],
            "urls": [],
            "engine_args": list(self.engine_args),
        }
        meta = provenance.begin(self.paths, self.source, work, facts, self.sampling)
        feed = Feed(work, self.paths, served, self)
        state, reason, failure = COMPLETE, "", None
        try:
            if work.left:
                self.llm = self.llm or start(path, self.engine_args)
                feed.run(self.llm)
            state = INTERRUPTED if self._stop and work.left > feed.failed else COMPLETE
        except WorkshopError as error:
            state, reason, failure = FAILED, error.message, error
        finally:
            try:
                feed.close()
            except WorkshopError as error:
                state, reason, failure = FAILED, error.message, failure or error
            if self._own and self.llm is not None:
                stop(self.llm)
                self.llm = None
        summary, failure = provenance.end(self.paths, meta, feed.summary(state, reason), [feed.limit], failure)
        if self.report:
            self.report(feed.look(Rate(), str(summary)))
        if failure:
            raise failure
        return summary


class Feed:
    """Keeps the engine's queue filled and takes out what is finished."""

    def __init__(self, work: Work, paths: Paths, model: str, batch: OfflineBatch):
        self.work, self.paths, self.model, self.batch = work, paths, model, batch
        self.answers, self.errors = Journal(paths.journal, work.keep_bytes), Journal(paths.errors, 0)
        for bad in work.bad:
            self.errors.add(error_line(None, bad.row, bad.place, None, "bad_row", bad.reason))
        self.began, self.already = time.monotonic(), work.index.done.count
        self.failed = self.prompt_tokens = self.completion_tokens = self.sequences = self.limit = 0
        self._flying: dict[str, tuple[Row, engine_rows.Request]] = {}
        self._disk, self._writes = ThreadPoolExecutor(1, "commit"), []

    def run(self, llm) -> None:
        """Answer every row that is left, or end at `batch._stop`."""
        engine, maker = llm.llm_engine, engine_rows.Maker(llm)
        self.limit = self.batch.concurrency or int(QUEUE * engine.vllm_config.scheduler_config.max_num_seqs)
        rows, committed, reported, rate = self.work.rows(), time.monotonic(), 0.0, Rate()
        exhausted, made = False, deque()
        while True:
            while not self.batch._stop and self.sequences < self.limit and (made or not exhausted):
                if made:
                    self._add(engine, maker, *made.popleft())
                    continue
                some = list(itertools.islice(rows, AHEAD))
                exhausted = not some
                some = [row for row in some if row]
                made.extend(zip(some, maker.requests(some), strict=True))
            if not self._flying:
                break
            if self.batch._stop:
                engine.abort_request(list(self._flying))
                break
            try:
                outputs = engine.step()
            except Exception as error:  # whatever killed the engine: what came is kept
                raise WorkshopError(
                    f"vLLM's engine ended: {error or type(error).__name__}.",
                    "Its own words are above. Run the same command again: it goes on.",
                ) from error
            for output in outputs:
                if output.finished:
                    self._keep(maker, output)
            now = time.monotonic()
            if now - committed >= COMMIT_S:
                committed = now
                self._commit()
            if self.batch.report and now - reported >= REPORT_S:
                reported = now
                self.batch.report(self.look(rate))

    def _add(self, engine, maker: engine_rows.Maker, row: Row, request: engine_rows.Request | Exception) -> None:
        if isinstance(request, Exception):
            self._refuse(row, str(request))
            return
        name = row.key.hex()
        try:
            engine.add_request(name, request.prompt, request.params)
        except maker.refusals as error:  # tokens or parameters that this model does not have
            self._refuse(row, str(error))
            return
        self._flying[name] = row, request
        self.sequences += request.params.n

    def _refuse(self, row: Row, said: str) -> None:
        self.errors.add(error_line(row.custom_id, row.number, row.place, 400, "refused", said[:2000]))
        self.failed += 1
        if self.failed >= HOPELESS and self.work.index.done.count == self.already:
            raise WorkshopError(
                f"The first {self.failed} rows all failed, the last one with: {said}.",
                "Correct what it says, and run the same command again.",
            )

    def _keep(self, maker: engine_rows.Maker, output) -> None:
        row, request = self._flying.pop(output.request_id)
        self.sequences -= request.params.n
        ended = [each for each in output.outputs if each.finish_reason not in (None, "abort", "error")]
        if len(ended) != request.params.n:
            return self._refuse(row, "the engine did not finish it")
        body, prompt_tokens, completion_tokens = maker.body(row, request, output, self.model)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.answers.add(answer_line(row.custom_id, row.key, row.number, body, row.extra))
        self.work.index.done.add(row.number)

    def _commit(self) -> None:
        """Write in another thread: the engine must not wait for the disk."""
        pending: list[Future] = [write for write in self._writes if not write.done()]
        for write in self._writes:
            if write.done():
                write.result()  # a full disk ends the run
        self._writes = pending
        for journal in (self.answers, self.errors):
            if lines := journal.take():
                self._writes.append(self._disk.submit(journal.write, lines))

    def close(self) -> None:
        """Commit what is left."""
        try:
            for write in self._writes:
                write.result()
        finally:
            self._disk.shutdown()
            close_journals(self.answers, self.errors, self.paths)

    def look(self, rate: Rate, message: str = "") -> Progress:
        """Return how far it is."""
        done, seconds = self.work.index.done.count, time.monotonic() - self.began
        rows_per_s, tokens_per_s = rate.at(done - self.already, self.completion_tokens)
        return Progress(
            self.work.mine - self.work.index.bad.count,
            done,
            self.failed,
            done - self.already,
            seconds,
            rows_per_s,
            tokens_per_s,
            len(self._flying),
            self.limit,
            message=message,
        )

    def summary(self, state: str, reason: str) -> Summary:
        """Return how it ended."""
        index = self.work.index
        return Summary(
            state,
            self.work.mine,
            index.done.count,
            index.done.count - self.already,
            self.failed,
            index.bad.count,
            self.work.superseded,
            time.monotonic() - self.began,
            self.prompt_tokens,
            self.completion_tokens,
            self.paths.output,
            self.paths.errors if self.paths.errors.exists() else None,
            reason,
        )


def start(path: str, engine_args: tuple[str, ...] = ()):
    """Return vLLM's `LLM` for a model, with the flags of `vllm serve` that concern the engine.

    Raises:
        WorkshopError: vLLM is not installed, or it cannot start; its own words are on the terminal.
    """
    from workshop.launch import auth, local
    from workshop.launch.local import scratch
    from workshop.launch.vllm_main import answer_for_vllm

    device, given = local.engine_device(), local.flags_of(engine_args)
    environment = local.engine_environment(path, device, given, "offline")
    os.environ.update({key: value for key, value in environment.items() if key != auth.RECORD_VARIABLE})
    folder = scratch.new_folder()  # vLLM's sockets, which it leaves
    atexit.register(scratch.clear, folder)
    os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")  # stdout is for what the command prints
    answer_for_vllm()
    from vllm import LLM, EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="workshop batch --offline"))
    flags = vars(parser.parse_args([*local.default_flags(path, device, given, server=False), *engine_args]))
    plain = vars(parser.parse_args([]))
    kwargs = {name: value for name, value in flags.items() if value != plain[name]}
    try:
        return LLM(**{**kwargs, "model": path})
    except Exception as error:
        said = str(error).splitlines()[0] if str(error) else repr(error)
        raise WorkshopError(
            f"vLLM could not start with {path}: {said}", "Its own words are above; `workshop plan` says what fits."
        ) from error


def stop(llm) -> None:
    """End the engine's processes."""
    core = getattr(llm.llm_engine, "engine_core", None)
    if core is not None and hasattr(core, "shutdown"):
        core.shutdown()
    sys.stderr.flush()


def run_offline(input: str | Path, output: str | Path, **options) -> Summary:
    """Answer every row of `input` once, into `output`, without a server; options are those of `OfflineBatch`."""
    return OfflineBatch(input, output, **options).run()

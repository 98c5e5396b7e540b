"""What every run of a batch has, with servers or without: its arguments, its record, its journals and its counts."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workshop.batch import provenance
from workshop.batch.inputs import Source
from workshop.batch.lines import answer_line, error_line
from workshop.batch.paths import Paths, cannot_write
from workshop.batch.prepare import Work, shard_of
from workshop.batch.progress import COMPLETE, FAILED, INTERRUPTED, Progress, Rate, Summary
from workshop.batch.rows import Builder, Row, check_sampling
from workshop.batch.store import Journal, Lock
from workshop.errors import BadInput, WorkshopError

REPORT_S = 0.5
HOPELESS = 50  # rows refused before any was answered, in this run or before: then the run stops


class Ledger:
    """The answers and errors of one run, each in its journal, and how many there are."""

    def __init__(self, work: Work, paths: Paths):
        self.work, self._paths = work, paths
        self.answers, self.errors = (
            Journal(paths.journal, work.keep_bytes),
            Journal(paths.errors, 0),
        )
        for bad in work.bad:
            self.errors.add(error_line(None, bad.row, bad.place, None, "bad_row", bad.reason))
        self._disk, self._writes = ThreadPoolExecutor(1, "commit"), deque[Future]()
        self.began, self.rate = time.monotonic(), Rate()
        self.new = self.failed = self.prompt_tokens = self.completion_tokens = 0
        self.first_said = ""  # of the rows without an answer

    def keep(self, row: Row, body: bytes, prompt_tokens: int, completion_tokens: int) -> None:
        """Take the answer to a row; raises ValueError where it is no JSON."""
        self.answers.add(answer_line(row.custom_id, row.key, row.number, body, row.extra))
        self.work.index.done.add(row.number)
        self.new += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def refuse(self, row: Row, status: int | None, code: str, said: str) -> None:
        """Take the reason why a row has no answer.

        Raises WorkshopError: so many had none, and no row an answer, that the request itself is wrong.
        """
        self.errors.add(error_line(row.custom_id, row.number, row.place, status, code, said))
        self.failed += 1
        self.first_said = self.first_said or f"the first because of: {said}"
        if self.failed >= HOPELESS and not self.work.index.done.count:
            said = f"The first {self.failed} rows all failed, the last one with: {said}."
            raise WorkshopError(said, "Correct what it says, and run the same command again.")

    @property
    def left(self) -> int:
        """How many rows have neither an answer nor a reason yet."""
        return self.work.left - self.failed

    def commit(self) -> None:
        """Have what came written in another thread: nobody waits for the disk.

        Raises WorkshopError: a write before could not be done.
        """
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()
        for journal in (self.answers, self.errors):
            if lines := journal.take():
                self._writes.append(self._disk.submit(journal.write, lines))

    def close(self) -> None:
        """Commit what waits, and close; a file of errors in which nothing stands is removed."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._remove_empty)
            closing.callback(self.errors.close)
            closing.callback(self.answers.close)
            self._disk.shutdown()
            for write in self._writes:
                write.result()

    def _remove_empty(self) -> None:
        if not self.errors.committed:
            try:
                self._paths.errors.unlink(missing_ok=True)
            except OSError as error:
                raise cannot_write(self._paths.errors, error) from None

    def summary(self, state: str, reason: str) -> Summary:
        index, errors = self.work.index, self._paths.errors
        return Summary(
            state=state,
            rows=self.work.mine,
            answered=index.done.count,
            new=self.new,
            errors=self.failed,
            bad=index.bad.count,
            superseded=self.work.superseded,
            seconds=time.monotonic() - self.began,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            output=self._paths.output,
            errors_file=errors if errors.exists() else None,
            reason=reason or self.first_said,
        )

    def look(self, ended: Summary | None = None, **more) -> Progress:
        """Return how far it is; more: what else a Progress has. Rates of the whole run where it has `ended`."""
        seconds, counts = time.monotonic() - self.began, (self.new, self.completion_tokens)
        rates = [count / max(seconds, 1e-9) for count in counts] if ended else self.rate.at(*counts)
        index = self.work.index
        return Progress(
            rows=self.work.mine - index.bad.count,
            done=index.done.count,
            errors=self.failed,
            new=self.new,
            seconds=seconds,
            rows_per_s=rates[0],
            generation_tokens_per_s=rates[1],
            **{"message": str(ended or ""), **more},
        )


class StillReading(Exception):
    """It was stopped before anything was sent."""


class Session:
    """One run of a batch; `online.Batch` and `offline.OfflineBatch` say who answers.

    input, output: files; what formats they may have says docs/batch.md.
    model: name that the requests give (offline: a folder, a Hub id, or None for the teaching model).
    concurrency: requests at once; by default it is found.
    samples: answers to each prompt.
    skip_bad: leave malformed rows out instead of refusing the input.
    column: field that holds the prompts. chat: send plain prompts as a user's message. shard: such as "2/8".
    report: called with a Progress now and then.
    **sampling: vLLM's sampling parameters.

    Raises BadInput: one of them cannot be right.
    """

    def __init__(
        self,
        input: str | Path,
        output: str | Path,
        *,
        model: str | None = None,
        concurrency: int | None = None,
        samples: int = 1,
        skip_bad: bool = False,
        column: str | None = None,
        chat: bool = False,
        report: Callable[[Progress], None] | None = None,
        shard: str | None = None,
        **sampling,
    ):
        if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
            raise BadInput(
                f"A concurrency of {concurrency} sends nothing.",
                "Give a whole number from 1, or none.",
            )
        if type(samples) is not int or samples < 1:
            raise BadInput(
                f"{samples} samples of each prompt cannot be.", "Give a whole number from 1."
            )
        if samples > 1:
            sampling["n"] = samples
        self.paths, self.source = Paths(output, input), Source(input, column)
        self.sampling, self.chat, self.skip_bad = check_sampling(sampling), chat, skip_bad
        self.model, self.concurrency, self.shard = model, concurrency, shard_of(shard)
        self.report = report or (lambda progress: None)
        self.stopping = False
        self.summary: Summary | None = None
        self.source.poll = self._poll

    def run(self) -> Summary:
        """Run until every row is dealt with, or `stop` is called.

        Raises:
            BadInput: input, output or a parameter cannot be right; nothing was sent.
            WorkshopError: it cannot go on; what came is kept, and running it again goes on.
        """
        began = time.monotonic()
        with contextlib.closing(Lock(self.paths)):
            try:
                return self._run()
            except StillReading:
                reason = "the input was still being read; what was answered before is kept"
                return Summary(
                    state=INTERRUPTED,
                    rows=0,
                    answered=0,
                    new=0,
                    errors=0,
                    bad=0,
                    superseded=0,
                    seconds=time.monotonic() - began,
                    prompt_tokens=0,
                    completion_tokens=0,
                    output=self.paths.output,
                    errors_file=None,
                    reason=reason,
                )

    def _run(self) -> Summary:
        """Answer the rows: a subclass says how."""
        raise NotImplementedError

    def _outcome(self) -> Summary:
        """Return the summary that `recorded` left."""
        if self.summary is None:
            raise RuntimeError("the run ended without a summary: a fault of ours")
        return self.summary

    def _poll(self) -> None:
        if self.stopping:
            raise StillReading

    def stop(self) -> None:
        """Send nothing more, keep what has come, return with the state `interrupted`."""
        self.stopping = True

    @contextlib.contextmanager
    def prepared(
        self, model: str, any_model: bool, names: frozenset[str] = frozenset()
    ) -> Iterator[Work]:
        """Check the input and find what is answered already.

        names: other names of the model, which rows may give. any_model: rows may name another model.

        Raises BadInput: a row is malformed.
        """
        builder = Builder(
            self.sampling, self.source.column, self.chat, model, any_model, self.source.table, names
        )
        work = Work(self.source, builder, shard=self.shard)
        with contextlib.closing(work.index):
            work.check(self.skip_bad)
            work.resume(self.paths.journal)
            yield work

    @contextlib.contextmanager
    def recorded(self, work: Work, facts: dict, paces: list) -> Iterator[Ledger]:
        """Keep the record of a run: what it came from before anything is asked, how it ended (`summary`) afterwards.

        facts: of the engine, as for provenance.begin. paces: their `limit` is how many requests at once it came to.
        Raises WorkshopError: what ended the run, or kept its end from being written; what came is kept.
        """
        meta, stamp = (
            provenance.begin(self.paths, self.source, work, facts, self.sampling),
            self.source.stamp(),
        )
        ledger, failures = Ledger(work, self.paths), []
        try:
            yield ledger
        except WorkshopError as error:
            failures.append(error)
        finally:
            try:
                ledger.close()
            except WorkshopError as error:
                failures.append(error)
        if not failures and ledger.answers.committed != ledger.new:
            raise RuntimeError(
                f"{ledger.new} answers came, {ledger.answers.committed} were written: a fault of ours"
            )
        state = (
            FAILED if failures else INTERRUPTED if self.stopping and ledger.left > 0 else COMPLETE
        )
        reason = failures[-1].message if failures else ""
        if (now := self.source.stamp()) != stamp:
            what = (
                "changed meanwhile: run it again for the rows that are new"
                if any(now)
                else "was removed meanwhile"
            )
            reason = f"{reason} The input {what}".strip()
        ended, limits = ledger.summary(state, reason), [pace.limit for pace in paces]
        self.summary, failure = provenance.end(
            self.paths, meta, ended, limits, failures[0] if failures else None
        )
        self.report(ledger.look(self.summary, in_flight=0, limit=sum(limits)))
        if failure:
            raise failure

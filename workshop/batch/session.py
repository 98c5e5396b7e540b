"""The part that all runs of a batch share: arguments, the record, journals and counts."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workshop.batch.keep import provenance
from workshop.batch.keep.cut_answers import ENDED_IN_LENGTH, RETRY_FACTOR
from workshop.batch.keep.lines import answer_line, error_line
from workshop.batch.keep.paths import Paths, cannot_write, read_meta
from workshop.batch.keep.store import Journal, Output, newest
from workshop.batch.progress import COMPLETE, FAILED, INTERRUPTED, Progress, Rate, Summary
from workshop.batch.read.inputs import Source
from workshop.batch.read.prepare import Work, shard_of
from workshop.batch.read.rows import Builder, InputRow, check_sampling
from workshop.errors import BadInput, WorkshopError
from workshop.servers.host import energy

REPORT_S = 0.5
HOPELESS = 50  # rows refused before any was answered, in this run or before: then the run stops


class Ledger:
    """The answers and errors of one run, each in its journal, and how many there are."""

    def __init__(self, work: Work, paths: Paths):
        self.work = work
        self._paths = paths
        self.answers = Journal(paths.journal, work.keep_bytes)
        self.errors = Journal(paths.errors, 0)
        for bad in work.bad:
            self.errors.add(error_line(None, bad.row, bad.place, None, "bad_row", bad.reason))
        self._disk = ThreadPoolExecutor(1, "commit")
        self._writes = deque[Future]()
        self.began = time.monotonic()
        self.rate = Rate()
        self.new = self.failed = self.prompt_tokens = self.completion_tokens = 0
        self.first_said = ""  # of the rows without an answer
        self._joules_before: float | None = None

    def keep(
        self,
        row: InputRow,
        body: bytes,
        prompt_tokens: int,
        completion_tokens: int,
        choices: list[dict],
    ) -> None:
        """Add the answer to a row to the journal; `choices` are those of its body.

        Raises ValueError: it is not JSON.
        """
        line = answer_line(row.custom_id, row.key, row.number, body, row.metadata, row.more_tokens)
        self.answers.add(line)
        self.work.keep(row, choices)
        self.new += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens

    def refuse(self, row: InputRow, status: int | None, code: str, message: str) -> None:
        """Add the reason why a row has no answer, `message` of the server's, to the file of errors.

        Raises WorkshopError: HOPELESS rows have failed and none has an answer, so the request
        itself is wrong, or the server.
        """
        self.errors.add(error_line(row.custom_id, row.number, row.place, status, code, message))
        self.failed += 1
        self.first_said = self.first_said or f"the first because of: {message}"
        if self.failed >= HOPELESS and not self.work.index.done.count:
            problem = f"The first {self.failed} rows all failed, the last one with: {message}."
            fault = "Correct what it says" if code == "refused" else "Look at the server's log"
            raise WorkshopError(problem, f"{fault}, and run the same command again.")

    def count_energy(self) -> None:
        """Read the energy counter of this machine's GPUs, which answer the rows (`--offline`)."""
        self._joules_before = energy.taken_joules()

    @property
    def left(self) -> int:
        """The number of rows that have neither an answer nor a reason yet."""
        return self.work.left - self.failed

    def commit(self) -> None:
        """Write the new lines in another thread, so that no request waits for the disk.

        Raises WorkshopError: an earlier write has failed.
        """
        while self._writes and self._writes[0].done():
            self._writes.popleft().result()
        for journal in (self.answers, self.errors):
            lines = journal.take()
            if lines:
                self._writes.append(self._disk.submit(journal.write, lines))

    def close(self) -> None:
        """Write the last lines and close the files. An empty file of errors is removed."""
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
        """Return how the run ended, with its counts."""
        index = self.work.index
        errors_file = None
        if self._paths.errors.exists():
            errors_file = self._paths.errors
        used_energy = None
        if self._joules_before is not None:
            joules_now = energy.taken_joules()
            used_energy = energy.between(self._joules_before, joules_now, self.completion_tokens)
        return Summary(
            state=state,
            rows=self.work.rows_of_shard,
            answered=index.done.count,
            new=self.new,
            errors=self.failed,
            bad=index.bad.count,
            superseded=self.work.superseded,
            seconds=time.monotonic() - self.began,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            output=self._paths.output,
            errors_file=errors_file,
            reason=reason or self.first_said,
            finish_reasons=dict((+self.work.finish_reasons).most_common()),
            retried=self.work.retried,
            full=self.work.full,
            energy=used_energy,
        )

    def look(self, ended: Summary | None = None, **more) -> Progress:
        """Return the progress of the run.

        Args:
            ended: the summary, once the run has ended: then the rates are those of the whole run.
            **more: other fields of Progress.
        """
        seconds = time.monotonic() - self.began
        if ended:
            rows_per_s = self.new / max(seconds, 1e-9)
            tokens_per_s = self.completion_tokens / max(seconds, 1e-9)
        else:
            rows_per_s, tokens_per_s = self.rate.at(self.new, self.completion_tokens)
        index = self.work.index
        return Progress(
            rows=self.work.rows_of_shard - index.bad.count,
            done=index.done.count,
            errors=self.failed,
            new=self.new,
            seconds=seconds,
            rows_per_s=rows_per_s,
            generation_tokens_per_s=tokens_per_s,
            **{"message": str(ended or ""), **more},
        )


class StillReading(Exception):
    """The run was stopped before anything was sent."""


class Session:
    """One run of a batch; `online.Batch` and `offline.OfflineBatch` say who answers.

    input, output: files; what formats they may have says docs/batch.md.
    model: name that the requests give (offline: a folder, a Hub id, or None for the teaching
        model).
    concurrency: requests at once; by default it is found.
    samples: answers to each prompt.
    skip_bad: leave malformed rows out instead of refusing the input.
    column: field that holds the prompts. chat: send plain prompts as a user's message. shard: such
    as "2/8".
    retry: "length": rows whose answer ended in `length` are asked again with RETRY_FACTOR times
        the tokens. The answer that they have stays until the new one is there.
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
        retry: str | None = None,
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
        if retry not in (None, ENDED_IN_LENGTH):
            raise BadInput(
                f"There is no retry of {retry!r}.", f"Give {ENDED_IN_LENGTH!r}, or none."
            )
        self.retry = retry
        if samples > 1:
            sampling["n"] = samples
        self.paths = Paths(output, input)
        self.source = Source(input, column)
        self.sampling = check_sampling(sampling)
        self.chat = chat
        self.skip_bad = skip_bad
        self.model = model
        self.concurrency = concurrency
        self.shard = shard_of(shard)
        self.report = report or (lambda progress: None)
        self.stopping = False
        self.summary: Summary  # from the end of `recorded` on
        self.source.poll = self._poll

    def run(self) -> Summary:
        """Run until every row is dealt with, or `stop` is called.

        Raises:
            BadInput: input, output or a parameter cannot be right; nothing was sent.
            WorkshopError: it cannot go on; what came is kept, and running it again goes on.
        """
        began = time.monotonic()
        with contextlib.closing(Output(self.paths)) as self._output:
            try:
                self._run()
                return self.summary
            except StillReading:
                reason = "the input was still being read; what was answered before is kept"
                seconds = time.monotonic() - began
                return Summary(
                    INTERRUPTED, output=self.paths.output, seconds=seconds, reason=reason
                )

    def _run(self) -> None:
        """Answer the rows: a subclass says how."""
        raise NotImplementedError

    def _poll(self) -> None:
        """Raise StillReading if `stop` was called; the source calls this while it reads."""
        if self.stopping:
            raise StillReading

    def stop(self) -> None:
        """Send nothing more, keep the answers so far, and return with the state `interrupted`."""
        self.stopping = True

    @contextlib.contextmanager
    def prepared(self, model: str = "", names: frozenset[str] = frozenset()) -> Iterator[Work]:
        """Check the input and find the rows that are answered already.

        Rows may name this `model`, by any of its other `names`; '' lets them name any.

        Raises BadInput: a row is malformed.
        """
        builder = Builder(
            self.sampling, self.source.column, self.chat, model, self.source.table, names
        )
        work = Work(self.source, builder, shard=self.shard, retry=self.retry is not None)
        with contextlib.closing(work.index):
            work.check(self.skip_bad)
            if (read_meta(self.paths) or {}).get("retrying"):  # that run was killed
                self._remove_replaced()
            work.resume(self.paths.journal)
            if self.retry:
                self._tell_of_retry(work)
            yield work

    def _remove_replaced(self) -> None:
        """Remove all answers from the journal that later ones of a retry replaced, or none."""
        self._output.replace(answer.raw for answer in newest(self.paths.journal))

    def _tell_of_retry(self, work: Work) -> None:
        """Print on stderr how many rows are asked again."""
        count = len(work.cut_answers)
        note = f"No row ended in {ENDED_IN_LENGTH}: none is asked again."
        if count:
            note = f"{count:,} rows ended in {ENDED_IN_LENGTH}: they are asked again with "
            note += f"{RETRY_FACTOR} times as many tokens, as far as the context has room."
        print(f"! {note}", file=sys.stderr)

    @contextlib.contextmanager
    def recorded(self, work: Work, facts: dict, paces: list) -> Iterator[Ledger]:
        """Keep the record of a run: where it came from, and afterwards how it ended (`summary`).

        facts: of the engine, as for provenance.begin. paces: their `limit` is how many requests at
        once it came to.

        Raises WorkshopError: what ended the run, or kept its end from being written; what came is
        kept.
        """
        work.max_model_len = work.max_model_len or facts.get("max_model_len")
        meta = provenance.begin(self.paths, self.source, work, facts, self.sampling)
        ledger = Ledger(work, self.paths)
        failures: list[WorkshopError] = []
        try:
            yield ledger
        except WorkshopError as error:
            failures.append(error)
        finally:
            try:
                ledger.close()
                if self.retry:
                    self._remove_replaced()
                    meta["retrying"] = False
            except WorkshopError as error:
                failures.append(error)
        if not failures and ledger.answers.committed != ledger.new:
            raise RuntimeError(
                f"{ledger.new} answers came, {ledger.answers.committed} were written: a fault of ours"
            )
        state = COMPLETE
        reason = ""
        first_failure = None
        if failures:
            state = FAILED
            reason = failures[-1].message
            first_failure = failures[0]
        elif self.stopping and ledger.left > 0:
            state = INTERRUPTED
        stamp_now = self.source.stamp()
        if stamp_now != work.stamp:
            change = "was removed meanwhile"
            if any(stamp_now):
                change = "changed meanwhile: run it again for the rows that are new"
            reason = f"{reason} The input {change}".strip()
        ended = ledger.summary(state, reason)
        limits = [pace.limit for pace in paces]
        self.summary, failure = provenance.end(self.paths, meta, ended, limits, first_failure)
        self.report(ledger.look(self.summary, in_flight=0, limit=sum(limits)))
        if failure:
            raise failure

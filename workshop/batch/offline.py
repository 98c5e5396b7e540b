"""`--offline`: the same batch without a server, with vLLM's `LLM` class in this process.

Rows are fed to the engine as others finish, so that there is no barrier and a kill loses what was
in flight at most.
"""

import atexit
import contextlib
import itertools
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from workshop.batch import engine_rows
from workshop.batch.keep.cut_answers import UNFINISHED
from workshop.batch.keep.store import COMMIT_S
from workshop.batch.progress import Summary
from workshop.batch.read.rows import InputRow
from workshop.batch.session import Ledger, Session
from workshop.errors import WorkshopError
from workshop.guard import auth
from workshop.servers import local
from workshop.servers.host import processes
from workshop.servers.local import scratch
from workshop.vllm_package import installed
from workshop.workarounds import cpu_package_name, one_import

# sequences given to the engine, per sequence that it computes at once: it must never lack one
QUEUE = 1.5
AHEAD = 64  # rows that are read and tokenized together
_vllm_engine_core: Callable[..., None] | None = None  # as it was before `start` replaced it


class EngineEnded(WorkshopError):
    """The engine could not start, or did not go on."""


class OfflineBatch(Session):
    """One run; the same inputs, output and resumption as `online.Batch`, without a server.

    engine_args: any flags of vLLM's engine, such as ("--tensor-parallel-size", "4").
    trace: a file for what the engine does, step by step.
    llm: an `LLM` that is there already, instead of a model.
    **options: those of `Session`.
    concurrency: sequences given to the engine at once; by default half as many again as it computes
        at once.
    """

    def __init__(
        self,
        input,
        output,
        *,
        engine_args: Iterable[str] = (),
        trace: str | None = None,
        llm=None,
        **options,
    ):
        super().__init__(input, output, **options)
        self.engine_args = tuple(engine_args)
        self.trace = trace
        self.llm = llm

    def _run(self) -> None:
        with contextlib.ExitStack() as ending:
            if self.llm:
                path = self.model or ""
                served = self.model or "llm"
            else:
                path, served = local.resolve_model(self.model)
            facts = {
                "model": served,
                "model_path": path,
                "vllm_version": installed()[1],
                "urls": [],
                "engine_args": list(self.engine_args),
            }
            feeds: list[Feed] = []
            # The input is checked before the engine starts, which takes half a minute.
            with (
                self.prepared() as work,
                self.recorded(work, facts, feeds) as ledger,
            ):
                if work.left:
                    try:
                        llm = self.llm or start(path, self.engine_args, self.trace)
                        if llm is not self.llm:
                            ending.callback(stop, llm)
                        work.max_model_len = llm.llm_engine.model_config.max_model_len
                        ledger.count_energy()
                        feeds.append(Feed(llm, ledger, served, self))
                        feeds[0].run()
                    except EngineEnded:
                        # a terminal's Ctrl-C, and scancel, end the engine's processes as well
                        if not self.stopping:
                            raise


class Feed:
    """Keeps the engine's queue filled, and takes out the finished answers."""

    def __init__(self, llm, ledger: Ledger, model: str, batch: OfflineBatch):
        self.ledger = ledger
        self.model = model
        self.batch = batch
        self._engine = llm.llm_engine
        self._maker = engine_rows.Maker(llm)
        self._made = deque()  # rows with their requests, ready for the engine
        self.limit = batch.concurrency or int(
            QUEUE * self._engine.vllm_config.scheduler_config.max_num_seqs
        )
        self.sequences = 0
        self._rows = ledger.work.rows()
        self._exhausted = False
        self._flying: dict[str, tuple[InputRow, engine_rows.EngineRequest]] = {}

    def run(self) -> None:
        """Answer every row that is left, or return early if the batch is told to stop."""
        looked = 0.0
        while self._fill():
            self._step()
            if time.monotonic() - looked >= COMMIT_S:
                looked = time.monotonic()
                self.ledger.commit()
                self.batch.report(self.ledger.look(in_flight=len(self._flying), limit=self.limit))

    def _fill(self) -> bool:
        """Give the engine rows up to the limit; return True if there is anything to compute."""
        while (
            not self.batch.stopping
            and self.sequences < self.limit
            and (self._made or not self._exhausted)
        ):
            if self._made:
                self._add(*self._made.popleft())
                continue
            some = list(itertools.islice(self._rows, AHEAD))
            self._exhausted = not some
            some = [row for row in some if row]
            self._made.extend(zip(some, self._maker.requests(some), strict=True))
        if self._flying and self.batch.stopping:
            with contextlib.suppress(Exception):  # it may have ended with the same signal
                self._engine.abort_request(list(self._flying))
            return False
        return bool(self._flying)

    def _step(self) -> None:
        """Let the engine compute one step, and keep the finished answers.

        Raises EngineEnded: it cannot.
        """
        try:
            outputs = self._engine.step()
        except Exception as error:  # whatever killed the engine: what came is kept
            problem = f"vLLM's engine ended: {error or type(error).__name__}."
            raise EngineEnded(
                problem, "Its own words are above. Run the same command again: it goes on."
            ) from error
        for output in outputs:
            if output.finished:
                self._keep(output)

    def _add(self, row: InputRow, request: engine_rows.EngineRequest | Exception) -> None:
        """Give one request to the engine; a refused row goes to the file of errors."""
        name = row.key.hex()
        try:
            if isinstance(request, Exception):
                raise request
            self._engine.add_request(name, request.prompt, request.params)
        except self._maker.refusals as error:  # tokens or parameters that this model does not have
            self.ledger.refuse(row, 400, "refused", str(error)[:2000])
            return
        self._flying[name] = row, request
        self.sequences += request.params.n

    def _keep(self, output) -> None:
        """Give a finished answer to the ledger."""
        row, request = self._flying.pop(output.request_id)
        self.sequences -= request.params.n
        finished = [part for part in output.outputs if part.finish_reason not in UNFINISHED]
        if len(finished) != request.params.n:
            return self.ledger.refuse(row, 400, "refused", "the engine did not finish it")
        self.ledger.keep(row, *self._maker.body(row, request, output, self.model))


def start(path: str, engine_args: tuple[str, ...] = (), trace: str | None = None):
    """Return vLLM's `LLM` for a model, with the flags of `vllm serve` that concern the engine.

    Raises WorkshopError: vLLM is not installed, or it cannot start; its own words are on the
    terminal.
    """
    global _vllm_engine_core
    local.fetch(path)
    device = local.engine_device()
    user_flags = local.flags_of(engine_args)
    # a batch that goes on is called as before
    tracing, variables = local.tracing(trace, user_flags, force=True)
    environment = local.engine_environment(path, device, user_flags, "offline") | variables
    os.environ.pop("PYTHONPATH", None)  # the engine's environment has what is left of it
    for name, value in environment.items():
        if name != auth.RECORD_VARIABLE:
            os.environ[name] = value
    folder = scratch.new_folder()  # vLLM's sockets, which it leaves
    atexit.register(scratch.clear, folder)
    os.environ["VLLM_RPC_BASE_PATH"] = str(folder)
    # stdout is for what the command prints
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    cpu_package_name.apply()
    from vllm import LLM, EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.core import EngineCoreProc

    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(prog="workshop batch --offline"))
    default_flags = local.default_flags(path, device, user_flags, server=False)
    flags = vars(parser.parse_args([*default_flags, *engine_args, *tracing]))
    plain = vars(parser.parse_args([]))
    kwargs = {name: value for name, value in flags.items() if value != plain[name]}
    if device == "cpu" and threading.active_count() == 1:  # a fork copies one thread alone
        one_import.apply()
    # Linux takes a thread's end for its process's
    lasting = threading.current_thread() is threading.main_thread()
    if _vllm_engine_core is None:
        _vllm_engine_core = EngineCoreProc.run_engine_core
    EngineCoreProc.run_engine_core = staticmethod(engine_core) if lasting else _vllm_engine_core
    try:
        return LLM(**{**kwargs, "model": path})
    except Exception as error:
        reason = repr(error)
        if str(error):
            reason = str(error).splitlines()[0]
        remedy = "Its own words are above; `workshop plan` says what fits."
        raise EngineEnded(f"vLLM could not start with {path}: {reason}", remedy) from error


def engine_core(*args, **options) -> None:
    """Run vLLM's engine core, and end it with the process that started it, however that ends.

    It would keep the GPU otherwise.
    """
    processes.end_with_parent(signal.SIGKILL)
    from vllm.v1.engine.core import EngineCoreProc

    # a forked process has what `start` kept, a spawned one vLLM's own
    run_engine_core = _vllm_engine_core or EngineCoreProc.run_engine_core
    run_engine_core(*args, **options)


def stop(llm) -> None:
    """Stop the engine's processes."""
    core = getattr(llm.llm_engine, "engine_core", None)
    if core is not None and hasattr(core, "shutdown"):
        core.shutdown()
    sys.stderr.flush()


def run_offline(input: str | Path, output: str | Path, **options) -> Summary:
    """Answer each row of `input` once into `output`, without a server; options: OfflineBatch's."""
    return OfflineBatch(input, output, **options).run()

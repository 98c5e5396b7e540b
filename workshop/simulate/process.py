"""The worker process of the simulator: started at the first job, kept for the next, stopped with this process."""

import atexit
import os
import pickle
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import IO, Any

from workshop import python_process
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival
from workshop.simulate.clock import Clock
from workshop.simulate.engine import ENVIRONMENT, Rules, check_installed


class Worker:
    """A process that has loaded vLLM and runs jobs one by one.

    Its Python is WORKSHOP_VLLM_PYTHON's where that is set. Jobs and answers are pickled: both ends are this package, and
    nothing else writes to their pipes.
    """

    def __init__(self) -> None:
        python = os.environ.get("WORKSHOP_VLLM_PYTHON")
        if not python:
            check_installed()
            python = python_process.PYTHON
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115      it lives as long as the process
        try:
            self._process = subprocess.Popen(
                python_process.command("workshop.simulate.worker", python=python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=python_process.environment(ENVIRONMENT, python=python),
                cwd=python_process.NEUTRAL_FOLDER,
            )
        except OSError as error:
            raise WorkshopError(
                f"WORKSHOP_VLLM_PYTHON={python} cannot be run ({error.strerror}).",
                "Name a Python.",
            ) from None
        self._jobs = _opened(self._process.stdin)
        self._answers = _opened(self._process.stdout)
        atexit.register(self.end)

    def run(
        self, job: dict[str, Any], watch: Callable[[dict[str, Any]], bool] | None = None
    ) -> dict[str, Any] | None:
        """Return the worker's answer, or None where the watcher stopped the job.

        Args:
            watch: called with the simulation so far; if it returns False, the job stops.

        Raises:
            WorkshopError: the worker refused the job, or stopped before its answer; with its last words.
        """
        try:
            answer = self._ask({**job, "watched": watch is not None})
            while watch is not None and isinstance(answer, dict) and "so_far" in answer:
                answer = self._ask(watch(answer["so_far"]))
        except (OSError, EOFError, pickle.UnpicklingError):
            raise WorkshopError(
                f"The simulation ended early: {self._last_words()}",
                "workshop doctor says what is lacking.",
            ) from None
        if isinstance(answer, WorkshopError):
            raise answer
        return answer

    def _ask(self, message: object) -> Any:
        pickle.dump(message, self._jobs)
        self._jobs.flush()
        return pickle.load(self._answers)

    def _last_words(self) -> str:
        self._errors.seek(0)
        return python_process.last_line(self._errors.read()) or "it said nothing."

    def end(self) -> None:
        """Stop the process, and with it a job that still runs."""
        self._process.kill()
        self._process.wait()


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    """Return a pipe of a process that was started with one."""
    if pipe is None:
        raise LookupError("this process was started without the pipe")
    return pipe


DEFAULTS = {"replicas": 1, "engines": 1, "router": "round-robin", "steps": None, "prefill": None}
_workers: list[Worker] = []  # none, or the one that runs
_one_at_a_time = threading.Lock()


def run(
    rules: Rules,
    clock: Clock,
    arrivals: Sequence[Arrival],
    watch: Callable[[dict[str, Any]], bool] | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Run a job in this process's worker, one at a time; a worker that stopped is replaced.

    Args:
        options: what differs from DEFAULTS; `worker.run` explains each.

    Returns:
        What `worker.run` returns, or None where the watcher stopped the job.
    """
    job = {"rules": rules, "clock": clock, "arrivals": arrivals, **DEFAULTS, **options}
    with _one_at_a_time:
        if not _workers:
            _workers.append(Worker())
        try:
            return _workers[0].run(job, watch)
        except BaseException:
            # also Ctrl-C: the next job must not read the answer of this one
            _workers.pop().end()
            raise

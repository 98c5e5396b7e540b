"""The simulator's worker process, kept from the first job to the end of this process."""

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from workshop import python_process
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival
from workshop.simulate.clock import Clock
from workshop.simulate.engine import ENVIRONMENT, Rules, check_installed
from workshop.worker_process import NoAnswer, Pickles, WorkerProcess


class Worker:
    """A process that has loaded vLLM and runs jobs one by one, in WORKSHOP_VLLM_PYTHON if set.

    Raises WorkshopError: WORKSHOP_VLLM_PYTHON cannot be run.
    """

    def __init__(self) -> None:
        python = os.environ.get("WORKSHOP_VLLM_PYTHON")
        if not python:
            check_installed()
            python = python_process.PYTHON
        try:
            self._process = WorkerProcess(
                "workshop.simulate.worker", Pickles(), python=python, variables=ENVIRONMENT
            )
        except OSError as error:
            raise WorkshopError(
                f"WORKSHOP_VLLM_PYTHON={python} cannot be run ({error.strerror}).",
                "Name a Python.",
            ) from None
        atexit.register(self.end)

    def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the worker's answer.

        Raises WorkshopError: the worker refused the job, or stopped before its answer; with its
        last words.
        """
        try:
            answer = self._process.ask(job)
        except NoAnswer:
            last_line = self._process.last_line() or "it said nothing."
            raise WorkshopError(
                f"The simulation ended early: {last_line}",
                "workshop doctor says what is lacking.",
            ) from None
        if isinstance(answer, WorkshopError):
            raise answer
        return answer

    def end(self) -> None:
        """Stop the process, and with it a job that still runs."""
        self._process.end()


DEFAULTS = {"replicas": 1, "engines": 1, "router": "round-robin", "steps": None, "prefill": None}
_workers: list[Worker] = []  # none, or the one that runs
_one_at_a_time = threading.Lock()


def run(rules: Rules, clock: Clock, arrivals: Sequence[Arrival], **options: Any) -> dict[str, Any]:
    """Run a job in this process's worker, one at a time; a worker that stopped is replaced.

    Args:
        options: what differs from DEFAULTS; `worker.run` explains each.

    Returns what `worker.run` does.
    """
    job = {"rules": rules, "clock": clock, "arrivals": arrivals, **DEFAULTS, **options}
    with _one_at_a_time:
        if not _workers:
            _workers.append(Worker())
        try:
            return _workers[0].run(job)
        except BaseException:
            # also Ctrl-C: the next job must not read the answer of this one
            _workers.pop().end()
            raise

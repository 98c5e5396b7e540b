"""The worker process: started at the first job, kept for the next, ended with this process."""

import atexit
import os
import pickle
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence

from workshop import python_process
from workshop.errors import WorkshopError
from workshop.simulate.arrivals import Arrival
from workshop.simulate.clock import Clock
from workshop.simulate.engine import ENVIRONMENT, Rules, check_installed


class Worker:
    """A process that has vLLM loaded and runs jobs one by one; in WORKSHOP_VLLM_PYTHON's Python where that is set.

    Jobs and answers are pickled: both halves are this package, and nobody else writes to their pipes.
    """

    def __init__(self):
        python = os.environ.get("WORKSHOP_VLLM_PYTHON")
        if not python:
            check_installed()
            python = python_process.PYTHON
        self._said = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115      it lives as long as the process
        try:
            self._process = subprocess.Popen(
                python_process.command("workshop.simulate.worker", python=python),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                env=python_process.environment(ENVIRONMENT, python=python),
                cwd=python_process.NEUTRAL_FOLDER,
            )
        except OSError as error:
            remedy = "Name a Python."
            raise WorkshopError(
                f"WORKSHOP_VLLM_PYTHON={python} cannot be run ({error.strerror}).", remedy
            ) from None
        atexit.register(self.end)

    def run(self, job: dict, seen: Callable[[dict], bool] | None = None) -> dict | None:
        """Return the worker's answer. Raises WorkshopError where it could not, in its words.

        seen: is given what is known so far; where it returns False the job ends, and so this returns None.
        """
        try:
            answer = self._ask({**job, "watched": seen is not None})
            while isinstance(answer, dict) and "so_far" in answer:
                answer = self._ask(seen(answer["so_far"]))
        except (OSError, EOFError, pickle.UnpicklingError):
            remedy = "workshop doctor says what is lacking."
            raise WorkshopError(
                f"The simulation ended early: {self._last_words()}", remedy
            ) from None
        if isinstance(answer, WorkshopError):
            raise answer
        return answer

    def _ask(self, words: object) -> object:
        pickle.dump(words, self._process.stdin)
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)

    def _last_words(self) -> str:
        self._said.seek(0)
        return python_process.last_line(self._said.read()) or "it said nothing."

    def end(self) -> None:
        """End the process; a job that runs is given up."""
        self._process.kill()
        self._process.wait()


DEFAULTS = {"replicas": 1, "engines": 1, "router": "round-robin", "steps": None, "prefill": None}
_kept: list[Worker] = []
_one_at_a_time = threading.Lock()


def run(
    rules: Rules,
    clock: Clock,
    arrivals: Sequence[Arrival],
    seen: Callable[[dict], bool] | None = None,
    **how: object,
) -> dict | None:
    """Run a job in this process's worker; a worker that is gone is replaced. One job at a time.

    how: what is not as in DEFAULTS; worker.run says what it is.
    """
    job = {"rules": rules, "clock": clock, "arrivals": arrivals, **DEFAULTS, **how}
    with _one_at_a_time:
        if not _kept:
            _kept.append(Worker())
        try:
            return _kept[0].run(job, seen)
        except (
            BaseException
        ):  # also Ctrl-C: an answer that nobody waits for must not be the next job's
            _kept.pop().end()
            raise

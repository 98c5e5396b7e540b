"""Supervise a SLURM job: announce its server, start the engine, watch, end, and say why.

slurm/job.sh starts it on the job's first node, in the engine's environment, and runs commands of
SLURM for it (`Shell`). Of packages it needs the standard library and those that vLLM brings.
"""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.job import job_end, job_file, job_start
from workshop.servers.slurm.job.job_end import End
from workshop.servers.slurm.job.job_file import own_job, refuse
from workshop.servers.slurm.job.job_start import Task, say, task_of

POLL_S = 0.2
FLUSHED_CODE = 75  # of a batch that was told to stop, and has written down what it has
STOP_S = 10.0
TOLD_S = 5.0  # between the signals that a cancelled job's engine and its shell get, on a busy node
CANCELLED_S = 30.0  # KillWait: then SLURM kills what is left
STACK_LOOKS = 10
STACKS_QUIET_S = 1.0


class Shell:
    """The shell of the job: it runs commands of SLURM, and tells of signals and of the engine's end.

    A message is ("signal", "TERM"), ("engine", exit code), ("answer", exit code), or one of ours:
    `put` adds it. None: the shell is gone.
    """

    def __init__(self, requests: TextIO, messages: TextIO, answer: Path):
        self._requests = requests
        self._answer = answer
        self._messages: queue.Queue[tuple[str, object] | None] = queue.Queue()
        self._waiting: deque[tuple[str, object] | None] = deque()
        threading.Thread(target=self._read, args=(messages,), daemon=True).start()

    def _read(self, messages: TextIO) -> None:
        for line in messages:
            kind, _, value = line.strip().partition(" ")
            self._messages.put((kind, value))
        self._messages.put(None)

    def put(self, kind: str, value: object) -> None:
        """Add a message."""
        self._messages.put((kind, value))

    def next(self, within_s: float | None = None) -> tuple[str, object] | None:
        """Return the next message, or raise queue.Empty after `within_s`."""
        if self._waiting:
            return self._waiting.popleft()
        return self._messages.get(timeout=within_s)

    def start(self) -> None:
        """Let the shell start the engine."""
        print("start", file=self._requests, flush=True)

    def run(self, *command: str) -> tuple[int, str]:
        """Return the exit code and the output of a command on the head, outside of any image."""
        print("run", *command, sep="\t", file=self._requests, flush=True)
        while True:
            message = self._messages.get()
            if message is None:
                return 1, ""
            if message[0] == "answer":
                text = self._answer.read_text(encoding="utf-8", errors="replace")
                return int(str(message[1])), text.strip()
            self._waiting.append(message)


class Supervisor:
    """A job from its announcement to its end."""

    def __init__(self, task: Task, shell: Shell):
        self.task = task
        self.shell = shell
        self.record: Path | None = None
        self._engine_runs = False
        self._over = threading.Event()

    def run(self) -> int:
        """Run the job; return its exit code."""
        try:
            end = self._served()
        except WorkshopError as error:
            end = End("error", refuse(error))
        return self._finish(end)

    def _served(self) -> End:
        """Start the server, and return how it ended."""
        with suppress(FileNotFoundError):
            job_file.reasons().unlink()
        job_start.check(self.task)
        hostnames = ("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"])
        code, nodes = self.shell.run(*hostnames)
        if not os.environ.get("SLURM_CLUSTER_NAME"):
            _, config = self.shell.run("timeout", "10", "scontrol", "show", "config")
            match = re.search(r"^ClusterName *= *(\S+)", config, re.MULTILINE)
            if match:
                os.environ["SLURM_CLUSTER_NAME"] = match[1]
        job = job_start.announce(self.task, [] if code else nodes.split())
        self.record = Path(job.record)
        record = records.load(self.record)
        self.shell.start()
        self._engine_runs = True
        self._in_thread("ready", lambda: job_start.watch(record, self.task, self._over))
        batch: subprocess.Popen[bytes] | None = None
        interrupted = False
        while True:
            message = self.shell.next()
            if message is None:  # the shell was killed: the queue knows the rest
                os._exit(1)
            kind, value = message
            if kind == "signal" and value == "TERM":
                return End("cancelled", 143)
            if kind == "signal" and batch is None:
                if self.task.batch and records.load(self.record).state == "ready":
                    return End("requeue", FLUSHED_CODE)  # the batch was about to begin
                return End("time-limit", 124)
            if kind == "signal":
                interrupted = True
                _interrupt(batch)
            elif kind == "engine" and batch is None:
                self._engine_runs = False
                if self._is_cancelled():
                    return End("cancelled", 143)
                code = int(str(value)) or 70  # it ends only when it is told to
                print(f"[workshop] the engine's step ended with exit code {value}", file=sys.stderr)
                return End("engine", code)
            elif kind == "engine":
                self._engine_runs = False
                _interrupt(batch)  # it would wait for the engine to come back
            elif isinstance(value, WorkshopError):
                refuse(value)
                return End("ready-budget", 4)
            elif isinstance(value, Exception):
                raise value
            elif kind == "ready" and self.task.batch:
                batch = self._start_batch(records.load(self.record))
                self._in_thread("batch", batch.wait)
            elif kind == "batch":
                return self._batch_end(int(str(value)), interrupted)

    def _is_cancelled(self) -> bool:
        """Wait a moment; return whether the job was told to end, as its engine was, which said so first."""
        until = time.monotonic() + TOLD_S
        with suppress(queue.Empty):
            while message := self.shell.next(max(0.0, until - time.monotonic())):
                if message == ("signal", "TERM"):
                    return True
        return False

    def _in_thread(self, kind: str, work: Callable[[], object]) -> None:
        """Do some work beside the messages; its result, or what it raises, becomes one."""

        def act() -> None:
            try:
                self.shell.put(kind, work())
            except Exception as error:
                self.shell.put(kind, error)

        threading.Thread(target=act, daemon=True).start()

    def _start_batch(self, record: ServerRecord) -> subprocess.Popen[bytes]:
        """Start the batch; the key goes to it through the environment, never by a command line."""
        command = job_start.batch_command([*self.task.batch[1:], "--url", record.url])
        environment = {**os.environ, "WORKSHOP_API_KEY": record.api_key}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    def _batch_end(self, code: int, interrupted: bool) -> End:
        if code == -signal.SIGUSR1:  # the signal came before the batch listened to it
            code = FLUSHED_CODE
        say(f"the batch ended with exit code {code}")
        if interrupted and code == FLUSHED_CODE:
            say(
                "the time limit is near: the job asks to go back into the queue; what is answered is kept"
            )
            return End("requeue", code)
        if code == 0:
            return End("done", 0)
        return End("error", code)

    def _finish(self, end: End) -> int:
        """End what still runs, clean all nodes, write down why; return the job's exit code."""
        self._over.set()
        if end.cause == "cancelled":
            # SLURM ends all steps, and kills what stays: first things first.
            self._write_end(end)
            self._wait_for_engine(CANCELLED_S)
        else:
            if self._engine_runs:
                if end.cause == "ready-budget":
                    self._show_stacks()
                self._stop_engine()
            if self.record:  # what a killed engine could not remove itself
                self._clean_nodes()
            self._write_end(end)
        for path in (job_file.reasons(), job_file.path()):
            path.unlink(missing_ok=True)
        return end.code

    def _clean_nodes(self) -> None:
        nodes = os.environ["SLURM_NNODES"]
        script = f"{os.environ['WORKSHOP_SLURM']}/node.sh"
        options = ("--overlap", "--quiet", "--immediate=5", f"--ntasks={nodes}")
        self.shell.run("srun", *options, "--ntasks-per-node=1", "bash", script, "clean")

    def _signal_engine(self, name: str) -> None:
        """Signal the engine's step alone: `scancel JOB` waits for pending tasks of an array."""
        step = f"{os.environ['SLURM_JOB_ID']}.0"
        self.shell.run("scancel", "--quiet", f"--signal={name}", step)

    def _show_stacks(self) -> None:
        """Let each process write where it stands: what hung is written nowhere else."""
        self._signal_engine("USR2")
        seen = 0
        for _ in range(STACK_LOOKS):  # until all nodes have said it: nothing more comes for a while
            time.sleep(STACKS_QUIET_S)
            now = self.task.error.read_text(errors="replace").count("(most recent call first)")
            if now and now == seen:
                return
            seen = now

    def _stop_engine(self) -> None:
        self._signal_engine("TERM")
        if not self._wait_for_engine(STOP_S):  # each node gives its part 5 s
            self._signal_engine("KILL")
            self._wait_for_engine(STOP_S)

    def _wait_for_engine(self, within_s: float) -> bool:
        """Return whether the engine's step has ended."""
        deadline = time.monotonic() + within_s
        while self._engine_runs and time.monotonic() < deadline:
            with suppress(queue.Empty):
                message = self.shell.next(POLL_S)
                self._engine_runs = message is not None and message[0] != "engine"
        return not self._engine_runs

    def _write_end(self, end: End) -> None:
        """Print why the job ended, last in both files, and ask for the requeue where it is due."""
        job = own_job()
        _, text = self.shell.run("timeout", "10", "scontrol", "--oneliner", "show", "job", job)
        facts = slurm_queue.fields(text)
        record = None
        if self.record and self.record.exists():
            record = records.load(self.record)
        why, requeue = job_end.again(end.cause, facts)
        refusal = ""
        if requeue:
            # What is written is what SLURM answers.
            job_end.write_waiting(record, slurm_queue.waits_again(job, why))
            code, answer = self.shell.run("scontrol", "requeue", job)
            if code:
                refusal = answer or "scontrol said nothing"
        logs = [job_file.reasons(), self.task.error, self.task.output]
        lines = job_end.write_end(end, record, (why, refusal), logs, facts)
        for stream in (sys.stdout, sys.stderr):
            print(lines, file=stream, flush=True)


def _interrupt(batch: subprocess.Popen[bytes] | None) -> None:
    """Let a batch write down what it has, and end."""
    if batch is not None and batch.poll() is None:
        batch.send_signal(signal.SIGUSR1)


def main() -> int:
    """Supervise the job whose task is in the arguments; return its exit code.

    Standard output is for the shell; what is said goes to the job's own file.
    """
    # The shell tells of signals; it lets them be ignored here, which a batch must not inherit.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    task = task_of(sys.argv[1:])
    requests = os.fdopen(os.dup(1), "w", encoding="utf-8")
    messages = os.fdopen(os.dup(0), encoding="utf-8")
    with task.output.open("a", encoding="utf-8") as output, open(os.devnull) as nothing:
        os.dup2(output.fileno(), 1)
        os.dup2(nothing.fileno(), 0)
    return Supervisor(task, Shell(requests, messages, task.folder / "answer")).run()


if __name__ == "__main__":
    sys.exit(main())

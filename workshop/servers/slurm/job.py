"""Supervise a SLURM job: announce its server, start the engine, watch, end, and say why.

slurm/job.sh starts it on the job's first node, in the engine's environment, and runs commands of
SLURM for it (`Shell`). Of packages it needs the standard library and those that vLLM brings.
"""

import math
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TextIO

from workshop import python_process
from workshop.engine import trace_writer
from workshop.engine.log.failures import ROOT
from workshop.engine.reconcile.keeping import keep_start
from workshop.errors import WorkshopError
from workshop.home import private_folder
from workshop.servers import records
from workshop.servers.host import machine
from workshop.servers.host.disk import refuse_full
from workshop.servers.host.programs import run
from workshop.servers.local import claims
from workshop.servers.local.answering import answers
from workshop.servers.records import ServerRecord, share
from workshop.servers.records.record_file import CLUSTER
from workshop.servers.slurm import job_file
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.follow import DONE, Follower, refuse
from workshop.servers.slurm.job_file import JobFile
from workshop.servers.start_time import LOAD_GB_PER_S, START_ALLOWANCE_S, start_budget_s
from workshop.servers.weights.check import weight_bytes

POLL_S = 0.2
PREEMPTED = "preempted: a job that goes before took its nodes"
FLUSHED_CODE = 75  # of a batch that was told to stop, and has written down what it has
BATCH_CHECK_S = 600.0  # a file of many gigabytes is read through
STOP_S = 10.0
TOLD_S = 5.0  # between the signals that a cancelled job's engine and its shell get, on a busy node
CANCELLED_S = 30.0  # KillWait: then SLURM kills what is left
STACK_LOOKS = 10
STACKS_QUIET_S = 1.0
REFUSED_REMEDY = (
    "Submit it again; a batch goes on where it was. "
    "With sbatch --requeue a job may go back by itself."
)


@dataclass(frozen=True)
class Task:
    """The task that slurm/job.sh hands over.

    command: starts the engine on every node; ends with `vllm serve MODEL FLAGS…`. batch: `workshop
    batch …`, run once the server answers; [] for a server alone. min_gpu_gib: memory that each GPU
    must have, in GiB.
    """

    gpus_per_node: int
    min_gpu_gib: float
    command: list[str]
    batch: list[str]

    @property
    def serve(self) -> list[str]:
        """The model, and the flags of `vllm serve`."""
        return self.command[self.command.index("serve") + 1 :]

    @property
    def folder(self) -> Path:
        """The job's folder, with its files."""
        return job_file.path().parent

    @property
    def output(self) -> Path:
        """The job's file for standard output."""
        return self.folder / f"output_{own_job()}.out"

    @property
    def error(self) -> Path:
        """The job's file for standard error."""
        return self.folder / f"error_{own_job()}.out"


def task_of(arguments: list[str]) -> Task:
    """Return the task in the arguments: GPUs a node, GiB, number of words of the batch, both."""
    gpus, gib, count, *rest = arguments
    return Task(int(gpus), float(gib), rest[int(count) :], rest[: int(count)])


def check(task: Task) -> None:
    """Refuse what cannot work, before a server is announced.

    Raises:
        WorkshopError: the model is not named, there are no GPUs, or they are not those of the
            split; the batch cannot run.
    """
    if not task.serve[0]:
        remedy = "Set it in slurm/site.sh: a folder that every node sees, such as your project's."
        raise WorkshopError(
            "WORKSHOP_MODELS is not set, so nobody knows where the models are.", remedy
        )
    if task.gpus_per_node == 0:
        remedy = (
            "Ask for some: --gpus-per-node, or as slurm/site.sh explains; or set "
            "WORKSHOP_GPUS_PER_NODE there."
        )
        raise WorkshopError("Neither SLURM nor the driver says that this job has GPUs.", remedy)
    tensor, pipeline = sizes(task.serve)
    nodes = int(os.environ["SLURM_NNODES"])
    if tensor * pipeline != nodes * task.gpus_per_node:
        raise WorkshopError(
            f"TP {tensor} × PP {pipeline} needs {tensor * pipeline} GPUs, and the job has "
            f"{nodes} × {task.gpus_per_node}.",
            "Ask sbatch for as many GPUs as the model is spread over: --nodes, --gpus-per-node.",
        )
    if task.batch:
        _check_batch(task.batch[1:])


def sizes(serve: list[str]) -> tuple[int, int]:
    """Return the tensor and pipeline parallel sizes that stand in the arguments of `vllm serve`."""
    return (
        int(_flag(serve, "--tensor-parallel-size") or 1),
        int(_flag(serve, "--pipeline-parallel-size") or 1),
    )


def _flag(serve: list[str], name: str) -> str:
    """Return the last value of a flag as the scripts write it; '' where it is not there."""
    value = ""
    for word, following in pairwise([*serve, ""]):
        if word == name:
            value = following
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


def _check_batch(arguments: list[str]) -> None:
    """Refuse a batch that cannot run: its file, its flags, or shards that are none."""
    first, last = (int(os.environ.get(f"SLURM_ARRAY_TASK_{name}") or 1) for name in ("MIN", "MAX"))
    if "--shard" in arguments:
        shards = int(arguments[arguments.index("--shard") + 1].partition("/")[2])
        if first < 1 or last > shards:
            raise WorkshopError(
                f"The array's tasks {first} to {last} are no shards of {shards}.",
                f"Count them from 1: --array=1-{shards}. For some of them again: "
                f"WORKSHOP_SHARDS={shards} before sbatch.",
            )
    done = run(*_batch_command(arguments), "--check", within_s=BATCH_CHECK_S)
    if done.code:
        lines = done.lines
        problems = [line.removeprefix("✗ ") for line in lines if line.startswith("✗ ")]
        remedies = [line.removeprefix("→ ") for line in lines if line.startswith("→ ")]
        raise WorkshopError(" ".join(problems or lines[-1:]), " ".join(remedies))


def _batch_command(arguments: list[str]) -> list[str]:
    return python_process.command("workshop", *arguments)


def announce(task: Task, hosts: list[str]) -> JobFile:
    """Choose address and ports, make the key, write the record and the job's file.

    Args:
        task: what the script asks for.
        hosts: the names of the job's nodes.
    """
    for folder in (private_folder("servers"), task.folder):
        refuse_full(folder, "Free some space or quota there, or call sbatch from another disk.")
    # The way to the job's other nodes is the network that the parts of the engine need.
    this_node = (socket.gethostname(), os.environ.get("SLURMD_NODENAME"))
    others = [node for node in hosts if node not in this_node]
    submit_host = os.environ.get("SLURM_SUBMIT_HOST", "")
    api_host = machine.own_address(os.environ.get("WORKSHOP_INTERFACE", ""), submit_host, *others)
    head = machine.own_address(
        os.environ.get("WORKSHOP_FABRIC", ""), *others, submit_host, api_host
    )
    ports = machine.job_ports(
        int(os.environ["SLURM_JOB_ID"]), sorted({api_host, head}), machine.fixed_port()
    )
    url = f"http://{api_host}:{ports[0]}/v1"
    name = os.environ["SLURM_JOB_NAME"]
    if task.batch:
        name = f"{name}_{own_job()}"  # shards have a record each
    trace = str(job_file.trace()) if trace_writer.SCHEDULER in task.serve else ""
    new = records.new(
        name=name,
        url=url,
        model=served_name(task.serve),
        where="slurm",
        job_id=own_job(),
        log=str(task.output),
        trace=trace,
    )
    record = _claimed(replace(new, cluster=_cluster()))
    tensor, pipeline = sizes(task.serve)
    job = JobFile(
        record=str(records.path_of(record.name)),
        served=record.model,
        api_host=api_host,
        api_port=ports[0],
        head_address=head,
        master_port=ports[1],
        check_port=ports[2],
        nodes=int(os.environ["SLURM_NNODES"]),
        gpus_per_node=task.gpus_per_node,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        min_gpu_gib=task.min_gpu_gib,
        trace=trace,
    )
    job.write()
    _say(f"head {socket.gethostname()} at {head}; the server will be {url}")
    return job


def served_name(serve: list[str]) -> str:
    """Return the name under which the server will know its model.

    The one of --served-model-name, else the last part of the folder; in a cache of the Hub the
    model's name, not its hash.
    """
    chosen = _flag(serve, "--served-model-name")
    if chosen:
        return chosen
    in_hub = re.search(r"models--[^/]*--([^/]+)/snapshots/[^/]+/?$", serve[0])
    if in_hub:
        return in_hub[1]
    return Path(serve[0]).name


def _cluster() -> str:
    """Return the name of this cluster; '' where SLURM sets none that a record can hold."""
    name = os.environ.get("SLURM_CLUSTER_NAME", "")
    if not re.fullmatch(CLUSTER, name):
        return ""
    return name


def own_job() -> str:
    """Return this job's number as SLURM's commands take it: 7, or 7_2 for a task of an array.

    One task of an array has the array's own number as its SLURM_JOB_ID; `scancel 7` there ends the
    other tasks as well.
    """
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if task:
        return f"{os.environ.get('SLURM_ARRAY_JOB_ID', '')}_{task}"
    return os.environ.get("SLURM_JOB_ID", "")


def _claimed(record: ServerRecord) -> ServerRecord:
    """Write the record under its name, and return it.

    Where another server has that name, it gets the name name-job. A job that starts again keeps the
    name and the key of its first start, so its clients stay connected.
    """
    names = (record.name, records.path_of(f"{record.name}-{record.job_id}").stem)
    for name in names:
        earlier = records.stored(name)
        if earlier and _same_job(earlier, record):
            record = replace(record, name=earlier.name, api_key=earlier.api_key)
            records.write(record)
            return record
    try:
        claims.claim(record).give_back()
    except WorkshopError:
        record = replace(record, name=names[1])
        claims.claim(record).give_back()
    return record


def _same_job(earlier: ServerRecord, record: ServerRecord) -> bool:
    """Return True if two records are of one job.

    Two clusters with one home may give the same number, and their keys must not be exchanged.
    """
    return (earlier.job_id, earlier.cluster) == (record.job_id, record.cluster)


def budget_s(model: str) -> float:
    """Return how long a start may take, in seconds.

    Bytes of the weights / the folder's speed, and an allowance for the rest.
    """
    speed = _positive(
        "WORKSHOP_LOAD_GB_PER_S", LOAD_GB_PER_S, "the speed of the model folder in GB/s"
    )
    allowance = _positive("WORKSHOP_START_ALLOWANCE_S", START_ALLOWANCE_S, "seconds")
    return start_budget_s(weight_bytes(Path(model)), speed, allowance)


def _positive(name: str, default: float, meaning: str) -> float:
    """Return the number in an environment variable.

    Raises WorkshopError: it is no number above 0.
    """
    value = os.environ.get(name) or default
    with suppress(ValueError):
        if 0 < float(value) < math.inf:
            return float(value)
    raise WorkshopError(f"{name} is {value!r}.", f"Give {meaning}, above 0.")


def watch(record: ServerRecord, task: Task, over: threading.Event) -> None:
    """Return when the server has completed a prompt, which its record then says, or the job is over.

    Raises WorkshopError: that takes longer than the budget.
    """
    model = task.serve[0]
    budget = budget_s(model)
    began = time.monotonic()
    follower = Follower([task.output, task.error], own=False)
    weights_gb = weight_bytes(Path(model)) / 1e9
    _say(f"a start may take {budget / 60:.0f} minutes ({weights_gb:.1f} GB of weights)")
    while not (over.is_set() or (slurm_queue.listens(record.url) and answers(record))):
        follower.read()
        if time.monotonic() - began > budget:
            stage = follower.reader.message
            problem = (
                f"{record.model} was not ready within its budget of {budget:.0f} s; "
                f"last seen: {stage}."
            )
            remedy = (
                "If loading was still going on, set WORKSHOP_LOAD_GB_PER_S in slurm/site.sh to "
                "the folder's real speed; where it hung, the stacks of all processes in the error "
                "file say where."
            )
            raise WorkshopError(problem, remedy)
        time.sleep(POLL_S)
    if over.is_set():
        return
    follower.read()
    record = replace(
        record, state="ready", reason="", vllm_version=follower.reader.log.version or ""
    )
    records.write(record)
    share.renew(record)
    where = f"{record.name} answers at {record.url} (node {record.host}, job {record.job_id})"
    _say(f"ready after {time.monotonic() - began:.0f} s: {where}")
    keep_start(follower.reader.log)
    _say(f"in a notebook: workshop.connect({record.name!r}); stop it: workshop stop {record.name}")


def _say(text: str) -> None:
    print(f"[workshop] {text}", flush=True)


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


@dataclass(frozen=True)
class End:
    """The end of a job.

    cause: done, cancelled, time-limit, requeue, engine, ready-budget or error. code: the job's exit
    code.
    """

    cause: str
    code: int


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
        check(self.task)
        hostnames = ("scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"])
        code, nodes = self.shell.run(*hostnames)
        if not os.environ.get("SLURM_CLUSTER_NAME"):
            _, config = self.shell.run("timeout", "10", "scontrol", "show", "config")
            match = re.search(r"^ClusterName *= *(\S+)", config, re.MULTILINE)
            if match:
                os.environ["SLURM_CLUSTER_NAME"] = match[1]
        job = announce(self.task, [] if code else nodes.split())
        self.record = Path(job.record)
        record = records.load(self.record)
        self.shell.start()
        self._engine_runs = True
        self._in_thread("ready", lambda: watch(record, self.task, self._over))
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
                return _engine_end(int(str(value)))
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
        command = _batch_command([*self.task.batch[1:], "--url", record.url])
        environment = {**os.environ, "WORKSHOP_API_KEY": record.api_key}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)

    def _batch_end(self, code: int, interrupted: bool) -> End:
        if code == -signal.SIGUSR1:  # the signal came before the batch listened to it
            code = FLUSHED_CODE
        _say(f"the batch ended with exit code {code}")
        if interrupted and code == FLUSHED_CODE:
            _say(
                "the time limit is near: the job asks to go back into the queue; what is answered is kept"
            )
            return End("requeue", code)
        if code == 0:
            return End("done", 0)
        return End("error", code)

    def _finish(self, end: End) -> int:
        """End what still runs, clean all nodes, write down why; return the job's exit code."""
        self._over.set()
        if (
            end.cause == "cancelled"
        ):  # SLURM ends all steps, and kills what stays: first things first
            self._write_end(end)
            self._wait_for_engine(CANCELLED_S)
        else:
            if self._engine_runs:
                if end.cause == "ready-budget":
                    self._show_stacks()
                self._stop_engine()
            if self.record:  # what a killed engine could not remove itself
                self._on_every_node("clean")
            self._write_end(end)
        for path in (job_file.reasons(), job_file.path()):
            path.unlink(missing_ok=True)
        return end.code

    def _on_every_node(self, part: str) -> None:
        nodes = os.environ["SLURM_NNODES"]
        script = f"{os.environ['WORKSHOP_SLURM']}/node.sh"
        options = ("--overlap", "--quiet", "--immediate=5", f"--ntasks={nodes}")
        self.shell.run("srun", *options, "--ntasks-per-node=1", "bash", script, part)

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
        why, requeue = _again(end.cause, facts)
        refusal = ""
        if requeue:
            # What is written is what SLURM answers.
            _write_waiting(record, slurm_queue.waits_again(job, why))
            code, answer = self.shell.run("scontrol", "requeue", job)
            if code:
                refusal = answer or "scontrol said nothing"
        logs = [job_file.reasons(), self.task.error, self.task.output]
        lines = _written_end(end, record, (why, refusal), logs, facts)
        for stream in (sys.stdout, sys.stderr):
            print(lines, file=stream, flush=True)


def _interrupt(batch: subprocess.Popen[bytes] | None) -> None:
    """Let a batch write down what it has, and end."""
    if batch is not None and batch.poll() is None:
        batch.send_signal(signal.SIGUSR1)


def _engine_end(code: int) -> End:
    """Return the end of a server whose engine ended: it ends only when it is told to."""
    print(f"[workshop] the engine's step ended with exit code {code}", file=sys.stderr, flush=True)
    return End("engine", code or 70)


def _written_end(
    end: End,
    record: ServerRecord | None,
    again: tuple[str, str],
    logs: list[Path],
    facts: dict[str, str],
) -> str:
    """Write the end into the record, and return the lines that say why.

    The record is removed if the job was meant to end, and gets the reason otherwise. A job that
    goes back into the queue keeps its record, as `starting`, and what was shared of it.

    Args:
        end: how the job ended.
        record: of its server; None if none was announced.
        again: why the job goes back into the queue ('' if it does not), and SLURM's words where it
            refuses that ('' otherwise).
        logs: the job's files: reasons, error, output.
        facts: the fields of `scontrol show job`.
    """
    job = own_job()
    why, refusal = again
    remedy = ""
    if refusal:
        sentence = f"SLURM did not put job {job} back into its queue ({why}): {_one_line(refusal)}"
        remedy = REFUSED_REMEDY
        _write_failed(record, sentence)
    elif why:
        sentence = slurm_queue.waits_again(job, why)
        _write_waiting(record, sentence)
    else:
        sentence, remedy = reason(end.cause, end.code, logs, facts)
        was_meant = end.cause in ("cancelled", "done") and not sentence.startswith(PREEMPTED)
        if record and was_meant:
            records.remove(record.name)
        else:
            _write_failed(record, sentence)
    text = f"[workshop] ended: {sentence}"
    if remedy:
        text += f"\n[workshop] remedy: {remedy}"
    return text


def _write_waiting(record: ServerRecord | None, why: str) -> None:
    if record is None:
        return
    record = replace(record, state="starting", reason=why)
    records.write(record)
    share.renew(record)


def _write_failed(record: ServerRecord | None, why: str) -> None:
    if record is None:
        return
    with suppress(WorkshopError, OSError):
        records.withdraw(record.name)
    records.write(replace(record, state="failed", reason=why.rstrip(".")))


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _again(cause: str, job: dict[str, str]) -> tuple[str, bool]:
    """Return why the job goes back into the queue, and whether we have to ask SLURM for that.

    '' if it does not go back.

    A preemption with a GraceTime only sends TERM; a job that ends by itself in that time does not
    come back. job: the fields of `scontrol show job`.
    """
    if cause == "done":
        return "", False
    if int(job.get("Restarts") or 0) > int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return "put back by SLURM", False
    if cause == "requeue":
        return "its time limit was near", True
    if _preempted(job) and job.get("Requeue") == "1":
        return "preempted", True
    return "", False


def _preempted(job: dict[str, str]) -> bool:
    return job.get("PreemptTime", "None") != "None"


def reason(cause: str, code: int, logs: list[Path], job: dict[str, str]) -> tuple[str, str]:
    """Return (sentence, remedy): our own refusal if there is one, else the engine's first error.

    job: the fields of `scontrol show job`.
    """
    if cause == "done":
        return DONE, ""
    if _preempted(job):
        return (
            PREEMPTED,
            "Submit it again; with sbatch --requeue it goes back into the queue by itself.",
        )
    if cause == "cancelled" and not _at_time_limit(job):
        return "cancelled: the job was told to end", ""
    if cause in ("cancelled", "time-limit"):
        return "the job's time limit is reached", "Ask for more: sbatch --time=HH:MM:SS."
    follower = Follower(logs, own=False)
    follower.read()
    follower.reader.close()
    refusal = follower.refusal()
    if refusal:
        return refusal
    failure = follower.reader.error
    if failure and failure.rank >= ROOT:
        return failure.what, failure.remedy
    # 128 + signal; the rest is an echo
    killed = re.search(r"exit code (1[3-9]\d)$", follower.ended)
    if killed:
        remedy = (
            "Signal 9 mostly means that the host had no memory left: ask for more (sbatch --mem)."
        )
        return f"vLLM was killed by signal {int(killed[1]) - 128} ({follower.ended})", remedy
    if failure:
        return failure.what, failure.remedy
    first_end = ""
    if follower.ended:
        first_end = f" ({follower.ended})"
    remedy = f"Its last words are in {logs[1].name} and {logs[2].name}."
    return f"the engine ended by itself with exit code {code}{first_end}", remedy


def _at_time_limit(job: dict[str, str]) -> bool:
    """Return True if SLURM ends this job because its time is over.

    For that it sends the same signal as scancel.
    """
    end_time = os.environ.get("SLURM_JOB_END_TIME", "")
    if end_time.isdigit():
        return time.time() > int(end_time) - 5
    return job.get("Reason") == "TimeLimit"


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

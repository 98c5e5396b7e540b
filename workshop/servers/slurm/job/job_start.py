"""The start of a SLURM job: its task, what is refused at once, its server's record, and the wait for it."""

import math
import os
import re
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from workshop import python_process
from workshop.engine import trace_writer
from workshop.engine.reconcile.keeping import keep_start
from workshop.errors import WorkshopError
from workshop.home import private_folder
from workshop.servers import records
from workshop.servers.flags import flags_of
from workshop.servers.follow import Follower
from workshop.servers.host import machine
from workshop.servers.host.disk import refuse_full
from workshop.servers.host.programs import run
from workshop.servers.local import claims
from workshop.servers.local.answering import answers
from workshop.servers.records import ServerRecord, share
from workshop.servers.records.record_file import CLUSTER
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.job import job_file
from workshop.servers.slurm.job.job_file import JobFile, own_job
from workshop.servers.start_time import LOAD_GB_PER_S, START_ALLOWANCE_S, start_budget_s
from workshop.servers.weights.check import weight_bytes

POLL_S = 0.2
BATCH_CHECK_S = 600.0  # a file of many gigabytes is read through


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
    flags = flags_of(serve[1:])
    tensor, pipeline = "tensor-parallel-size", "pipeline-parallel-size"
    return int(flags.get(tensor) or 1), int(flags.get(pipeline) or 1)


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
    done = run(*batch_command(arguments), "--check", within_s=BATCH_CHECK_S)
    if done.code:
        lines = done.lines
        problems = [line.removeprefix("✗ ") for line in lines if line.startswith("✗ ")]
        remedies = [line.removeprefix("→ ") for line in lines if line.startswith("→ ")]
        raise WorkshopError(" ".join(problems or lines[-1:]), " ".join(remedies))


def batch_command(arguments: list[str]) -> list[str]:
    """Return the command that runs `workshop` with these arguments."""
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
    say(f"head {socket.gethostname()} at {head}; the server will be {url}")
    return job


def served_name(serve: list[str]) -> str:
    """Return the name under which the server will know its model.

    That of --served-model-name, else the folder's, or in a cache of the Hub the model's, not its
    hash.
    """
    chosen = flags_of(serve[1:]).get("served-model-name")
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


def _claimed(record: ServerRecord) -> ServerRecord:
    """Write the record under its name, and return it.

    Where another server has that name, it gets the name name-job. A job that starts again keeps the
    name and the key of its first start, so its clients stay connected.
    """
    names = (record.name, records.path_of(f"{record.name}-{record.job_id}").stem)
    for name in names:
        earlier = records.stored(name)
        # Two clusters with one home may give one number, and keys must not be exchanged.
        if earlier and (earlier.job_id, earlier.cluster) == (record.job_id, record.cluster):
            record = replace(record, name=earlier.name, api_key=earlier.api_key)
            records.write(record)
            return record
    try:
        claims.claim(record).give_back()
    except WorkshopError:
        record = replace(record, name=names[1])
        claims.claim(record).give_back()
    return record


def budget_s(model: str) -> float:
    """Return the seconds that a start may take: to read the weights, and an allowance."""
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
    say(f"a start may take {budget / 60:.0f} minutes ({weights_gb:.1f} GB of weights)")
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
    say(f"ready after {time.monotonic() - began:.0f} s: {where}")
    keep_start(follower.reader.log)
    say(f"in a notebook: workshop.connect({record.name!r}); stop it: workshop stop {record.name}")


def say(text: str) -> None:
    """Print a line of ours into the job's own file."""
    print(f"[workshop] {text}", flush=True)

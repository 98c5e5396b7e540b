"""Before anything is loaded: every node tells the head what it has, and the head says go or no.

`check` runs once on every node of the step, in the engine's own environment. A start that cannot
work ends here, within seconds, with one sentence about the node and the plan.
"""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.servers.host import gpus, machine
from workshop.servers.host.disk import GIB, free_bytes
from workshop.servers.slurm.job import fabric
from workshop.servers.slurm.job.job_file import JobFile
from workshop.servers.weights import check as slurm_weights
from workshop.vllm_package import bytecode_problem, installed, is_cpu

WAIT_S = 25.0  # for the other nodes: they all start at the same moment
SCRATCH_NEEDED_BYTES = 256 * 2**20  # compile caches and temporary files
# /dev/shm: where a node has several ranks, vLLM 0.32 refuses less than its largest queue between
# them, 10 chunks of 24 MiB (shm_broadcast.py; that from the engine has 10 of 16); a chunk for what
# is on the way to each rank.
SHM_BASE_BYTES = 64 * 2**20
SHM_QUEUE_BYTES = 240 * 2**20
SHM_RANK_BYTES = 16 * 2**20
WORKING_GIB = 1.0  # least that a GPU needs beside its share of the weights
USED_ALLOWED_GIB = 2.0  # another process that holds more than this will be in the way
PROGRAM_S = 20.0  # for a program of one line, on a busy node
PREFETCH = "workshop prefetch MODEL --to FOLDER"
FABRIC = "WORKSHOP_FABRIC in slurm/site.sh names the network between the nodes."
ANOTHER = "Ask for another node (sbatch --exclude)"
SMALL_GPU = (
    "Choose the GPU in slurm/site.sh (SBATCH_CONSTRAINT), or spread the model over more: "
    "workshop slurm submit MODEL --gpu NAME plans it."
)
Verdict = tuple[str, str] | None  # sentence and remedy; None: go
# of which the first is the verdict; what comes after it is not looked for
Problems = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
    """The hardware and files of one node, in bytes; gpus are (name, memory, free) of this job's."""

    rank: int
    node: str
    gpus: list[tuple[str, int, int]]
    driver: str  # '' if there is a driver that can answer; else its words
    build: str  # distribution and version of vLLM
    model: bool
    missing: list[str]
    unreadable: list[str]
    weights: int
    scratch: str
    scratch_free: int
    shm_free: int
    old_driver: Verdict = None
    # why no program runs from the scratch folder; '' if it does
    scratch_refuses: str = ""


def gather(model: str) -> Facts:
    """Return the facts of this node."""
    folder = Path(model)
    scratch = os.environ.get("TMPDIR", "/tmp")
    is_folder = (folder / "config.json").is_file()
    look = gpus.look()
    build = installed()
    old_driver = None
    if look.maker == "nvidia" and not is_cpu(*build):
        old_driver = gpus.driver_problem(look.driver)
    driver = look.problem
    if not driver and not look.maker:
        driver = "no program of a GPU's driver is here (nvidia-smi, amd-smi)"
    missing: list[str] = []
    unreadable: list[str] = []
    if is_folder:
        missing = slurm_weights.missing(folder)
        unreadable = slurm_weights.unreadable(folder)
    shared_memory = Path("/dev/shm")
    shm_free = 2**62  # a system without it
    if shared_memory.is_dir():
        shm_free = free_bytes(shared_memory)
    return Facts(
        rank=int(os.environ["SLURM_NODEID"]),
        node=socket.gethostname(),
        gpus=[(gpu.name, gpu.memory_bytes, gpu.free_bytes) for gpu in gpus.visible(look)],
        driver=driver,
        build=" ".join(build).strip(),
        model=is_folder,
        missing=missing,
        unreadable=unreadable,
        weights=slurm_weights.weight_bytes(folder),
        scratch=scratch,
        scratch_free=free_bytes(Path(scratch)),
        shm_free=shm_free,
        old_driver=old_driver,
        scratch_refuses=refused_execution(Path(scratch)),
    )


def refused_execution(folder: Path) -> str:
    """Return why a program does not run from a folder; '' if it does.

    torch, Triton and vLLM compile libraries there, and load them: on a disk mounted noexec they
    fail after loading.
    """
    try:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            program = Path(place) / "program"
            program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
            program.chmod(0o700)
            subprocess.run([program], check=True, capture_output=True, timeout=PROGRAM_S)
    except OSError as error:
        # the check of the disk's room says it better
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return ""
        return error.strerror or type(error).__name__
    except subprocess.SubprocessError as error:
        return str(error)
    return ""


def judge(all_facts: list[Facts], job: JobFile) -> Verdict:
    """Return (sentence, remedy) of the first problem; None if there is none."""
    return next(_problems(all_facts, job), None)


def _problems(all_facts: list[Facts], job: JobFile) -> Problems:
    """Yield every problem, in the order in which they are worth knowing."""
    yield from _absent(all_facts, job)
    for check in (_model, _build, _gpus, _disks):
        for facts in all_facts:
            yield from check(facts, all_facts[0], job)


def _absent(facts: list[Facts], job: JobFile) -> Problems:
    absent = set(range(job.nodes)) - {node.rank for node in facts}
    if absent:
        reporters = ", ".join(node.node for node in facts)
        problem = (
            f"{len(absent)} of {job.nodes} nodes did not report to the head "
            f"within {WAIT_S:.0f} s; {reporters} did."
        )
        yield problem, f"Look in the error file for what the others say. {FABRIC}"


def _model(own: Facts, head: Facts, job: JobFile) -> Problems:
    if not own.model:
        remedy = (
            "Put the model into a folder that every node sees "
            f"(WORKSHOP_MODELS in slurm/site.sh): {PREFETCH}"
        )
        yield f"{own.node} sees no config.json in the model's folder.", remedy
    if own.missing:
        problem = (
            f"{own.node} lacks {len(own.missing)} of the model's shards, {own.missing[0]} first."
        )
        yield problem, f"Complete the download: {PREFETCH}"
    if own.unreadable:
        problem = f"On {own.node} you may not read {own.unreadable[0]} of the model's folder."
        yield problem, "Let whoever downloaded it run: chmod -R a+rX FOLDER"
    if not own.weights:
        yield f"{own.node} sees no weights in the model's folder.", PREFETCH


def _build(own: Facts, head: Facts, job: JobFile) -> Problems:
    environment = "Correct workshop_environment in slurm/site.sh."
    if not own.build:
        yield f"vLLM is not installed in the environment of {own.node}.", environment
    if is_cpu(*(*own.build.split(), "")[:2]) and not os.environ.get("WORKSHOP_ALLOW_CPU"):
        problem = f"{own.node} has the CPU build of vLLM ({own.build}), and this job has GPUs."
        remedy = f"Make the GPU environment: conda env create -f environment.yml. {environment}"
        yield problem, remedy
    if own.build != head.build:
        problem = f"{head.node} runs {head.build}, and {own.node} {own.build}."
        yield problem, "All nodes need the same environment, on a file system that they share."


def _gpus(own: Facts, head: Facts, job: JobFile) -> Problems:
    if own.driver and not own.gpus:
        problem = f"{own.node} shows no GPU: {own.driver}."
        yield problem, "Choose the partition with GPUs in slurm/site.sh."
    if len(own.gpus) != job.gpus_per_node:
        problem = (
            f"{own.node} gives this job {len(own.gpus)} GPUs, "
            f"and the plan is for {job.gpus_per_node} a node."
        )
        yield problem, "Check --gpus-per-node and the partition."
    if own.old_driver:
        yield f"{own.node}: {own.old_driver[0]}", own.old_driver[1]
    ranks = job.tensor_parallel_size * job.pipeline_parallel_size
    weights = head.weights / GIB
    least = max(job.min_gpu_gib, weights / ranks + WORKING_GIB)
    for place, (name, memory, free) in enumerate(own.gpus):
        if memory and memory / GIB < least:  # 0: nothing tells how much there is
            problem = (
                f"GPU {place} of {own.node} ({name}) has {memory / GIB:.1f} GiB, "
                f"and the plan needs {least:.1f}"
            )
            share = f"{weights:.1f} GiB of weights / {ranks} GPUs = {weights / ranks:.1f} GiB a GPU"
            yield f"{problem} ({share}, and KV cache beside).", SMALL_GPU
        if memory - free > USED_ALLOWED_GIB * GIB:
            used = (memory - free) / GIB
            problem = f"Another process holds {used:.1f} GiB of GPU {place} of {own.node}."
            yield problem, f"{ANOTHER}, and tell the cluster's administrators."


def _disks(own: Facts, head: Facts, job: JobFile) -> Problems:
    if own.scratch_refuses:
        problem = (
            f"{own.node} runs no programs from {own.scratch} ({own.scratch_refuses}): "
            "it is mounted noexec, perhaps."
        )
        remedy = (
            "Set WORKSHOP_SCRATCH in slurm/site.sh to a disk of the nodes that runs programs: "
            "torch and vLLM compile there."
        )
        yield problem, remedy
    if own.scratch_free < SCRATCH_NEEDED_BYTES:
        remedy = f"Set WORKSHOP_SCRATCH in slurm/site.sh to a disk with room. {ANOTHER}."
        yield _little_room(own.node, own.scratch, own.scratch_free, SCRATCH_NEEDED_BYTES), remedy
    shm_needed = SHM_BASE_BYTES
    if job.gpus_per_node > 1:
        shm_needed += SHM_QUEUE_BYTES + job.gpus_per_node * SHM_RANK_BYTES
    if own.shm_free < shm_needed:
        problem = _little_room(own.node, "/dev/shm", own.shm_free, shm_needed)
        yield problem, f"{ANOTHER}, or for a larger /dev/shm."


def _little_room(node: str, place: str, free: int, needed: int) -> str:
    return (
        f"{node} has {free / 2**20:.0f} MiB left in {place}, and {needed / 2**20:.0f} are needed."
    )


def lead(own: Facts, job: JobFile) -> Verdict:
    """Collect the facts of all nodes on the head, judge, tell every node the verdict, return it."""
    collected = [own]
    connections: list[socket.socket] = []
    deadline = time.monotonic() + WAIT_S
    with socket.create_server((job.head_address, job.check_port)) as server:
        while len(collected) < job.nodes:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                break
            server.settimeout(seconds_left)
            with suppress(TimeoutError, ValueError, TypeError):
                connection = server.accept()[0]
                connection.settimeout(5)
                collected.append(Facts(**json.loads(connection.makefile().readline())))
                connections.append(connection)
        collected.sort(key=lambda facts: facts.rank)
        verdict = judge(collected, job)
        for connection in connections:
            with suppress(OSError):
                connection.sendall(json.dumps(verdict).encode() + b"\n")
                connection.close()
    return verdict


def follow(own: Facts, job: JobFile) -> Verdict:
    """On another node: report to the head within WAIT_S, return its verdict.

    Raises WorkshopError: the head cannot be reached.
    """
    head = job.head_address, job.check_port
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with socket.create_connection(head, timeout=5) as connection:
                connection.settimeout(WAIT_S + 5)
                connection.sendall(json.dumps(asdict(own)).encode() + b"\n")
                return json.loads(connection.makefile().readline() or "null")
        except OSError as error:
            if time.monotonic() > deadline:
                problem = (
                    f"{own.node} cannot reach the head at {head[0]}:{head[1]} "
                    f"within {WAIT_S:.0f} s ({error})."
                )
                raise WorkshopError(problem, FABRIC) from None
            time.sleep(0.1)


@dataclass(frozen=True)
class Node:
    """This node, after all of them were found fit: its address and interface."""

    address: str
    interface: str


def check(model: str, job: JobFile) -> Node | None:
    """Examine this node, report, wait for the head's verdict.

    Returns: what the engine needs to know of this node; None where the head refuses, and says why.

    Raises:
        WorkshopError: on the head: a node has not what the plan needs; elsewhere: the head cannot
            be reached.
    """
    own = gather(model)
    head = job.head_address
    if own.rank == 0:
        address = head
        verdict = lead(own, job)
    else:
        address = machine.own_address(os.environ.get("WORKSHOP_FABRIC", ""), head)
        verdict = follow(own, job)
    if verdict is not None:
        if own.rank == 0:  # once is enough
            raise WorkshopError(*verdict)
        return None
    uncompiled = bytecode_problem()
    if own.rank == 0 and uncompiled:
        problem, remedy = uncompiled
        print(f"[workshop] vLLM is {problem}. {remedy}", file=sys.stderr, flush=True)
    interface = next((name for name, place in machine.interfaces().items() if place == address), "")
    if fabric.wanted(job.nodes, is_cpu(*installed())):
        # vLLM's own port, later
        result = fabric.test(
            own.rank, job.nodes, job.gpus_per_node, head, job.master_port, interface
        )
        if result:
            print(f"[workshop] {result}", file=sys.stderr, flush=True)
    return Node(address, interface)

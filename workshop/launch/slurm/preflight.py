"""Before anything is loaded: every node tells the head what it has, and the head says go or no.

`python -m workshop.launch.slurm.preflight MODEL` runs once on every node of the step, in the engine's own
environment, and prints this node's address and interface for the shell. A start that cannot work ends here, within
seconds, with one sentence about the node and the plan.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.launch.machine import GIB, disk_free_bytes
from workshop.launch.slurm import net as slurm_net
from workshop.launch.slurm.follow import refuse
from workshop.launch.vllm_main import installed
from workshop.launch.weights import check as slurm_weights

WAIT_S = 25.0  # for the other nodes: they all start at the same moment
SCRATCH_NEEDED_BYTES = 256 * 2**20  # compile caches and temporary files
SHM_NEEDED_BYTES = 64 * 2**20  # the queues between vLLM's processes
WORKING_GIB = 1.0  # least that a GPU needs beside its share of the weights
USED_ALLOWED_GIB = 2.0  # another process that holds more than this will be in the way


@dataclass(frozen=True)
class Facts:
    """What one node has. Sizes in bytes; gpus are (name, memory, free) of those that this job was given."""

    rank: int
    node: str
    gpus: tuple[tuple[str, int, int], ...]
    driver: bool
    build: str  # distribution and version of vLLM
    model: bool
    missing: tuple[str, ...]
    unreadable: tuple[str, ...]
    weights: int
    scratch: str
    scratch_free: int
    shm_free: int


@dataclass(frozen=True)
class Expected:
    """What the plan says: from the script, through the environment."""

    nodes: int
    gpus_per_node: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    min_gpu_gib: float

    @classmethod
    def from_environment(cls) -> Expected:
        """Read the WORKSHOP_… and SLURM_… variables of the step."""
        env = os.environ
        return cls(
            int(env["SLURM_NNODES"]),
            int(env["WORKSHOP_GPUS_PER_NODE"]),
            int(env["WORKSHOP_TP"]),
            int(env["WORKSHOP_PP"]),
            float(env.get("WORKSHOP_MIN_GPU_GIB") or 0),
        )


def gather(model: str) -> Facts:
    """Return the facts of this node."""
    folder, scratch = Path(model), os.environ.get("TMPDIR", "/tmp")
    is_folder = (folder / "config.json").is_file()
    rows, driver = _gpus()
    return Facts(
        rank=int(os.environ["SLURM_NODEID"]),
        node=socket.gethostname(),
        gpus=tuple(rows),
        driver=driver,
        build=" ".join(installed()).strip(),
        model=is_folder,
        missing=tuple(slurm_weights.missing(folder)) if is_folder else (),
        unreadable=tuple(slurm_weights.unreadable(folder)) if is_folder else (),
        weights=slurm_weights.weight_bytes(folder),
        scratch=scratch,
        scratch_free=disk_free_bytes(Path(scratch)),
        shm_free=disk_free_bytes(Path("/dev/shm")) if Path("/dev/shm").is_dir() else SHM_NEEDED_BYTES,
    )


def _gpus() -> tuple[list[tuple[str, int, int]], bool]:
    """Return the GPUs that this step was given, and whether there is a driver that tells of them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if given is None else [part for part in given.split(",") if part]
    if not shutil.which("nvidia-smi"):
        return [("", 0, 0)] * len(wanted or []), False
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return [], False
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.count(",") == 4]
    sizes = {
        key: (row[2], int(row[3]) * 2**20, int(row[4]) * 2**20)
        for row in rows
        if row[3].isdigit() and row[4].isdigit()
        for key in (row[0], row[1])
    }
    if wanted is None:
        return [sizes[row[0]] for row in rows if row[0] in sizes], True
    # Under a cgroup the driver counts the job's own devices from 0, whatever the variable says.
    order = [row[0] for row in rows if row[0] in sizes]
    found = [
        sizes.get(key) or sizes[order[place]] for place, key in enumerate(wanted) if key in sizes or place < len(order)
    ]
    return found, True


def judge(all_facts: list[Facts], expected: Expected) -> tuple[str, str] | None:
    """Return (sentence, remedy) of the first thing that cannot work; None if nothing speaks against it."""
    return next(
        (
            found
            for check in (_world, _models, _builds, _gpu_counts, _gpu_memory, _disks)
            if (found := check(all_facts, expected))
        ),
        None,
    )


def _world(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    need, have = e.tensor_parallel_size * e.pipeline_parallel_size, e.nodes * e.gpus_per_node
    if need != have:
        return (
            f"TP {e.tensor_parallel_size} × PP {e.pipeline_parallel_size} needs {need} GPUs, and the job has "
            f"{e.nodes} × {e.gpus_per_node}.",
            "Ask sbatch for as many GPUs as the model is spread over.",
        )
    absent = set(range(e.nodes)) - {each.rank for each in facts}
    if absent:
        seen = ", ".join(each.node for each in facts)
        return (
            f"{len(absent)} of {e.nodes} nodes did not report to the head within {WAIT_S:.0f} s; {seen} did.",
            "Look in the error file for what the others say; WORKSHOP_FABRIC in slurm/site.sh names the network "
            "between the nodes.",
        )
    return None


def _models(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    for each in facts:
        if not each.model:
            return (
                f"{each.node} sees no config.json in the model's folder.",
                "Put the model into a folder that every node sees (WORKSHOP_MODELS in slurm/site.sh): "
                "workshop prefetch MODEL --to FOLDER",
            )
        if each.missing:
            return (
                f"{each.node} lacks {len(each.missing)} of the model's shards, {each.missing[0]} first.",
                "Complete the download: workshop prefetch MODEL --to FOLDER",
            )
        if each.unreadable:
            return (
                f"On {each.node} you may not read {each.unreadable[0]} of the model's folder.",
                "Let whoever downloaded it run: chmod -R a+rX FOLDER",
            )
        if not each.weights:
            return f"{each.node} sees no weights in the model's folder.", "workshop prefetch MODEL --to FOLDER"
    return None


def _builds(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    for each in facts:
        if not each.build:
            return (
                f"vLLM is not installed in the environment of {each.node}.",
                "Correct workshop_environment in slurm/site.sh.",
            )
        if each.build != facts[0].build:
            return (
                f"{facts[0].node} runs {facts[0].build}, and {each.node} {each.build}.",
                "All nodes need the same environment, on a file system that they share.",
            )
    return None


def _gpu_counts(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    for each in facts:
        if len(each.gpus) < e.gpus_per_node:
            why = "" if each.driver else " (nvidia-smi, the driver's own program, is not there)"
            return (
                f"{each.node} gives this job {len(each.gpus)} GPUs, and the plan is for {e.gpus_per_node} a node{why}.",
                "Ask for them with --gpus-per-node, on a partition whose nodes have as many (sinfo -o '%P %G').",
            )
    return None


def _gpu_memory(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    ranks = e.tensor_parallel_size * e.pipeline_parallel_size
    share = facts[0].weights / ranks / GIB
    figures = f"{facts[0].weights / GIB:.1f} GiB of weights / {ranks} GPUs = {share:.1f} GiB a GPU, and KV cache beside"
    for each in facts:
        for place, (name, memory, free) in enumerate(each.gpus):
            if not memory:  # nothing tells how much there is
                continue
            if memory / GIB < max(e.min_gpu_gib, share + WORKING_GIB):
                least = max(e.min_gpu_gib, share + WORKING_GIB)
                return (
                    f"GPU {place} of {each.node} ({name}) has {memory / GIB:.1f} GiB, and the plan needs "
                    f"{least:.1f} ({figures}).",
                    "Choose the GPU in slurm/site.sh (SBATCH_CONSTRAINT), or spread "
                    "the model over more: workshop slurm submit MODEL --gpu NAME plans it.",
                )
            if memory - free > USED_ALLOWED_GIB * GIB:
                return (
                    f"Another process holds {(memory - free) / GIB:.1f} GiB of GPU {place} of {each.node}.",
                    "Ask for another node (sbatch --exclude), and tell the cluster's administrators.",
                )
    return None


def _disks(facts: list[Facts], e: Expected) -> tuple[str, str] | None:
    for each in facts:
        for place, free, need in (
            (each.scratch, each.scratch_free, SCRATCH_NEEDED_BYTES),
            ("/dev/shm", each.shm_free, SHM_NEEDED_BYTES),
        ):
            if free < need:
                return (
                    f"{each.node} has {free / 2**20:.0f} MiB left in {place}, and {need / 2**20:.0f} are needed.",
                    "Set WORKSHOP_SCRATCH in slurm/site.sh to a disk with room, or ask for another node "
                    "(sbatch --exclude).",
                )
    return None


def lead(own: Facts, expected: Expected, address: str, port: int) -> tuple[str, str] | None:
    """On the head: collect the facts of all nodes, judge, tell every node the verdict, return it."""
    collected, connections = [own], []
    deadline = time.monotonic() + WAIT_S
    with socket.create_server((address, port)) as server:
        while len(collected) < expected.nodes and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with suppress(TimeoutError, ValueError, TypeError):
                connection = server.accept()[0]
                connection.settimeout(5)
                line = json.loads(connection.makefile().readline())
                collected.append(Facts(**{**line, "gpus": tuple(map(tuple, line["gpus"]))}))
                connections.append(connection)
        collected.sort(key=lambda each: each.rank)
        verdict = judge(collected, expected)
        for connection in connections:
            with suppress(OSError):
                connection.sendall(json.dumps(verdict).encode() + b"\n")
                connection.close()
    return verdict


def follow(own: Facts, address: str, port: int) -> tuple[str, str] | None:
    """On another node: report to the head, return its verdict.

    Raises:
        WorkshopError: the head is not reached within WAIT_S.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            with socket.create_connection((address, port), timeout=5) as connection:
                connection.settimeout(WAIT_S + 5)
                connection.sendall(json.dumps(asdict(own)).encode() + b"\n")
                return json.loads(connection.makefile().readline() or "null")
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkshopError(
                    f"{own.node} cannot reach the head at {address}:{port} within {WAIT_S:.0f} s ({error}).",
                    "Set WORKSHOP_FABRIC in slurm/site.sh to the network between the nodes.",
                ) from None
            time.sleep(0.1)


def main() -> int:
    """Examine, report, wait for the verdict; print this node's address and interface."""
    try:
        expected, own = Expected.from_environment(), gather(sys.argv[1])
        head, port = os.environ["WORKSHOP_HEAD_ADDRESS"], int(os.environ["WORKSHOP_CHECK_PORT"])
        if own.rank == 0:
            address, verdict = head, lead(own, expected, head, port)
        else:
            address = slurm_net.own_address(os.environ.get("WORKSHOP_FABRIC", ""), head)
            verdict = follow(own, head, port)
        if verdict is not None:
            if own.rank == 0:  # once is enough
                raise WorkshopError(*verdict)
            return 3
    except WorkshopError as error:
        return refuse(error)
    print(address, slurm_net.interface_of(address), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())

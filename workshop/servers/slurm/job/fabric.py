"""Test the network between the nodes before anything is loaded: NCCL's transport and its speed.

`test` runs on every node of the step: a process for each GPU, all-reduces of a large and of a small
tensor for five seconds at most, then a sentence with the result. On the test bed Gloo replaces
NCCL.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from typing import TextIO

from inference_planner.split.communication import LINKS

from workshop import python_process
from workshop.errors import WorkshopError

SECONDS = 5.0  # for both sizes together, once NCCL has connected
LARGE_BYTES = 64 * 2**20  # as a long prompt sends
SMALL_BYTES = 32 * 2**10  # as one token of 405B sends: 16,384 numbers of 2 bytes
CONNECT_S = 60.0  # imports, and NCCL's start on all GPUs
PLANNED = "infiniband-ndr"  # what plan() counts with between nodes
# What NCCL says with NCCL_DEBUG=INFO (src/transport/net_ib, net_socket; 2.18 to 2.28).
VIA = re.compile(r"NCCL INFO Channel .* via NET/(IB|Socket|\w+)")
CARD = re.compile(r"NCCL INFO NET/IB : Using .*?\]([\w.]+):\d+/(IB|RoCE)")
MEASURED = re.compile(r'^{"ranks".*}$', re.MULTILINE)
WRONG = re.compile(r"(?:NCCL WARN |Error: )(.*)")


def wanted(nodes: int, cpu: bool) -> bool:
    """Return True if the network is to be tested.

    WORKSHOP_NETWORK_TEST (yes, no) decides; by default GPUs of several nodes are tested.
    """
    choice = os.environ.get("WORKSHOP_NETWORK_TEST", "")
    if choice in ("yes", "no"):
        return choice == "yes"
    return nodes > 1 and not cpu


def test(node: int, nodes: int, gpus: int, head: str, port: int, interface: str) -> str:
    """Run this node's part; return the sentence on the head, '' on the others.

    Args:
        node: this node's number, from 0 (the head).
        nodes: how many there are.
        gpus: of this node, each with a process of its own.
        head, port: where the processes meet.
        interface: the network interface that NCCL and Gloo use.

    Raises WorkshopError: the GPUs cannot reduce together.
    """
    with contextlib.ExitStack() as stack:
        files: list[TextIO] = []
        processes: list[subprocess.Popen[bytes]] = []
        for local in range(gpus):
            file = stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            files.append(file)
            rank = node * gpus + local
            processes.append(_start(rank, nodes * gpus, local, head, port, interface, file))
        late = _wait(processes)
        outputs: list[str] = []
        for file in files:
            file.seek(0)
            outputs.append(file.read())
    if any(process.returncode for process in processes):
        remedy = (
            "Set WORKSHOP_FABRIC (and NCCL_IB_HCA) in slurm/site.sh to the network between the "
            "nodes; WORKSHOP_NETWORK_TEST=no leaves this test out."
        )
        reason = why([*outputs, late])
        raise WorkshopError(f"The GPUs of the nodes cannot reduce together: {reason}", remedy)
    if node != 0:
        return ""
    return sentence(outputs[0], nodes)


def _start(
    rank: int, ranks: int, local: int, head: str, port: int, interface: str, output: TextIO
) -> subprocess.Popen[bytes]:
    """Start the process of one GPU, which runs `main`."""
    own = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    command = python_process.command(
        "workshop.servers.slurm.job.fabric", str(rank), str(ranks), str(local), head, str(port)
    )
    environment = python_process.environment(base={**own, **os.environ})
    return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _wait(processes: list[subprocess.Popen[bytes]]) -> str:
    """Wait for the processes; kill those that take too long; return an error line about them."""
    late = ""
    deadline = time.monotonic() + CONNECT_S + SECONDS
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            late = f"Error: no answer within {CONNECT_S + SECONDS:.0f} s"
    return late


def why(outputs: list[str]) -> str:
    """Return the reason in NCCL's or torch's output: the first warning or error, or a last line."""
    for output in outputs:
        match = WRONG.search(output)
        if match:
            return match[1].strip()[:300]
    for output in reversed(outputs):
        line = python_process.last_line(output)
        if line:
            return line[:300]
    return "it ended without a word"


def transport(output: str) -> str:
    """Return the transport between nodes as NCCL names it: InfiniBand, RoCE, Socket or a plugin."""
    via = VIA.search(output)
    if not via:
        if "backend gloo" in output:
            return "Socket (Gloo)"
        return "no network: NVLink, PCIe or shared memory"
    card = CARD.search(output)
    if via[1] == "IB" and card:
        name = "RoCE"
        if card[2] == "IB":
            name = "InfiniBand"
        return f"{name} ({card[1]})"
    return via[1]


def sentence(output: str, nodes: int) -> str:
    """Return the measured speed beside the plan's, and what to do if it is much slower.

    GB/s: 10**9 bytes a second and GPU, one way (the ring's 2·(n-1)/n counted in).
    """
    measured = json.loads(MEASURED.findall(output)[-1])
    planned = LINKS[PLANNED]
    planned_gb_s = planned.gb_s * planned.ports(max(1, measured["ranks"] // nodes))
    text = (
        f"all-reduce over {measured['ranks']} GPUs on {nodes} nodes: {transport(output)}, "
        f"{measured['gb_s']:.3g} GB/s, {measured['us']:.0f} µs for one token's; "
        f"the plan counts with {planned.name}: {planned_gb_s:g} GB/s, {planned.all_reduce_us:g} µs"
    )
    if measured["gb_s"] < planned_gb_s / 4:
        text += "; TP over nodes will be slow here: PARALLEL=pipeline, or NCCL_IB_HCA in site.sh"
    return text


def main(rank: int, ranks: int, local: int, head: str, port: int) -> None:
    """One GPU's part: print what it measured, among NCCL's words."""
    import torch
    import torch.distributed as distributed

    cuda = torch.cuda.is_available()
    backend = "gloo"
    device = "cpu"
    if cuda:
        torch.cuda.set_device(local)
        backend = "nccl"
        device = "cuda"
    print(f"backend {backend}", flush=True)
    distributed.init_process_group(
        backend, init_method=f"tcp://{head}:{port}", rank=rank, world_size=ranks
    )
    times: dict[int, float] = {}
    for size in (SMALL_BYTES, LARGE_BYTES):
        data = torch.zeros(size // 4, device=device)

        def reduce(data=data) -> None:
            distributed.all_reduce(data)
            if cuda:
                torch.cuda.synchronize()

        reduce()  # connects
        began = time.monotonic()
        reduce()
        possible = int(SECONDS / 2 / (time.monotonic() - began))
        # The same number on every rank: the first one decides.
        agreed = torch.tensor([max(1, min(100, possible))], device=data.device)
        distributed.broadcast(agreed, 0)
        count = int(agreed)
        began = time.monotonic()
        for _ in range(count):
            reduce()
        times[size] = (time.monotonic() - began) / count
    moved_bytes = 2 * (ranks - 1) / ranks * LARGE_BYTES
    measured = {
        "ranks": ranks,
        "gb_s": moved_bytes / times[LARGE_BYTES] / 1e9,
        "us": times[SMALL_BYTES] * 1e6,
    }
    print(json.dumps(measured))
    distributed.destroy_process_group()


if __name__ == "__main__":
    rank, ranks, local, head, port = sys.argv[1:6]
    main(int(rank), int(ranks), int(local), head, int(port))

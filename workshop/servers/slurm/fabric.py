"""The network between the nodes, tried before anything is loaded: which transport NCCL took, and how fast it is.

`test` runs on every node of the step: a process for each GPU, all-reduces of a large and of a small tensor for five
seconds at most, then the sentence about them. On the test bed Gloo takes NCCL's place.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time

from inference_planner.communication import LINKS

from workshop import python_process
from workshop.errors import WorkshopError

SECONDS = 5.0  # for both sizes together, once NCCL has connected
# a long prompt's; one token's of 405B (16,384 numbers of 2 bytes)
LARGE_BYTES, SMALL_BYTES = 64 * 2**20, 32 * 2**10
CONNECT_S = 60.0  # imports, and NCCL's start on all GPUs
PLANNED = "infiniband-ndr"  # what plan() counts with between nodes
# What NCCL says with NCCL_DEBUG=INFO (src/transport/net_ib, net_socket; 2.18 to 2.28).
VIA = re.compile(r"NCCL INFO Channel .* via NET/(IB|Socket|\w+)")
CARD = re.compile(r"NCCL INFO NET/IB : Using .*?\]([\w.]+):\d+/(IB|RoCE)")
MEASURED = re.compile(r'^{"ranks".*}$', re.MULTILINE)
WRONG = re.compile(r"(?:NCCL WARN |Error: )(.*)")


def wanted(nodes: int, cpu: bool) -> bool:
    """Return whether to try it: WORKSHOP_NETWORK_TEST (yes, no), by default where GPUs of several nodes meet."""
    return {"yes": True, "no": False}.get(
        os.environ.get("WORKSHOP_NETWORK_TEST", ""), nodes > 1 and not cpu
    )


def test(node: int, nodes: int, gpus: int, head: str, port: int, interface: str) -> str:
    """Run this node's part; return the sentence on the head, '' on the others."""
    own = {"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(tempfile.TemporaryFile("w+", errors="replace")) for _ in range(gpus)
        ]
        ranks = []
        for local, file in enumerate(files):
            words = map(str, (node * gpus + local, nodes * gpus, local, head, port))
            command = python_process.command("workshop.servers.slurm.fabric", *words)
            environment = python_process.environment(base={**own, **os.environ})
            ranks.append(
                subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            )
        deadline, late = time.monotonic() + CONNECT_S + SECONDS, ""
        for each in ranks:
            try:
                each.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
                late = f"Error: no answer within {CONNECT_S + SECONDS:.0f} s"
        said = [(file.seek(0), file.read())[1] for file in files] + [late]
    if any(each.returncode for each in ranks):
        remedy = "Set WORKSHOP_FABRIC (and NCCL_IB_HCA) in slurm/site.sh to the network between the nodes; WORKSHOP_NETWORK_TEST=no leaves this test out."
        raise WorkshopError(f"The GPUs of the nodes cannot reduce together: {why(said)}", remedy)
    return "" if node else sentence(said[0], nodes)


def why(said: list[str]) -> str:
    """Return what NCCL or torch said against it: a warning of NCCL's before the error that came of it."""
    found = [match[1].strip() for text in said for match in WRONG.finditer(text)]
    lines = [line for text in reversed(said) if (line := python_process.last_line(text))]
    return (found or lines or ["it ended without a word"])[0][:300]


def transport(said: str) -> str:
    """Return the transport between nodes by NCCL's own lines: InfiniBand, RoCE, Socket, or another plugin's name."""
    via, card = VIA.search(said), CARD.search(said)
    if not via:
        return (
            "Socket (Gloo)"
            if "backend gloo" in said
            else "no network: NVLink, PCIe or shared memory"
        )
    if via[1] == "IB" and card:
        return f"{'InfiniBand' if card[2] == 'IB' else 'RoCE'} ({card[1]})"
    return via[1]


def sentence(said: str, nodes: int) -> str:
    """Return what was measured beside what the plan counts with, and what to do where it is much slower.

    GB/s: 10**9 bytes a second and GPU, one way (the ring's 2·(n-1)/n counted in).
    """
    found, planned = json.loads(MEASURED.findall(said)[-1]), LINKS[PLANNED]
    words = f"all-reduce over {found['ranks']} GPUs on {nodes} nodes: {transport(said)}, {found['gb_s']:.3g} GB/s, "
    words += f"{found['us']:.0f} µs for one token's; the plan counts with {planned.name}: {planned.gb_s:g} GB/s, "
    words += f"{planned.all_reduce_us:g} µs"
    slow = found["gb_s"] < planned.gb_s / 4
    return words + (
        "; TP over nodes will be slow here: PARALLEL=pipeline, or NCCL_IB_HCA in site.sh"
        if slow
        else ""
    )


def main(rank: int, ranks: int, local: int, head: str, port: int) -> None:
    """One GPU's part: print what it measured, among NCCL's words."""
    import torch
    import torch.distributed as distributed

    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local)
    backend = "nccl" if cuda else "gloo"
    print(f"backend {backend}", flush=True)
    distributed.init_process_group(
        backend, init_method=f"tcp://{head}:{port}", rank=rank, world_size=ranks
    )
    times = {}
    for size in (SMALL_BYTES, LARGE_BYTES):
        data = torch.zeros(size // 4, device="cuda" if cuda else "cpu")

        def reduce(data=data) -> None:
            distributed.all_reduce(data)
            if cuda:
                torch.cuda.synchronize()

        reduce()  # connects
        began = time.monotonic()
        reduce()
        # As many on every rank: the first one decides.
        count = torch.tensor(
            [max(1, min(100, int(SECONDS / 2 / (time.monotonic() - began))))], device=data.device
        )
        distributed.broadcast(count, 0)
        began = time.monotonic()
        for _ in range(int(count)):
            reduce()
        times[size] = (time.monotonic() - began) / int(count)
    moved = 2 * (ranks - 1) / ranks * LARGE_BYTES
    print(
        json.dumps(
            {
                "ranks": ranks,
                "gb_s": moved / times[LARGE_BYTES] / 1e9,
                "us": times[SMALL_BYTES] * 1e6,
            }
        )
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4], int(sys.argv[5]))

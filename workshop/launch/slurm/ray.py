"""Waiting for Ray by asking it, on the head (`ray head`) and on the other nodes (`ray worker`).

Ray's port opens before the head itself has joined, and a worker that comes in between is turned away or keeps trying
for minutes. So the head asks Ray until it is in, then opens a door (a plain port) that the others wait for.
"""

from __future__ import annotations

import socket
import sys
import time

from workshop.errors import WorkshopError
from workshop.launch.slurm.follow import refuse

WAIT_S = 120.0
POLL_S = 0.2


def wait_for_port(address: str, within_s: float = WAIT_S) -> None:
    """Return when the head's Ray listens: a worker that starts earlier keeps trying for over 100 s by itself."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=2).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise WorkshopError(
                    f"Ray's head at {address} does not answer within {within_s:.0f} s ({error}).",
                    "Look above for why `ray start --head` ended.",
                ) from None
            time.sleep(POLL_S)


def lead(address: str, nodes: int, door: int, within_s: float = WAIT_S) -> None:
    """On the head: return when all nodes have joined; let the others in as soon as this one has."""
    wait_for_port(address, within_s)
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        _until_alive(ray, 1, within_s)
        with socket.create_server((address.rpartition(":")[0], door), backlog=max(1, nodes)):
            _until_alive(ray, nodes, within_s)
        print(f"[workshop] Ray has its {nodes} nodes", flush=True)
    finally:
        ray.shutdown()


def _until_alive(ray, nodes: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
        if time.monotonic() > deadline:
            raise WorkshopError(
                f"{alive} of {nodes} nodes joined Ray within {within_s:.0f} s.",
                "Look above for what the others say; or leave ENGINE=ray out.",
            )
        time.sleep(POLL_S)


def main() -> int:
    """`ray head|worker ADDRESS NODES DOOR`: exit code 3 and a sentence if what is waited for does not come."""
    try:
        address, nodes, door = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        if sys.argv[1] == "head":
            lead(address, nodes, door)
        else:
            wait_for_port(f"{address.rpartition(':')[0]}:{door}")
    except WorkshopError as error:
        return refuse(error)
    except ModuleNotFoundError:
        return refuse(
            WorkshopError(
                "Ray is not installed in the engine's environment.", "pip install ray, or leave ENGINE=ray out."
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Waiting for Ray by asking it: `slurm_ray port ADDRESS` for the head's port, `slurm_ray nodes ADDRESS N` for all nodes."""

from __future__ import annotations

import socket
import sys
import time

from workshop.errors import WorkshopError
from workshop.launch.slurm_follow import refuse

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
                raise WorkshopError(f"Ray's head at {address} does not answer within {within_s:.0f} s ({error}).",
                                    "Look above for why `ray start --head` ended.") from None
            time.sleep(POLL_S)


def wait_for_nodes(address: str, nodes: int, within_s: float = WAIT_S) -> None:
    """Return when as many nodes as were asked for have joined and live."""
    wait_for_port(address, within_s)
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    try:
        deadline, alive = time.monotonic() + within_s, 0
        while (alive := sum(node["Alive"] for node in ray.nodes())) < nodes:
            if time.monotonic() > deadline:
                raise WorkshopError(f"{alive} of {nodes} nodes joined Ray within {within_s:.0f} s.",
                                    "Look above for what the others say; or leave ENGINE=ray out.")
            time.sleep(POLL_S)
        print(f"[workshop] Ray has its {nodes} nodes", flush=True)
    finally:
        ray.shutdown()


def main() -> int:
    """Wait for what the arguments say; exit code 3 and a sentence if it does not come."""
    try:
        if sys.argv[1] == "port":
            wait_for_port(sys.argv[2])
        else:
            wait_for_nodes(sys.argv[2], int(sys.argv[3]))
    except WorkshopError as error:
        return refuse(error)
    except ModuleNotFoundError:
        return refuse(WorkshopError("Ray is not installed in the engine's environment.",
                                    "pip install ray, or leave ENGINE=ray out."))
    return 0


if __name__ == "__main__":
    sys.exit(main())

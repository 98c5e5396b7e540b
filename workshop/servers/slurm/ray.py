"""Start Ray on a node (`ray start OPTIONS`), and wait for it on the head (`ray head`) and elsewhere (`ray worker`).

Ray's port opens before the head itself has joined. A worker that connects in between is refused, or
retries for minutes. So the head asks Ray until it has joined, then opens a plain port (the "door")
that the others wait for.
"""

import importlib
import socket
import sys
from typing import Any

from workshop.errors import WorkshopError
from workshop.servers.host import processes
from workshop.servers.slurm.follow import refuse
from workshop.servers.slurm.queue import listens
from workshop.workarounds import ray_node_start

WAIT_S = 150.0  # a node that reads Ray from a busy file system takes minutes


def start(options: list[str]) -> None:
    """Run `ray start` with these options in this process, which is Ray's as long as it runs."""
    further_options = ray_node_start.apply(WAIT_S)
    scripts: Any = importlib.import_module("ray.scripts.scripts")
    sys.argv = ["ray", "start", *options, *further_options]
    scripts.main()


def wait_for_port(address: str, within_s: float = WAIT_S) -> None:
    """Return when the head's Ray listens.

    A worker that starts earlier keeps trying for over 100 s by itself.
    """
    if not processes.until(lambda: listens(f"ray://{address}"), within_s):
        remedy = "Look above for why `ray start --head` ended."
        raise WorkshopError(
            f"Ray's head at {address} does not answer within {within_s:.0f} s.", remedy
        )


def lead(address: str, nodes: int, door: int, within_s: float = WAIT_S) -> None:
    """On the head: return when all nodes have joined; let the others in as soon as this one has."""
    wait_for_port(address, within_s)
    ray: Any = importlib.import_module("ray")  # installed only where ENGINE=ray is used
    ray.init(address=address, log_to_driver=False, logging_level="ERROR")

    def alive() -> int:
        return sum(node["Alive"] for node in ray.nodes())

    def until_alive(node_count: int) -> None:
        if not processes.until(lambda: alive() >= node_count, within_s):
            remedy = "Look above for what the others say; or leave ENGINE=ray out."
            raise WorkshopError(
                f"{alive()} of {node_count} nodes joined Ray within {within_s:.0f} s.", remedy
            )

    try:
        until_alive(1)
        with socket.create_server((address.rpartition(":")[0], door), backlog=max(1, nodes)):
            until_alive(nodes)
        print(f"[workshop] Ray has its {nodes} nodes", flush=True)
    finally:
        ray.shutdown()


def main() -> int:
    """Run `ray start OPTIONS` or `ray head|worker ADDRESS NODES DOOR`.

    Returns: exit code 0, or 3 with a sentence if what is waited for does not come.
    """
    try:
        if sys.argv[1] == "start":
            start(sys.argv[2:])
            return 0
        part, address, nodes, door = sys.argv[1:5]
        if part == "head":
            lead(address, int(nodes), int(door))
        else:
            wait_for_port(f"{address.rpartition(':')[0]}:{door}")
    except WorkshopError as error:
        return refuse(error)
    except ModuleNotFoundError:
        remedy = "pip install ray, or leave ENGINE=ray out."
        return refuse(WorkshopError("Ray is not installed in the engine's environment.", remedy))
    return 0


if __name__ == "__main__":
    sys.exit(main())

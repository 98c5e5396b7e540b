"""`ray start` gives a node 30 s to start, and no setting prolongs it.

Two things end a node whose file system or cores are busy, such as one that imports Python from a shared disk for the
first time. The raylet waits 15 s (30 s in some releases) for the ports of its agents, which are Python programs, and
then aborts. With ports that are given it does not wait; but `ray start` does not tell it the one of
`--dashboard-agent-listen-port`. And `ray/_private/node.py` asks for the node until 30 s have passed, then reports "The
current node timed out during startup".

Upstream: ray-project/ray#47087 (closed: 10 s became 30 s), ray-project/ray#62883.
Versions: Ray up to 2.60. Ends when: `ray start` reads both times from a setting.
"""

import importlib
import os
import socket
import time
from typing import Any

RETRY_EVERY_S = 0.5
# of the agents, as `ray start` calls them
PORTS = (
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
    "--dashboard-agent-listen-port",
)
RAYLET_FLAG = "--dashboard_agent_listen_port"


def apply(within_s: float) -> list[str]:
    """Make `ray start`, in this process, wait up to `within_s` seconds for its node and its agents.

    Returns: the further options that it needs.
    """
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(round(within_s * 1000)))
    services: Any = importlib.import_module("ray._private.services")
    ports = free_ports(len(PORTS))
    _tell_the_raylet(services, ports[-1])
    _wait_longer(services, within_s)
    return [f"{name}={port}" for name, port in zip(PORTS, ports, strict=True)]


def free_ports(count: int) -> list[int]:
    """Return so many ports that are free now."""
    listeners = [socket.create_server(("", 0)) for _ in range(count)]  # open together: all differ
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def _tell_the_raylet(services: Any, listen_port: int) -> None:
    original = services.start_ray_process

    def start_ray_process(command: list[str], process_type: str, *rest: Any, **options: Any) -> Any:
        if process_type == "raylet":
            command = [*command, f"{RAYLET_FLAG}={listen_port}"]
        return original(command, process_type, *rest, **options)

    services.start_ray_process = start_ray_process


def _wait_longer(services: Any, within_s: float) -> None:
    original = services.get_node

    def get_node(*arguments: Any, **options: Any) -> Any:
        ends = time.monotonic() + within_s
        while True:
            try:
                return original(*arguments, **options)
            except RuntimeError:  # Ray's word for "not yet"
                if time.monotonic() > ends:
                    raise
            time.sleep(RETRY_EVERY_S)

    services.get_node = get_node

"""`ray start` gives a node 30 s to start, and no setting prolongs it.

Two things end a node whose file system or cores are busy, such as one that imports Python from a shared disk for the
first time. The raylet waits 30 s (15 s in some releases) for the ports of its agents, which are Python programs, and
then aborts; with ports that are given it does not wait. And `ray/_private/node.py` asks for the node until 30 s have
passed, then reports "The current node timed out during startup".

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
    "--dashboard-agent-listen-port",
    "--runtime-env-agent-port",
    "--metrics-export-port",
)


def options() -> list[str]:
    """Return the options of `ray start` that give each agent a port that is free now."""
    arguments: list[str] = []
    listeners: list[socket.socket] = []
    for name in PORTS:
        listener = socket.create_server(("", 0))
        listeners.append(listener)  # open until all are chosen, so that no two are the same
        arguments.append(f"{name}={listener.getsockname()[1]}")
    for listener in listeners:
        listener.close()
    return arguments


def apply(within_s: float) -> None:
    """Make `ray start`, in this process, wait up to `within_s` seconds for its node and its agents."""
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(round(within_s * 1000)))
    services: Any = importlib.import_module("ray._private.services")
    original = services.get_node

    def get_node(*args: Any, **options: Any) -> Any:
        ends = time.monotonic() + within_s
        while True:
            try:
                return original(*args, **options)
            except RuntimeError:  # Ray's word for "not yet"
                if time.monotonic() > ends:
                    raise
            time.sleep(RETRY_EVERY_S)

    services.get_node = get_node

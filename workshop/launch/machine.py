"""What this machine has: processors, memory, disk, ports, as far as this session may use them."""

import os
import re
import shutil
import socket
import sys
from contextlib import suppress
from pathlib import Path

import psutil

GIB = 2**30
CGROUP = Path("/sys/fs/cgroup")


def cpus() -> float:
    """Return the processors that this session may use: its affinity, cut by a cgroup's quota."""
    count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    quota = _cgroup_text("cpu.max").split()
    if len(quota) == 2 and quota[0] != "max":
        count = min(count, int(quota[0]) / int(quota[1]))
    return count


def memory_limit_bytes() -> int:
    """Return the memory that this session may use in all: the machine's, cut by a cgroup (SLURM, container)."""
    total = psutil.virtual_memory().total
    limit = _cgroup_text("memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def memory_available_bytes() -> int:
    """Return what is left of memory_limit_bytes()."""
    free = psutil.virtual_memory().available
    limit, used = _cgroup_text("memory.max"), _cgroup_text("memory.current")
    if limit.isdigit() and used.isdigit():
        # File pages count as used in a cgroup, and are given back when memory is asked for.
        pages = re.findall(r"^(?:in)?active_file (\d+)$", _cgroup_text("memory.stat"), re.MULTILINE)
        free = min(free, int(limit) - int(used) + sum(map(int, pages)))
    return max(0, free)


def _cgroup_text(name: str) -> str:
    """Return a file of this process's cgroup (version 2), or '' where there is none."""
    try:
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[-1].strip().lstrip("/")
    except OSError:
        return ""
    folder = CGROUP / own
    while True:  # a limit may stand on any level above: the nearest that has one counts
        with suppress(OSError):
            text = (folder / name).read_text().strip()
            if not text.startswith("max"):
                return text
        if folder == CGROUP or CGROUP not in folder.parents:
            return ""
        folder = folder.parent


def disk_free_bytes(path: Path) -> int:
    """Return the free space where `path` is, or will be."""
    while not os.path.exists(path):  # Path.exists raises where a folder above is closed
        path = path.parent
    return shutil.disk_usage(path).free


def reachable_address(host: str) -> str:
    """Return the address under which others reach a server bound to `host` (all interfaces: the routed one)."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    return address_towards("198.51.100.1") or socket.gethostname()  # a documentation address


def address_towards(host: str) -> str:
    """Return the address of this machine on the way to `host` (a name or an address); '' if there is no way.

    Asks the routing table, and sends nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))
        return probe.getsockname()[0]
    return ""


def port_is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on host:port now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return True
    return False


def free_port(host: str, first: int = 8000) -> int:
    """Return a free port, from `first` on if one of the next is free."""
    port, held = take_port(host, first)
    held.close()
    return port


def hold_port(host: str, port: int) -> socket.socket | None:
    """Return a claim on a free port, which ends when it is closed; None if the port or the claim is somebody's.

    From the choice of a port until the engine listens there, seconds pass. Meanwhile no other server of the workshop
    chooses it, of whatever user: on Linux the claim is a name that one socket of this machine can have at a time.
    """
    if sys.platform != "linux":
        return socket.socket() if port_is_free(host, port) else None
    claim = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        claim.bind(f"\0workshop-port-{port}")
        if port_is_free(host, port):
            return claim
    claim.close()
    return None


def take_port(host: str, first: int, tries: int = 20) -> tuple[int, socket.socket]:
    """Return a free port and the claim on it: the first of `tries` from `first`, else any that the system gives."""
    for port in range(first, first + tries):
        if held := hold_port(host, port):
            return port, held
    while True:
        with socket.create_server((host, 0), family=_family(host)) as probe:
            port = probe.getsockname()[1]
        if held := hold_port(host, port):
            return port, held


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

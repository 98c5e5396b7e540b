"""Describe this machine: processors, memory, addresses and ports that this session may use.

A job on shared nodes takes the interface that is needed and no other, and ports of its own.
"""

import ipaddress
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from workshop.errors import BadInput, WorkshopError

# below the ports that Linux hands out by itself (32768 and up)
FIRST_JOB_PORT = 20000
LAST_JOB_PORT = 31999
PORTS_PER_JOB = 8  # API, master, check; the rest is reserve
CGROUP = Path("/sys/fs/cgroup")


def cpus() -> float:
    """Return the processors that this session may use: its affinity, cut by a cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        count = float(len(os.sched_getaffinity(0)))
    else:
        count = float(os.cpu_count() or 1)
    for (text,) in _cgroups("cpu.max"):
        quota, period = text.split()
        count = min(count, int(quota) / int(period))
    return count


def memory_limit_bytes() -> int:
    """Return the memory that this session may use: the machine's, or a cgroup's limit if lower."""
    limit = psutil.virtual_memory().total
    for (text,) in _cgroups("memory.max"):
        limit = min(limit, int(text))
    return limit


def memory_available_bytes() -> int:
    """Return what is left of memory_limit_bytes()."""
    free = psutil.virtual_memory().available
    for limit, used, stat in _cgroups("memory.max", "memory.current", "memory.stat"):
        # File pages count as used in a cgroup, and are given back when memory is asked for.
        pages = re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE)
        free = min(free, int(limit) - int(used) + sum(map(int, pages)))
    return max(0, free)


def _cgroups(*names: str) -> Iterator[list[str]]:
    """Yield the texts of these files of each cgroup (version 2) around this process with a limit.

    Where the first file says max there is none.
    """
    try:
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[-1].strip().lstrip("/")
    except OSError:
        return
    for folder in (CGROUP / own, *(CGROUP / own).parents):  # a limit holds for all levels below
        with suppress(OSError):
            texts = [(folder / name).read_text().strip() for name in names]
            if folder.is_relative_to(CGROUP) and not texts[0].startswith("max"):
                yield texts


def reachable_address(host: str) -> str:
    """Return the address under which others reach a server bound to `host` or to all interfaces."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    return towards("198.51.100.1") or socket.gethostname()  # a documentation address


def towards(host: str) -> str:
    """Return this machine's address on the way to `host`, a name or an address; '' without a way.

    Asks the routing table, and sends nothing. Its own name leads nowhere: Debian's hosts file says
    127.0.1.1.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect((host, 9))
        address = probe.getsockname()[0]
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return ""


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of every interface that is up, by its name."""
    by_name: dict[str, str] = {}
    states = psutil.net_if_stats()
    for name, addresses in psutil.net_if_addrs().items():
        if name not in states or not states[name].isup:
            continue
        for address in addresses:
            if address.family == socket.AF_INET:
                by_name[name] = address.address
                break
    return by_name


def own_address(interface: str, *hosts: str) -> str:
    """Return this node's address: of `interface`, or else on the way to the first host in reach.

    Raises WorkshopError: there is no such interface, or no way.
    """
    by_name = interfaces()
    outward: dict[str, str] = {}  # those that other nodes may reach
    for name, address in by_name.items():
        if not ipaddress.ip_address(address).is_loopback:
            outward[name] = address
    node = socket.gethostname()
    choices = ", ".join(f"{name} ({address})" for name, address in outward.items()) or "none is up"
    remedy = f"Set WORKSHOP_INTERFACE (or WORKSHOP_FABRIC) in slurm/site.sh to one of: {choices}."
    if interface and interface not in by_name:
        raise WorkshopError(f"{node} has no interface {interface!r} with an IPv4 address.", remedy)
    if interface and interface not in outward:
        head = f"The head address {by_name[interface]} (interface {interface!r})"
        raise WorkshopError(f"{head} is one that no other node reaches.", remedy)
    if interface:
        return by_name[interface]
    named_hosts = [host for host in hosts if host]
    for host in named_hosts:
        address = towards(host)
        if address:
            return address
    if len(outward) == 1:
        return next(iter(outward.values()))
    calls_itself = "a name that is not known"
    with suppress(OSError):
        calls_itself = socket.gethostbyname(node)
    others = " or ".join(named_hosts) or "another host"
    why = f"it calls itself {calls_itself}, and knows no way to {others}"
    raise WorkshopError(f"{node} has no address that other nodes reach: {why}.", remedy)


def port_is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on host:port now."""
    with socket.socket(_family(host), socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return True
    return False


def free_port(host: str, first: int = 8000) -> int:
    """Return a free port, from `first` on if one of the next is free."""
    port, claim = take_port(host, first)
    claim.close()
    return port


def hold_port(host: str, port: int) -> socket.socket | None:
    """Return a claim on a free port, held until it is closed; None if the port or claim is taken.

    From the choice of a port until the engine listens there, seconds pass. Meanwhile no other
    server of the workshop chooses it, of whatever user: on Linux the claim is a name that one
    socket of this machine can have at a time.
    """
    if sys.platform != "linux":
        if not port_is_free(host, port):
            return None
        return socket.socket()
    claim = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        claim.bind(f"\0workshop-port-{port}")
        if port_is_free(host, port):
            return claim
    claim.close()
    return None


def take_port(host: str, first: int, tries: int = 20) -> tuple[int, socket.socket]:
    """Return a free port and its claim: one of `tries` from `first`, else the system's choice."""
    for port in range(first, first + tries):
        claim = hold_port(host, port)
        if claim:
            return port, claim
    while True:
        with socket.create_server((host, 0), family=_family(host)) as probe:
            port = probe.getsockname()[1]
        claim = hold_port(host, port)
        if claim:
            return port, claim


def claim_port(host: str, port: int | None, first: int) -> tuple[int, socket.socket]:
    """Return the requested port, or a free one from `first` on, and the claim on it.

    Raises:
        BadInput: it is no port.
        WorkshopError: it is somebody's.
    """
    if port is None:
        return take_port(host, first)
    if not 1 <= port <= 65535:
        raise BadInput(
            f"{port} is no port.", "Ports go from 1 to 65535; without --port a free one is taken."
        )
    claim = hold_port(host, port)
    if not claim:
        problem = f"Port {port} on {host} is taken, or not yours to use."
        raise WorkshopError(problem, "Give another --port, or none.")
    return port, claim


def job_ports(job_id: int, addresses: list[str], fixed: int | None = None) -> list[int]:
    """Return the job's ports, tested free on all `addresses`; the first is the API's.

    They follow from the job's number, so that two jobs on a node do not meet; where a stranger sits
    on one of them, the next eight are taken. `fixed` (WORKSHOP_PORT) is taken as it is, or refused.
    """
    if fixed is not None and not _are_free_on(addresses, [fixed]):
        remedy = "Unset WORKSHOP_PORT (each job then takes ports of its own), or choose another."
        raise WorkshopError(f"Port {fixed} on {addresses[0]} is taken by another program.", remedy)
    span = (LAST_JOB_PORT - FIRST_JOB_PORT + 1) // PORTS_PER_JOB
    for step in range(span):
        first = FIRST_JOB_PORT + (job_id + step) % span * PORTS_PER_JOB
        ports = list(range(first, first + PORTS_PER_JOB))
        if _are_free_on((*addresses, "0.0.0.0"), ports):
            return [fixed or ports[0], *ports[1:]]
    row = f"No eight ports in a row from {FIRST_JOB_PORT} to {LAST_JOB_PORT}"
    problem = f"{row} are free on {socket.gethostname()}."
    raise WorkshopError(problem, "Ask for a node of your own: sbatch --exclusive.")


def _are_free_on(addresses: Iterable[str], ports: Iterable[int]) -> bool:
    """Return whether a server could listen at every port on every address."""
    for address in addresses:
        for port in ports:
            if not port_is_free(address, port):
                return False
    return True


def fixed_port() -> int | None:
    """Return WORKSHOP_PORT, if it is set.

    Raises WorkshopError: it is no number of a port.
    """
    text = os.environ.get("WORKSHOP_PORT", "")
    if not text:
        return None
    if not text.isdigit() or not 1024 <= int(text) <= 65535:
        remedy = "Ports go from 1024 to 65535; unset it, and each job takes a port of its own."
        problem = f"WORKSHOP_PORT is {text!r}, which is no port that you may use."
        raise WorkshopError(problem, remedy)
    return int(text)


def _family(host: str) -> socket.AddressFamily:
    if ":" in host:
        return socket.AF_INET6
    return socket.AF_INET

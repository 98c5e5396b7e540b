"""Addresses and ports of a job on shared nodes: the interface that is needed and no other, ports of the job's own."""

import ipaddress
import os
import socket
from contextlib import suppress

import psutil

from workshop.errors import WorkshopError
from workshop.launch.machine import address_towards, port_is_free

FIRST_PORT, LAST_PORT = 20000, 31999  # below the ports that Linux hands out by itself (32768 and up)
PORTS_PER_JOB = 8  # API, master, check, Ray, Ray's client server; the rest is reserve


def interfaces() -> dict[str, str]:
    """Return the IPv4 address of every interface that is up, by its name."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return {
        name: each.address
        for name, addresses in psutil.net_if_addrs().items()
        if name in up
        for each in reversed(addresses)
        if each.family == socket.AF_INET
    }


def towards(host: str) -> str:
    """Return the address of this node on the way to `host`; '' if it is its own: Debian's hosts file says 127.0.1.1."""
    found = address_towards(host)
    return "" if not found or ipaddress.ip_address(found).is_loopback else found


def own_address(interface: str, *hosts: str) -> str:
    """Return this node's address: that of the interface, if one is named, else that on the way to the first reachable host."""
    known, node = interfaces(), socket.gethostname()
    outward = {name: each for name, each in known.items() if not ipaddress.ip_address(each).is_loopback}
    choices = ", ".join(f"{name} ({address})" for name, address in outward.items()) or "none is up"
    remedy = f"Set WORKSHOP_INTERFACE (or WORKSHOP_FABRIC) in slurm/site.sh to one of: {choices}."
    if interface and interface not in known:
        raise WorkshopError(f"{node} has no interface {interface!r} with an IPv4 address.", remedy)
    if interface and interface not in outward:
        said = f"The head address {known[interface]} (interface {interface!r}) is one that no other node reaches."
        raise WorkshopError(said, remedy)
    if interface:
        return known[interface]
    if found := next(filter(None, map(towards, filter(None, hosts))), ""):
        return found
    if len(outward) == 1:
        return next(iter(outward.values()))
    calls_itself, others = "a name that is not known", " or ".join(filter(None, hosts)) or "another host"
    with suppress(OSError):
        calls_itself = socket.gethostbyname(node)
    said = f"it calls itself {calls_itself}, and knows no way to {others}."
    raise WorkshopError(f"{node} has no address that other nodes reach: {said}", remedy)


def job_ports(job_id: int, addresses: list[str], fixed: int | None = None) -> list[int]:
    """Return the job's ports, tested free on all `addresses`; the first is the API's.

    They follow from the job's number, so that two jobs on a node do not meet; where a stranger sits on one of
    them, the next eight are taken. `fixed` (WORKSHOP_PORT) is taken as it is, or refused.
    """
    if fixed is not None and not all(port_is_free(address, fixed) for address in addresses):
        remedy = "Unset WORKSHOP_PORT (each job then takes ports of its own), or choose another."
        raise WorkshopError(f"Port {fixed} on {addresses[0]} is taken by another program.", remedy)
    span = (LAST_PORT - FIRST_PORT + 1) // PORTS_PER_JOB
    for step in range(span):
        first = FIRST_PORT + (job_id + step) % span * PORTS_PER_JOB
        ports = list(range(first, first + PORTS_PER_JOB))
        if all(port_is_free(address, port) for address in (*addresses, "0.0.0.0") for port in ports):
            return [fixed or ports[0], *ports[1:]]
    said = f"No eight ports in a row from {FIRST_PORT} to {LAST_PORT} are free on {socket.gethostname()}."
    raise WorkshopError(said, "Ask for a node of your own: sbatch --exclusive.")


def fixed_port() -> int | None:
    """Return WORKSHOP_PORT, if it is set."""
    text = os.environ.get("WORKSHOP_PORT", "")
    if not text:
        return None
    if not text.isdigit() or not 1024 <= int(text) <= 65535:
        remedy = "Ports go from 1024 to 65535; unset it, and each job takes a port of its own."
        raise WorkshopError(f"WORKSHOP_PORT is {text!r}, which is no port that you may use.", remedy)
    return int(text)

"""Servers that a notebook starts beside the learner's own: they end with its kernel, if not before.

And what there is of vLLM.
"""

import atexit
import contextlib
import os
from pathlib import Path

from inference_planner.catalog.gpus import GIB

from workshop.errors import WorkshopError
from workshop.servers import local, records
from workshop.servers.host import machine
from workshop.servers.local import supervise
from workshop.servers.records import ServerRecord
from workshop.vllm_package import installed

SERVER_BYTES = int(1.8 * GIB)  # a second teaching server took 1.6 GB


def simulates() -> bool:
    """Return whether vLLM's scheduler can be had here."""
    return bool(os.environ.get("WORKSHOP_VLLM_PYTHON") or installed()[0])


def why_recorded(servers: int = 0) -> str:
    """Return why a notebook shows a recording in place of a server; '' if it can start one.

    Args:
        servers: for how many there must be memory.
    """
    if not installed()[0]:
        return "vLLM is not installed here"
    free_bytes = machine.memory_available_bytes()
    if free_bytes < servers * SERVER_BYTES:
        return f"Only {free_bytes / GIB:.1f} GiB of memory are free"
    return ""


def start(name: str, *vllm_args: str, trace: Path | None = None) -> ServerRecord:
    """Start the teaching model under `name` with these flags, and wait until it answers.

    A server of this name that still runs is stopped first.
    """
    stop(name)
    record = supervise.start(local.prepare(name=name, vllm_args=vllm_args, trace=trace))
    atexit.register(_end, record)
    return record


def stop(name: str) -> str:
    """Stop a server, if there is one of this name; return what was done."""
    if records.path_of(name).exists():
        return supervise.stop(name)
    return f"{name} does not run."


def _end(record: ServerRecord) -> None:
    """Stop a server, unless its name belongs to another process by now.

    After a restart of the kernel the name may belong to a new server, which must not be stopped.
    """
    with contextlib.suppress(WorkshopError):
        now = records.read(record.name)
        if now is not None and now.pid == record.pid:
            supervise.stop(record.name)

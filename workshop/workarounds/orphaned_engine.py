"""vLLM's engine core and workers can survive their API server, and keep the memory and the GPUs.

They are processes of their own. If the API server is killed early, or by signal 9, it takes them along only sometimes:
a worker notices that its engine core has died, but an engine core does not notice that its API server has.

Upstream: vllm-project/vllm#55510 (open); the pull request #55846 (open) adds the missing check.
Versions: vLLM 0.25.1 to 0.33.0. Ends when: #55846 is in every version that `versions.py` lists.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

LOOK_EVERY_S = 1.0
PR_SET_PDEATHSIG = 1  # prctl(2): the signal that a process gets when its parent dies


def apply(look: Callable[[], None], clean_up: Callable[[], None]) -> None:
    """Start a small process that outlives this one and cleans up after it.

    Does nothing unless this process leads its session (as under `workshop serve`), and nothing outside Linux.

    Args:
        look: called every LOOK_EVERY_S while this process lives, and once more when it has ended.
        clean_up: called once when this process has ended, however it ended. It may end what is left of the session:
            the small process belongs to the session, so that its number is not given to another one meanwhile.
    """
    leader = os.getpid()
    if sys.platform != "linux" or os.getsid(0) != leader or os.fork():
        return
    blocked = {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    leader_ended = False
    while not leader_ended:
        leader_ended = os.getppid() != leader  # it may have died before prctl was called
        look()
        if not leader_ended:
            signal.sigtimedwait({signal.SIGUSR1}, LOOK_EVERY_S)
    clean_up()
    os._exit(0)

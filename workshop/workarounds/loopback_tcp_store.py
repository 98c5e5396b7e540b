"""A PyTorch TCPStore listens on every network interface, also if it was given a loopback address.

The host name is used by clients alone. The store has no authentication, so anyone who reaches the machine can read and
change its keys. vLLM opens such stores for its process groups.

Upstream: pytorch/pytorch#173909 (closed without a change; the same report is #155741).
Versions: PyTorch up to 2.13. Ends when: TCPStore("127.0.0.1", …, is_master=True) listens on 127.0.0.1 alone.
"""

import contextlib
import socket
from typing import Any

LOOPBACK = ("127.0.0.1", "::1", "localhost")
BACKLOG = 2048  # PyTorch's own


def apply() -> None:
    """Make stores that are created for a loopback address listen on that address alone."""
    import torch.distributed

    distributed: Any = torch.distributed
    original = distributed.TCPStore

    class TCPStore(original):
        def __init__(self, host_name, port, world_size=None, is_master=False, *args, **options):
            if is_master and host_name in LOOPBACK and "master_listen_fd" not in options:
                # A second store of this process on the same port shares the first one's socket.
                with contextlib.suppress(OSError):
                    listener = _listen(host_name, port)
                    port = listener.getsockname()[1]
                    options["master_listen_fd"] = listener.detach()
            super().__init__(host_name, port, world_size, is_master, *args, **options)

    distributed.TCPStore = TCPStore
    # `rendezvous` imported the class by name into its own module.
    distributed.rendezvous.__globals__["TCPStore"] = TCPStore


def _listen(host_name: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if host_name == "::1" else socket.AF_INET
    return socket.create_server((host_name, port), family=family, backlog=BACKLOG)

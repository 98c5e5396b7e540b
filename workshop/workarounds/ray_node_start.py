"""`ray start` gives a node 30 s to join, and no setting prolongs it.

`ray/_private/node.py` asks for the node until 30 s have passed, then ends what it has started. On a node whose file
system or cores are busy the raylet needs longer, and the whole job would fail with "The current node timed out during
startup".

Upstream: ray-project/ray#47087 (closed: 10 s became 30 s), ray-project/ray#62883.
Versions: Ray up to 2.60. Ends when: `ray start` reads its wait from a setting.
"""

import importlib
import time
from typing import Any

RETRY_EVERY_S = 0.5


def apply(within_s: float) -> None:
    """Make `ray start`, in this process, wait up to `within_s` seconds for its own node."""
    services: Any = importlib.import_module("ray._private.services")
    original = services.get_node

    def get_node(*args: Any, **options: Any) -> Any:
        ends = time.monotonic() + within_s
        while True:
            try:
                return original(*args, **options)
            except RuntimeError:  # Ray's word for "not yet"
                if time.monotonic() > ends:
                    raise
            time.sleep(RETRY_EVERY_S)

    services.get_node = get_node

"""One process that has imported vLLM, for all tests of a run: servers and workers are forked from it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workshop import preloaded
from workshop.errors import WorkshopError
from workshop.servers import local


@contextmanager
def shared(log: Path) -> Iterator[None]:
    """Start the process, unless there is one or vLLM is not for this machine; end it after the block.

    Tests of vLLM's usual start take WORKSHOP_PRELOADED out of the environment.
    """
    if preloaded.PATH_VARIABLE in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, log.open("wb") as file:
        os.environ[preloaded.PATH_VARIABLE] = str(Path(folder, "preloaded.json"))
        process = None
        try:
            environment = local.preloaded_environment()  # with the variable that was just set
            process = environment and preloaded.start(environment, file.fileno())
        except WorkshopError:  # vLLM is for GPUs, of which there are none
            pass
        try:
            yield
        finally:
            if process:
                preloaded.stop(process)
            del os.environ[preloaded.PATH_VARIABLE]

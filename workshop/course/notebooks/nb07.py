"""Helpers of notebook 07: a batch that is killed, vLLM in a Python process, the teaching model.

>>> from workshop.course.notebooks import nb07
>>> (nb07.TEACHING_FOLDER / "config.json").is_file()
True
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

from workshop import python_process
from workshop.batch import offline
from workshop.servers.local import TEACHING_FOLDER

__all__ = [
    "TEACHING_FOLDER",
    "TONIGHT",
    "TONIGHT_S",
    "kill_batch",
    "kill_when_written",
    "offline",
]

LOOK_S = 0.05  # between two looks at a file that grows
# The story's 2,000 abstracts on its H100, all sent at once, and the seconds that this command
# simulates. A test simulates them again.
TONIGHT = (
    "simulate llama-3.1-8b --gpu h100 --max-model-len 8192 --burst 2000 "
    "--prompt 450:550 --output 5:15"
)
TONIGHT_S = 24.0


def kill_batch(prompts: Path, output: Path, **settings: object) -> None:
    """Start `workshop batch` in a process of its own, and kill it after its first answers.

    Args:
        prompts: the file of prompts.
        output: the file that the answers are written to.
        settings: the sampling parameters, as batch.run takes them.
    """
    files = (str(prompts), str(output))
    sampling = json.dumps(settings)
    command = python_process.command("workshop", "batch", *files, "--sampling", sampling)
    kill_when_written(command, output)


def kill_when_written(command: list[str], output: Path, size_bytes: int = 50_000) -> None:
    """Run a command, and send it signal 9 as soon as its output has this size.

    Raises:
        RuntimeError: the command ended by itself before that.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=python_process.environment(),
    )
    while not output.exists() or output.stat().st_size < size_bytes:
        if process.poll() is not None:
            raise RuntimeError("The batch ended by itself. Does the server still run?")
        time.sleep(LOOK_S)
    process.send_signal(signal.SIGKILL)
    process.wait()

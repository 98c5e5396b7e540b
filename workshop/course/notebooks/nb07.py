"""Helpers of notebook 07: a batch that is killed, vLLM in a Python process, the teaching model.

>>> from workshop.course.notebooks import nb07
>>> (nb07.TEACHING_FOLDER / "config.json").is_file()
True
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets as widgets
from IPython.display import display

from workshop import python_process
from workshop.batch import offline
from workshop.client.sampling_settings import PARAMETERS
from workshop.course.drawing import chart
from workshop.course.topics import answers
from workshop.course.widgets.controls import View
from workshop.servers.local import TEACHING_FOLDER
from workshop.servers.records import ServerRecord

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "TEACHING_FOLDER",
    "TONIGHT",
    "TONIGHT_S",
    "BatchField",
    "in_terminal",
    "kill_batch",
    "kill_when_written",
    "named",
    "offline",
    "squares",
    "tenths",
]

LOOK_S = 0.05  # between two looks at a file that grows
# The story's 2,000 abstracts on its H100, all sent at once, and the seconds that this command
# simulates. A test simulates them again.
TONIGHT = (
    "simulate llama-3.1-8b --gpu h100 --max-model-len 8192 --burst 2000 "
    "--prompt 450:550 --output 5:15"
)
TONIGHT_S = 24.0


def named(server: ServerRecord) -> dict[str, str]:
    """Return the option of batch.run that names a server; one that was given by its address has no name."""
    if server.where == "given":
        return {}
    return {"name": server.name}


def kill_batch(prompts: Path, output: Path, server: ServerRecord, **settings: object) -> None:
    """Start `workshop batch` in a process of its own, show its answers, and kill it after the first.

    Args:
        prompts: the file of prompts.
        output: the file that the answers are written to.
        server: which answers.
        settings: the sampling parameters, as batch.run takes them.
    """
    output.unlink(missing_ok=True)  # the cell was run again
    command = python_process.command("workshop", *_batch(prompts, output, server, settings))
    # Few at once, so that a fast server has not answered all before the signal arrives.
    field = BatchField(prompts, output).show()
    kill_when_written([*command, "--concurrency", "8"], output, look=field)


def in_terminal(prompts: Path, output: Path, server: ServerRecord, **settings: object) -> str:
    """Return the line that answers the same file in a terminal, by the server of the notebook."""
    return shlex.join(["workshop", *_batch(prompts, output, server, settings)])


def _batch(
    prompts: Path, output: Path, server: ServerRecord, settings: dict[str, object]
) -> list[str]:
    """Return the arguments of `workshop` that answer a file by a server with these sampling parameters."""
    arguments = ["batch", str(prompts), str(output)]
    others = dict(settings)
    for name, parameter in PARAMETERS.items():
        if parameter.kind is not None and name in others:  # it has an option of its own
            arguments += [f"--{name.replace('_', '-')}", str(others.pop(name))]
    if others:
        arguments += ["--sampling", json.dumps(others)]
    for option, value in named(server).items():
        arguments += [f"--{option}", value]
    return arguments


class BatchField(View):
    """A square for each row of a file, filled as answers arrive: `batch.run(…, report=BatchField(…))`.

    Args:
        prompts: the file of prompts, a JSON array whose rows have an id.
        output: the file that the answers are written to.
    """

    def __init__(self, prompts: Path, output: Path) -> None:
        self._ids = [row["id"] for row in json.loads(prompts.read_text(encoding="utf-8"))]
        self._output = output
        self._before = _answered(output)
        self.picture = widgets.HTML()
        super().__init__(self.picture)
        self()

    def __call__(self, progress: object = None) -> None:
        """Look at the output again. (What `batch.run` reports is not needed.)"""
        field = answers.field(self._ids, self._before, _answered(self._output))
        self.picture.value = field.drawn

    def show(self) -> BatchField:
        """Display it now, above what the cell prints."""
        display(self)
        return self


def _answered(output: Path) -> set[object]:
    """Return the ids of the rows whose answers are on disk: those of whole lines."""
    if not output.exists():
        return set()
    *whole_lines, _ = output.read_text(encoding="utf-8").split("\n")
    return {json.loads(line)["metadata"]["id"] for line in whole_lines}


def squares(**tables: pd.DataFrame) -> chart.Picture:
    """Draw each table of labels as a line of squares: those of mistakes are orange."""
    drawn = {name.replace("_", " "): _labels(table) for name, table in tables.items()}
    return answers.rehearsals(drawn)


def tenths(table: pd.DataFrame) -> chart.Picture:
    """Draw a table that is sorted by confidence in ten lines of squares, the least sure above."""
    return answers.tenths(_labels(table))


def _labels(table: pd.DataFrame) -> list[answers.Label]:
    columns = zip(table.confidence, table.label, table.ours, strict=True)
    return [answers.Label(*values) for values in columns]


def kill_when_written(
    command: list[str],
    output: Path,
    size_bytes: int = 50_000,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Run a command, and send it signal 9 as soon as its output has this size.

    `look` is called at each look at the output.

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
        look()
        time.sleep(LOOK_S)
    process.send_signal(signal.SIGKILL)
    process.wait()
    look()

"""The file with which the head of a SLURM job tells its nodes what it decided: address, ports, sizes.

It lies in the job's folder (`WORKSHOP_JOB`, set by slurm/job.sh), beside the reasons for which a
part of the job refused to go on.
"""

import contextlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.home import write_private

VARIABLE = "WORKSHOP_JOB"
REFUSED_CODE = 3
DONE = "done: every prompt is answered"  # the end of a batch, which is no failure


@dataclass(frozen=True)
class JobFile:
    """The decisions of a job's head, which every node needs to know.

    record: the server's record, with the key. served: the model's name there. api_host, api_port: where learners reach the server.
    head_address: where the nodes reach the first one. master_port: of vLLM's own start; check_port:
    of the check before it. min_gpu_gib: memory that each GPU must have, in GiB. trace: the file in
    which the head's engine notes its steps; "" where it does not.
    """

    record: str
    served: str
    api_host: str
    api_port: int
    head_address: str
    master_port: int
    check_port: int
    nodes: int
    gpus_per_node: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    min_gpu_gib: float
    trace: str = ""

    def write(self) -> None:
        """Write the file of this job, whole."""
        write_private(path(), json.dumps(asdict(self), indent=1) + "\n")


def path() -> Path:
    """Return where this job's file is; the last part of its name is .json."""
    return Path(os.environ[VARIABLE])


def read() -> JobFile:
    """Return what the head of this job wrote."""
    return JobFile(**json.loads(path().read_text(encoding="utf-8")))


def trace() -> Path:
    """Return the file in which the head's engine notes its steps, if it does."""
    return path().with_suffix(".trace.jsonl")


def reasons() -> Path:
    """Return the file for the reasons of this job's parts: srun may lose their last words."""
    return path().with_suffix(".reasons")


def refuse(error: WorkshopError) -> int:
    """Say why this part of a job does not go on, where the job's end finds it.

    Returns: the exit code for it.
    """
    note_reason(f"[workshop] refused: {error.message}\n[workshop] remedy: {error.remedy}\n")
    return REFUSED_CODE


def note_reason(lines: str) -> None:
    """Print lines and add them to the job's reasons: srun may lose the last words of a task."""
    print(lines, end="", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError), reasons().open("a", encoding="utf-8") as file:
        file.write(lines)


def own_job() -> str:
    """Return this job's number as SLURM's commands take it: 7, or 7_2 for a task of an array.

    One task of an array has the array's own number as its SLURM_JOB_ID; `scancel 7` there ends the
    other tasks as well.
    """
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if task:
        return f"{os.environ.get('SLURM_ARRAY_JOB_ID', '')}_{task}"
    return os.environ.get("SLURM_JOB_ID", "")

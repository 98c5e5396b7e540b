"""What SLURM says about a job: squeue and scontrol while it is known there, sacct where accounting exists."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from dataclasses import dataclass
from urllib.parse import urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.launch.record_file import ServerRecord

TIMEOUT_S = 10.0
ACTIVE = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "REQUEUED",
        "RESIZING",
        "STAGE_OUT",
        "SIGNALING",
        "STOPPED",
        "REQUEUE_HOLD",
        "REQUEUE_FED",
        "SPECIAL_EXIT",
    }
)
SQUEUE = "%i|%j|%T|%r|%N|%M|%L|%Z"
SACCT = "JobIDRaw,JobName,State,Reason,NodeList,Elapsed,Timelimit,WorkDir,ExitCode"


@dataclass(frozen=True)
class Job:
    """One job; state is SLURM's own word (PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, …)."""

    job_id: str
    name: str
    state: str
    reason: str = ""  # why it waits, or ended
    nodes: str = ""
    elapsed: str = ""
    left: str = ""  # of its time limit
    folder: str = ""  # where sbatch was called
    exit_code: str = ""
    source: str = ""  # squeue, scontrol or sacct

    @property
    def active(self) -> bool:
        """Whether it still waits or runs."""
        return self.state in ACTIVE


def available() -> bool:
    """Return whether SLURM's commands are here at all."""
    return shutil.which("squeue") is not None


def job_number(text: str) -> str:
    """Return a job's number (7, or 7_2 for a task of an array), or refuse what cannot be one."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}(_[0-9]{1,7})?", text):
        raise BadInput(f"{text[:60]!r} is no job id.", "Give what sbatch printed; `squeue --me` lists yours.")
    return text


def find(job_id: str) -> Job | None:
    """Return what SLURM knows about the job; None if it knows nothing (any more).

    Raises:
        WorkshopError: SLURM does not answer, so nothing is known either way.
    """
    if not available():
        raise WorkshopError("SLURM's commands are not here.", "Log in to a login node of the cluster.")
    return _from_squeue(job_id) or _from_scontrol(job_id) or _from_sacct(job_id)


def _ask(*command: str) -> str:
    """Return a command's output, '' if it says that it knows no such job; never hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise WorkshopError(
            f"{command[0]} did not answer within {TIMEOUT_S:.0f} s.", "Try again in a minute."
        ) from None
    except OSError as error:
        raise WorkshopError(f"{command[0]} cannot be run ({error.strerror}).", "Log in to a login node.") from None
    if done.returncode and "Invalid job id" not in done.stderr:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise WorkshopError(f"{command[0]} failed: {said}.", "Is the cluster's controller up? Try again in a minute.")
    return done.stdout.strip()


def _from_squeue(job_id: str) -> Job | None:
    line = _ask("squeue", "--noheader", "--jobs", job_id, "--states", "all", "--format", SQUEUE)
    parts = line.splitlines()[0].split("|") if line else []
    if len(parts) != 8:
        return None
    number, name, state, reason, nodes, elapsed, left, folder = parts
    code = ""
    if state not in ACTIVE:
        known = _from_scontrol(job_id)
        code = known.exit_code if known else ""
    return Job(number, name, state, "" if reason == "None" else reason, nodes, elapsed, left, folder, code, "squeue")


def _from_scontrol(job_id: str) -> Job | None:
    text = _ask("scontrol", "--oneliner", "show", "job", job_id)
    fields = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in fields:
        return None
    reason = fields.get("Reason", "")
    return Job(
        job_id,
        fields.get("JobName", ""),
        fields["JobState"],
        "" if reason == "None" else reason,
        fields.get("NodeList", "").replace("(null)", ""),
        fields.get("RunTime", ""),
        "",
        fields.get("WorkDir", ""),
        fields.get("ExitCode", ""),
        "scontrol",
    )


def _from_sacct(job_id: str) -> Job | None:
    if not shutil.which("sacct"):
        return None
    try:
        line = _ask("sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job_id, "--format", SACCT)
    except WorkshopError:  # "Slurm accounting storage is disabled": then SLURM has forgotten the job
        return None
    parts = line.splitlines()[0].split("|") if line else []
    if len(parts) != 9:
        return None
    number, name, state, reason, nodes, elapsed, limit, folder, code = parts
    state = (state.split() or ["UNKNOWN"])[0]  # "CANCELLED by 1000"
    return Job(number, name, state, "" if reason == "None" else reason, nodes, elapsed, limit, folder, code, "sacct")


def why_gone(record: ServerRecord) -> str:
    """Return why the record's server cannot be there ('' if it can, or if that cannot be told from here).

    Some clusters hide other people's jobs: a server that still listens is not gone, whatever the queue says.
    """
    if not record.job_id or not available():
        return ""
    try:
        job = find(record.job_id)
    except WorkshopError:
        return ""
    if (job is not None and job.active) or _listens(record.url):
        return ""
    if job is None:
        return f"its SLURM job {record.job_id} has ended"
    why = {
        "TIMEOUT": "reached its time limit",
        "CANCELLED": "was cancelled",
        "OUT_OF_MEMORY": "ran out of memory",
        "NODE_FAIL": "lost a node",
        "PREEMPTED": "was preempted",
    }.get(job.state, f"has ended ({job.state})")
    return f"its SLURM job {record.job_id} {why}"


def _listens(url: str) -> bool:
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=1).close()
        return True
    except OSError:
        return False


def cancel(job_id: str) -> None:
    """Cancel a job.

    Raises:
        WorkshopError: SLURM refuses, or does not answer.
    """
    if not shutil.which("scancel"):
        raise WorkshopError("SLURM's commands are not here.", f"On a login node: scancel {job_id}")
    _ask("scancel", job_id)

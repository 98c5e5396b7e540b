"""What SLURM says about a job: squeue while it is known there, sacct where accounting exists."""

import re
import shutil
import socket
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.launch.programs import ask
from workshop.launch.record_file import ServerRecord

TIMEOUT_S = 10.0
ENDED = {  # the states from which no job comes back, and the words for a server's record
    "BOOT_FAIL": "lost a node",
    "CANCELLED": "was cancelled",
    "COMPLETED": "has ended",
    "DEADLINE": "reached its deadline",
    "FAILED": "has failed",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "TIMEOUT": "reached its time limit",
    "UNKNOWN": "has ended",
}
SQUEUE = "%i|%j|%T|%r|%N|%M|%L|%Z"
SACCT = "JobIDRaw,JobName,State,Reason,NodeList,Elapsed,Timelimit,WorkDir"


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
    source: str = ""  # squeue or sacct

    @property
    def active(self) -> bool:
        """Whether it still waits or runs."""
        return self.state not in ENDED


def available() -> bool:
    """Return whether SLURM's commands are here at all."""
    return shutil.which("squeue") is not None


def job_number(text: str) -> str:
    """Return a job's number (7, or 7_2 for a task of an array), or refuse what cannot be one."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}(_[0-9]{1,7})?", text):
        raise BadInput(f"{text[:60]!r} is no job id.", "Give what sbatch printed; `squeue --me` lists yours.")
    return text


def find(job_id: str) -> Job | None:
    """Return what SLURM knows about the job; None if it knows nothing (any more); else a WorkshopError."""
    if not available():
        raise WorkshopError("SLURM's commands are not here.", "Log in to a login node of the cluster.")
    line = _ask("squeue", "--noheader", "--jobs", job_id, "--states", "all", "--format", SQUEUE)
    if job := _job(line, "squeue"):
        return job
    if not shutil.which("sacct"):
        return None
    try:
        line = _ask("sacct", "--noheader", "--allocations", "--parsable2", "--jobs", job_id, "--format", SACCT)
    except WorkshopError:  # "Slurm accounting storage is disabled": then SLURM has forgotten the job
        return None
    return _job(line, "sacct")


def _job(lines: str, source: str) -> Job | None:
    parts = lines.splitlines()[0].split("|") if lines else []
    if len(parts) != SQUEUE.count("|") + 1:
        return None
    number, name, state, reason, *rest = parts
    state = (state.split() or ["UNKNOWN"])[0]  # sacct: "CANCELLED by 1000"
    return Job(number, name, state, "" if reason == "None" else reason, *rest, source)


def _ask(*command: str) -> str:
    """Return a command's output, '' if it says that it knows no such job; never hangs."""
    code, out, said = ask(*command, within_s=TIMEOUT_S)
    if code and "Invalid job id" not in said:
        raise WorkshopError(f"{command[0]} failed: {said}.", "Is the cluster's controller up? Try again in a minute.")
    return out.strip()


def facts(job_id: str) -> dict[str, str]:
    """Return `scontrol show job`, field by field; {} where it says nothing."""
    try:
        return dict(re.findall(r"(\w+)=(\S*)", _ask("scontrol", "--oneliner", "show", "job", job_id)))
    except WorkshopError:
        return {}


def checked(record: ServerRecord) -> ServerRecord:
    """Return the record as the queue has it: failed where its job is gone, starting where that waits again.

    Where the queue cannot be asked nothing changes. Some clusters hide other people's jobs: a server that still
    listens is not gone, whatever the queue says.
    """
    if not record.job_id or not available():
        return record
    try:
        job = find(record.job_id)
    except WorkshopError:
        return record
    if job is not None and job.active:
        if job.state != "PENDING" or record.state != "ready":
            return record
        return replace(record, state="starting", reason=waits_again(record.job_id, job.reason))
    if listens(record.url):
        return record
    why = ENDED["UNKNOWN" if job is None else job.state]
    return replace(record, state="failed", reason=f"its SLURM job {record.job_id} {why}")


def waits_again(job_id: str, why: str) -> str:
    """Return the words for a server whose job is back in the queue (preempted, a node lost, its time over)."""
    return f"its SLURM job {job_id} waits in the queue again" + (f" ({why})" if why else "")


def listens(url: str) -> bool:
    """Return whether anything listens at a server's address: cheaper to ask than for a completion."""
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=1).close()
        return True
    except OSError:
        return False


def cancel(job_id: str) -> None:
    """Cancel a job; a WorkshopError where SLURM refuses, or does not answer."""
    if not available():
        raise WorkshopError("SLURM's commands are not here.", f"On a login node: scancel {job_id}")
    _ask("scancel", job_id)

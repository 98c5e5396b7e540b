"""`workshop slurm status` and `logs`: what the queue says, what the job's two files say, together."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.launch import records
from workshop.launch.progress import Progress
from workshop.launch.records import ServerRecord
from workshop.launch.slurm import queue as slurm_queue
from workshop.launch.slurm.follow import Follower
from workshop.launch.slurm.queue import Job

POLL_S = 0.5
QUEUE_EVERY_S = 3.0  # the controller serves the whole cluster: ask it rarely


@dataclass(frozen=True)
class Status(Job):
    """A job as a learner wants to see it: state is the queue's, server the record's ('' if there is none)."""

    server: str = ""
    url: str = ""
    stage: str = ""
    fraction: float = 0.0
    message: str = ""
    error: str = ""
    remedy: str = ""
    output: str = ""
    error_file: str = ""


def resolve(text: str) -> str:
    """Return the number of the job that is meant: a number (7, or 7_2 of an array), or the name of a server."""
    if text.replace("_", "").isdigit():
        return slurm_queue.job_number(text)
    if (record := records.stored(text)) and record.job_id:
        return record.job_id
    jobs = ", ".join(each.name for each in records.own() if each.job_id) or "none"
    remedy = f"Known: {jobs}. Give the job's number; `squeue --me` lists yours."
    raise WorkshopError(f"No server called {text!r} with a SLURM job is known here.", remedy)


def record_of(job_id: str) -> ServerRecord | None:
    """Return the record of the job's server, as it is now."""
    return next((record for record in records.own() if record.job_id == job_id), None)


def files_of(job_id: str, job: Job | None, record: ServerRecord | None) -> tuple[Path, Path] | None:
    """Return the job's (output, error) files, whether SLURM still knows the job or not; None if they are not found."""
    folders = []
    if record and record.log:
        folders.append(Path(record.log).parent)
    if job and job.folder:
        folders.append(Path(job.folder) / f"{job.name}_{job_id}")
    folders += sorted(Path.cwd().glob(f"*_{job_id}"))
    for folder in folders:
        with suppress(OSError):  # no name that a folder can have, or not for us
            if (folder / f"output_{job_id}.out").exists():
                return folder / f"output_{job_id}.out", folder / f"error_{job_id}.out"
    return None


def status(job_id: str) -> Status:
    """Return what is known about a job; a WorkshopError where that is nothing."""
    job, record = _ask(job_id), record_of(job_id)
    files = files_of(job_id, job, record)
    if job is None and record is None and files is None:
        remedy = "Go to the folder in which you called sbatch: its files are there."
        raise WorkshopError(f"Nothing is known about job {job_id}: SLURM has forgotten it, or never had it.", remedy)
    follower = Follower([files[1], files[0]] if files else [])
    follower.read()
    return _status(job_id, job, record, files, follower)


def _ask(job_id: str) -> Job | None:
    """Return what the queue says; None also where there is no queue to ask (an OnDemand session without SLURM)."""
    return slurm_queue.find(job_id) if slurm_queue.available() else None


def _status(
    job_id: str, job: Job | None, record: ServerRecord | None, files: tuple[Path, Path] | None, follower: Follower
) -> Status:
    reader, ready = follower.reader, record is not None and record.state == "ready"
    what, remedy = follower.refusal() or ((reader.error.what, reader.error.remedy) if reader.error else ("", ""))
    if not what and record and record.state == "failed":
        what = record.reason
    if ready and (job is None or job.active):  # what was said on the way to it
        what = remedy = ""
    known = job or Job(job_id, record.name if record else "", "UNKNOWN")
    return Status(
        **asdict(known),
        server=record.state if record else "",
        url=record.url if record else "",
        stage="ready" if ready else reader.stage,
        fraction=1.0 if ready else min(reader.fraction, 0.99),
        message="ready" if ready else _words(job, reader.message, bool(files)),
        error=what,
        remedy=remedy,
        output=str(files[0]) if files else "",
        error_file=str(files[1]) if files else "",
    )


def _words(job: Job | None, message: str, started: bool) -> str:
    if job and job.state == "PENDING":
        return f"waits in the queue ({job.reason or 'no reason given'})"
    return message if started else "starting"


def follow(job_id: str, report: Callable[[Progress], None], say: Callable[[str], None]) -> Status:
    """Report progress and say what is worth it until the server is ready or the job has ended; return the last status.

    say: gets the lines of memory, KV cache, warnings and the first real error as they appear.
    """
    job, record, files = _ask(job_id), record_of(job_id), None
    follower, asked, seen = Follower([]), time.monotonic(), set()
    if job is None and record is None:
        return status(job_id)  # raises, or finds the files of a job that has ended
    while True:
        if files is None and (files := files_of(job_id, job, record)):
            follower = Follower([files[1], files[0]])
        for words in follower.read():
            if words not in seen:  # every rank says the same
                seen.add(words)
                say(words)
        now = _status(job_id, job, record, files, follower)
        report(Progress(now.fraction, now.message))
        if now.server in ("ready", "failed") or (job is not None and not job.active) or follower.refusal():
            return status(job_id)
        if time.monotonic() - asked > QUEUE_EVERY_S:
            job, asked = _ask(job_id), time.monotonic()
            if job is None and slurm_queue.available():
                return status(job_id)
        record = record_of(job_id)
        time.sleep(POLL_S)

"""`workshop slurm status` and `logs`: what the queue says, what the job's two files say, together."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.progress import Progress
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.follow import DONE, Follower
from workshop.servers.slurm.queue import Job

POLL_S = 0.5
QUEUE_EVERY_S = 3.0  # the controller serves the whole cluster: ask it rarely


@dataclass(frozen=True)
class Status(Job):
    """A job as a learner wants to see it: state is the queue's, server the record's ('' if there is none)."""

    cluster: str = ""  # '' where nobody says it: the one of this login node
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


def cluster_of(text: str) -> str:
    """Return the cluster of a job: of the server that is called so, of the server with this job, or as submitted."""
    if not text.replace("_", "").isdigit():
        record = records.stored(text)
        return slurm_queue.of_record(record).partition(";")[2] if record else ""
    clusters = {record.cluster for record in records.own() if record.job_id == text}
    if len(clusters) == 1:
        return clusters.pop() or slurm_queue.remembered(text)
    return slurm_queue.remembered(text)


def files_of(job_id: str, job: Job | None, record: ServerRecord | None) -> tuple[Path, ...]:
    """Return the job's (output, error) files, whether SLURM still knows the job or not; () if they are not found.

    A job that ended before it had its folder has one file, that of sbatch.
    """
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
    early = Path(job.folder) / f"{job.name}_{job_id}.out" if job and not job.active else None
    return (early,) if early and early.is_file() else ()


class Look:
    """What queue, record and files say of a job; `now` asks again, the queue only now and then."""

    def __init__(self, job_id: str, cluster: str | None = None):
        self.job_id, self.job, self.record, self.files = job_id, None, None, ()
        self.cluster = cluster_of(job_id) if cluster is None else cluster
        self.follower, self.said, self._asked = Follower([]), [], -QUEUE_EVERY_S

    def now(self) -> Status:
        """Return the job's status; `said` is then what its files have new that is worth saying. A WorkshopError if nothing is known."""
        if time.monotonic() - self._asked >= QUEUE_EVERY_S and slurm_queue.available():
            self.job = slurm_queue.find(slurm_queue.named(self.job_id, self.cluster))
            self._asked = time.monotonic()
        self.record = next(filter(self._is_mine, records.own()), None)
        if not self.files and (found := files_of(self.job_id, self.job, self.record)):
            self.files, self.follower = found, Follower([*reversed(found)])
        if not (self.job or self.record or self.files):
            said = f"Nothing is known about job {self.job_id}: SLURM has forgotten it, or never had it."
            raise WorkshopError(
                said, "Go to the folder in which you called sbatch: its files are there."
            )
        self.said = self.follower.read()
        return self._status()

    def _is_mine(self, record: ServerRecord) -> bool:
        """Return whether a record is of this job: two clusters may have given its number, or one of them twice."""
        if record.job_id != self.job_id or (
            self.cluster and record.cluster not in ("", self.cluster)
        ):
            return False
        return self.job is None or slurm_queue.is_of(self.job, record)

    def _status(self) -> Status:
        job, record, reader = self.job, self.record, self.follower.reader
        ready, failure = record is not None and record.state == "ready", reader.error
        what, remedy = self.follower.refusal() or (
            (failure.what, failure.remedy) if failure else ("", "")
        )
        if not what and record and record.state == "failed":
            what = record.reason
        if not what and job and not job.active:
            what = f"the job {slurm_queue.ENDED[job.state]}"
        if ready and (job is None or job.active):  # what was said on the way to it
            what = remedy = ""
        message = reader.message if self.files else "starting"
        if job and job.state == "PENDING":
            message = f"waits in the queue ({job.reason or 'no reason given'})"
        if done := what.startswith(DONE):
            message, what = what, ""
        output, error_file = map(str, (*self.files, "", "")[:2])
        return Status(
            **asdict(job or Job(self.job_id, record.name if record else "", "UNKNOWN")),
            cluster=self.cluster,
            server=record.state if record else "",
            url=record.url if record else "",
            stage="ready" if ready else reader.stage,
            fraction=1.0 if ready or done else min(reader.fraction, 0.99),
            message="ready" if ready else message,
            error=what,
            remedy=remedy,
            output=output,
            error_file=error_file,
        )


def status(job_id: str, cluster: str | None = None) -> Status:
    """Return what is known about a job; a WorkshopError where that is nothing. cluster: None: what `cluster_of` says."""
    return Look(job_id, cluster).now()


def follow(
    job_id: str,
    report: Callable[[Progress], None],
    say: Callable[[str], None],
    cluster: str | None = None,
) -> Status:
    """Report progress and say what is worth it until the server is ready or the job has ended; return the last status.

    say: gets the lines of memory, KV cache, warnings and the first real error as they appear.
    """
    look, seen = Look(job_id, cluster), set()
    while True:
        now = look.now()
        for words in look.said:
            if words not in seen:  # every rank says the same
                seen.add(words)
                say(words)
        report(Progress(now.fraction, now.message))
        ended = not look.job.active if look.job else slurm_queue.available() or look.record is None
        if now.server in ("ready", "failed") or ended or look.follower.refusal():
            return status(job_id, cluster)
        time.sleep(POLL_S)

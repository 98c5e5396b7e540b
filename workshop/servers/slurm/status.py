"""A job as `workshop servers` and `logs` show it: the queue, the record and its files in one."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.follow import Follower
from workshop.servers.progress import TaskProgress
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.job.job_file import DONE
from workshop.servers.slurm.queue import Job, Standing

POLL_S = 0.5
QUEUE_EVERY_S = 3.0  # the controller serves the whole cluster: ask it rarely


@dataclass(frozen=True)
class Status(Job):
    """A job as a learner wants to see it.

    state: of the queue.
    server: the state of the server's record; '' without one.
    cluster: '' for the one of this login node.
    stage, fraction, message: how far the start is.
    error: why it ended or cannot start; '' if it did not fail. remedy: what to do about that, or
    about what it waits for.
    output, error_file: the job's files; '' if they are not there.
    """

    cluster: str = ""
    server: str = ""
    url: str = ""
    stage: str = ""
    fraction: float = 0.0
    message: str = ""
    error: str = ""
    remedy: str = ""
    output: str = ""
    error_file: str = ""


def job_of(text: str) -> tuple[str, str] | None:
    """Return the number and the cluster of a job of this user; None if none is meant.

    text: its number (7, or 7_2 of an array), its server's name, or the name under which it waits.
    The cluster is '' where it is unknown.

    Raises WorkshopError: several jobs that wait have this name, or it can be no name.
    """
    record = records.stored(text)
    if record is not None:
        if not record.job_id:
            return None
        return record.job_id, slurm_queue.of_record(record).partition(";")[2]
    if text.replace("_", "").isdigit():
        number = slurm_queue.job_number(text)
        return number, cluster_of(number)
    # A job writes its record when it begins.
    jobs = [(job.job_id or "", job.cluster) for job in records.waiting() if job.name == text]
    if len(jobs) > 1:
        problem = f"{len(jobs)} jobs are called {text!r}: {', '.join(job[0] for job in jobs)}."
        raise WorkshopError(problem, "Give the number of one of them.")
    return jobs[0] if jobs else None


def cluster_of(job_id: str) -> str:
    """Return the cluster of a job: its server's, or as it was submitted; '' if it is unknown."""
    clusters = {record.cluster for record in records.own() if record.job_id == job_id}
    if len(clusters) == 1:
        return clusters.pop() or slurm_queue.remembered(job_id)
    return slurm_queue.remembered(job_id)


def files_of(job_id: str, job: Job | None, record: ServerRecord | None) -> tuple[Path, ...]:
    """Return the job's (output, error) files, also if SLURM has forgotten it; () without any.

    A job that ended before it had its folder has one file, that of sbatch.
    """
    folders: list[Path] = []
    if record and record.log:
        folders.append(Path(record.log).parent)
    if job and job.folder:
        folders.append(Path(job.folder) / f"{job.name}_{job_id}")
    folders += sorted(Path.cwd().glob(f"*_{job_id}"))
    for folder in folders:
        output = folder / f"output_{job_id}.out"
        with suppress(OSError):  # no name that a folder can have, or one that we may not read
            if output.exists():
                return output, folder / f"error_{job_id}.out"
    if job and not job.active:
        early = Path(job.folder) / f"{job.name}_{job_id}.out"
        if early.is_file():
            return (early,)
    return ()


class JobWatch:
    """The state of a job by queue, record and files; `now` asks again, the queue less often."""

    def __init__(self, job_id: str, cluster: str | None = None):
        self.job_id = job_id
        if cluster is None:
            cluster = cluster_of(job_id)
        self.cluster = cluster
        self.job: Job | None = None
        self.standing: Standing | None = None  # of a job that does not run
        self.record: ServerRecord | None = None
        self.files: tuple[Path, ...] = ()
        self.follower = Follower([])
        self.new_lines: list[str] = []  # of the files, worth showing, since the last `now`
        self._asked_at = -QUEUE_EVERY_S

    def now(self) -> Status:
        """Return the job's status, and set `new_lines`.

        Raises WorkshopError: nothing is known about the job.
        """
        if time.monotonic() - self._asked_at >= QUEUE_EVERY_S and slurm_queue.available():
            self.job = slurm_queue.find(slurm_queue.named(self.job_id, self.cluster))
            self.standing = self.job and slurm_queue.standing(self.job, self.cluster)
            self._asked_at = time.monotonic()
        self.record = next(filter(self._is_of_job, records.own()), None)
        if not self.files:
            self.files = files_of(self.job_id, self.job, self.record)
            if self.files:
                self.follower = Follower([*reversed(self.files)])
        if not (self.job or self.record or self.files):
            problem = (
                f"Nothing is known about job {self.job_id}: "
                "SLURM has forgotten it, or never had it."
            )
            remedy = "Go to the folder in which you called sbatch: its files are there."
            raise WorkshopError(problem, remedy)
        self.new_lines = self.follower.read()
        return self._status()

    def _is_of_job(self, record: ServerRecord) -> bool:
        """Return True if a record is of this job, whose number other clusters may have given."""
        if record.job_id != self.job_id:
            return False
        if self.cluster and record.cluster not in ("", self.cluster):
            return False
        return self.job is None or slurm_queue.is_of(self.job, record)

    def _status(self) -> Status:
        job = self.job
        record = self.record
        reader = self.follower.reader
        ready = record is not None and record.state == "ready" and not self.standing
        error, remedy = self._error()
        if ready and (job is None or job.active):  # errors on the way to it do not count
            error = remedy = ""
        message = "starting"
        if self.files:
            message = reader.message
        if self.standing:
            message = self.standing.sentence
            error, remedy = "", self.standing.remedy
            if self.standing.impossible:
                error = message
        done = error.startswith(DONE)
        if done:
            message = error
            error = ""
        fraction = min(reader.fraction, 0.99)
        stage = reader.stage
        if ready:
            stage = message = "ready"
        if ready or done:
            fraction = 1.0
        server = url = name = ""
        if record:
            server = record.state
            url = record.url
            name = record.name
        # a job that ended early has one file
        output, error_file = [*(str(path) for path in self.files), "", ""][:2]
        return Status(
            **asdict(job or Job(self.job_id, name, "UNKNOWN")),
            cluster=self.cluster,
            server=server,
            url=url,
            stage=stage,
            fraction=fraction,
            message=message,
            error=error,
            remedy=remedy,
            output=output,
            error_file=error_file,
        )

    def _error(self) -> tuple[str, str]:
        """Return (sentence, remedy): our refusal, else the engine's, record's or queue's."""
        refusal = self.follower.refusal()
        if refusal:
            return refusal
        remedy = ""
        failure = self.follower.reader.error
        if failure:
            remedy = failure.remedy
            if failure.what:
                return failure.what, remedy
        if self.record and self.record.state == "failed" and self.record.reason:
            return self.record.reason, remedy
        if self.job and not self.job.active:
            return f"the job {slurm_queue.ENDED[self.job.state]}", remedy
        return "", remedy


def status(job_id: str, cluster: str | None = None) -> Status:
    """Return what is known about a job. Raises WorkshopError: that is nothing.

    cluster: None for the one of `cluster_of`.
    """
    return JobWatch(job_id, cluster).now()


def follow(
    job_id: str,
    report: Callable[[TaskProgress], None],
    say: Callable[[str], None],
    cluster: str | None = None,
) -> Status:
    """Report progress until the server is ready or the job has ended; return the last status.

    say: gets the lines of memory, KV cache, warnings and the first real error as they appear.
    """
    look = JobWatch(job_id, cluster)
    shown: set[str] = set()
    while True:
        now = look.now()
        lines = look.new_lines
        if look.standing and look.standing.remedy:
            lines = [*lines, look.standing.text]
        for line in lines:
            if line not in shown:  # every rank says the same
                shown.add(line)
                say(line)
        report(TaskProgress(now.fraction, now.message))
        impossible = look.standing is not None and look.standing.impossible
        ended = now.server in ("ready", "failed") or _has_ended(look) or look.follower.refusal()
        if ended or impossible:
            return status(job_id, cluster)
        time.sleep(POLL_S)


def _has_ended(look: JobWatch) -> bool:
    if look.job:
        return not look.job.active
    return slurm_queue.available() or look.record is None

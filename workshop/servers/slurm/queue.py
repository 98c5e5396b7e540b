"""Ask SLURM about a job: squeue while it knows the job, then sacct if accounts are kept.

A job is named as `sbatch --parsable` names it: "7" (or "7_2", a task of an array), or "7;alpha"
where it belongs to the cluster alpha, whichever cluster's login node this is. That cluster is
asked, and no other.
"""

import os
import re
import shutil
import socket
import time
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from workshop.errors import BadInput, WorkshopError
from workshop.home import home, private_folder, write_private
from workshop.servers.host.programs import run
from workshop.servers.records.record_file import CLUSTER, SUSPENDED, WAITING, ServerRecord
from workshop.servers.slurm import reasons

TIMEOUT_S = 10.0
FIRST_ANSWER_S = 6.0  # batch_sched_delay, 3 s by default, and the scheduler's pass
ENDED = {  # the states from which no job comes back, and the words for a server's record
    "BOOT_FAIL": "lost a node",
    "CANCELLED": "was cancelled",
    "COMPLETED": "has ended",
    "DEADLINE": "reached its deadline",
    "FAILED": "has failed",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "TIMEOUT": "reached its time limit",
    "UNKNOWN": "has ended",
}
# REVOKED is none of them: in a federation another cluster has started the job.
BEFORE_START = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")
SQUEUE = "%i|%j|%T|%r|%N|%M|%L|%Z"
SACCT = "JobIDRaw,JobName,State,Reason,NodeList,Elapsed,Timelimit,WorkDir"
# A row in these formats. Other lines are none: "CLUSTER: alpha", which squeue prints in spite of
# --noheader, and warnings. A job's name may hold a bar, so the state is found by its capitals.
ROW = re.compile(
    r"(?P<number>\d[^|\s]*)\|(?P<name>.*?)\|(?P<state>[A-Z_]*)(?:\+| by \S+)?\|(?P<reason>[^|]*)"
    r"\|(?P<nodes>[^|]*)\|(?P<elapsed>[\d:-]*|[A-Z_]+)\|(?P<left>[^|]*)\|(?P<folder>.*)"
)
UNKNOWN_JOB = "Invalid job id"


class UnknownJob(WorkshopError):
    """SLURM says that it knows no such job."""


@dataclass(frozen=True)
class Job:
    """One job, as squeue or sacct shows it."""

    job_id: str
    name: str
    state: str  # SLURM's own word: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT, …
    reason: str = ""  # why it waits, or ended
    nodes: str = ""
    elapsed: str = ""
    left: str = ""  # of its time limit
    folder: str = ""  # where sbatch was called
    source: str = ""  # squeue or sacct

    @property
    def active(self) -> bool:
        """True if it still waits or runs."""
        return self.state not in ENDED

    @property
    def waits(self) -> bool:
        """True if it has not started, or is to start again."""
        return self.state in BEFORE_START


@dataclass(frozen=True)
class Standing:
    """The answer of SLURM about a job that does not run: it waits, or is suspended.

    state: WAITING or SUSPENDED, as of a record. sentence: since when or why, and whether it passes.
    remedy: '' where nothing is to be done. impossible: the job's own request is in the way.
    """

    state: str
    sentence: str
    remedy: str = ""
    impossible: bool = False

    @property
    def text(self) -> str:
        """The sentence, and what to do."""
        if not self.remedy:
            return self.sentence
        return f"{self.sentence}. {self.remedy}"


def available() -> bool:
    """Return True if SLURM's commands are on this machine."""
    return shutil.which("squeue") is not None


def job_number(text: str) -> str:
    """Return a job's number (7, or 7_2 for a task of an array), or refuse what cannot be one."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}(_[0-9]{1,7})?", text):
        raise BadInput(
            f"{text[:60]!r} is no job id.", "Give what sbatch printed; `squeue --me` lists yours."
        )
    return text


def named(job_id: str, cluster: str) -> str:
    """Return a job as this module names it."""
    return f"{job_id};{cluster}" if cluster else job_id


def of_record(record: ServerRecord) -> str:
    """Return the job of a server as this module names it; '' if it has none.

    Where the record names no cluster, the one to which a job of this number was submitted from here
    is meant.
    """
    if not record.job_id:
        return ""
    return named(record.job_id, record.cluster or remembered(record.job_id))


def find(job: str) -> Job | None:
    """Return what SLURM knows about the job; None if it knows nothing, or nothing any more.

    Raises WorkshopError: SLURM cannot be asked.
    """
    if not available():
        raise WorkshopError(
            "SLURM's commands are not here.", "Log in to a login node of the cluster."
        )
    job_id, _, cluster = job.partition(";")
    try:
        lines = ask(
            cluster, "squeue", "--noheader", "--jobs", job_id, "--states", "all", "--format", SQUEUE
        )
    except UnknownJob:
        lines = ""
    job_in_queue = _row(lines, job_id, "squeue")
    if job_in_queue:
        return job_in_queue
    if not shutil.which("sacct"):
        return None
    options = ("--noheader", "--allocations", "--parsable2", "--jobs", job_id, "--format", SACCT)
    try:
        lines = ask(cluster, "sacct", *options)
    except WorkshopError:  # accounting is disabled: SLURM has forgotten the job
        return None
    return _row(lines, job_id, "sacct")


def _row(lines: str, job_id: str, source: str) -> Job | None:
    """Return the job of this number, or else the first: arrays, heterogeneous jobs have several."""
    jobs = _rows(lines, source)
    return next((job for job in jobs if job.job_id == job_id), jobs[0] if jobs else None)


def _rows(lines: str, source: str) -> list[Job]:
    """Return the jobs in the lines of squeue or sacct, in these formats."""
    jobs: list[Job] = []
    for line in lines.splitlines():
        row = ROW.fullmatch(line)
        if not row:
            continue
        jobs.append(
            Job(
                job_id=row["number"],
                name=row["name"],
                state=row["state"] or "UNKNOWN",
                reason="" if row["reason"] == "None" else row["reason"],
                nodes=row["nodes"],
                elapsed=row["elapsed"],
                left=row["left"],
                folder=row["folder"],
                source=source,
            )
        )
    return jobs


def ask(cluster: str, program: str, *arguments: str) -> str:
    """Return what a command of SLURM prints.

    Raises UnknownJob or WorkshopError in its words; gives up after TIMEOUT_S.
    """
    options, environment = _directed(cluster)
    done = run(program, *options, *arguments, within_s=TIMEOUT_S, env=environment)
    if not done.code:
        return done.out
    complaint = _complaint(done.lines) or f"exit code {done.code}"
    if UNKNOWN_JOB in complaint:
        raise UnknownJob(f"{program} refused: {complaint}.", "`squeue --me` lists your jobs.")
    raise WorkshopError(
        f"{program} failed: {complaint}.", "Is the cluster's controller up? Try again in a minute."
    )


def _complaint(lines: list[str]) -> str:
    """Return the lines of a command of SLURM as one, each without the program's own name."""
    return "; ".join(re.sub(r"^\w+: (error: )?", "", line) for line in lines).rstrip(".")


def _directed(cluster: str) -> tuple[list[str], dict[str, str] | None]:
    """Return the options and the environment (None: this process's own) to ask a cluster with.

    That of this login node is asked without --clusters, which needs the accounting database.
    """
    if not cluster:
        return [], None
    environment = _without_clusters()
    if cluster == cluster_here():
        return [], environment
    return [f"--clusters={cluster}"], {**environment, "SLURM_CLUSTERS": cluster}


def _without_clusters() -> dict[str, str]:
    """Return this process's environment without SLURM_CLUSTERS, which directs to other clusters."""
    return {name: value for name, value in os.environ.items() if name != "SLURM_CLUSTERS"}


# {(path of scontrol, SLURM_CONF): name}
_clusters_here: dict[tuple[str | None, str | None], str] = {}


def cluster_here() -> str:
    """Return the name of the cluster that SLURM's commands ask here by default, or ''."""
    key = (shutil.which("scontrol"), os.environ.get("SLURM_CONF"))
    if key not in _clusters_here:
        done = run("scontrol", "show", "config", within_s=TIMEOUT_S, env=_without_clusters())
        match = re.search(r"^ClusterName\s*=\s*(\S+)", done.out, re.MULTILINE)
        if done.code or not match or not re.fullmatch(CLUSTER, match[1]):
            return ""
        _clusters_here[key] = match[1]
    return _clusters_here[key]


def remember(job_id: str, cluster: str) -> None:
    """Note to which cluster a job was submitted: until it starts, no record names it."""
    write_private(private_folder("slurm", "clusters") / job_id, f"{cluster}\n")


def remembered(job_id: str) -> str:
    """Return the cluster that was noted for a job of this number; '' if none was."""
    path = home() / "slurm" / "clusters"
    try:
        text = (path / job_number(job_id)).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
    return text if re.fullmatch(CLUSTER, text) else ""


def facts(job: str) -> dict[str, str]:
    """Return `scontrol show job`, field by field; {} where it says nothing."""
    job_id, _, cluster = job.partition(";")
    try:
        return fields(ask(cluster, "scontrol", "--oneliner", "show", "job", job_id))
    except WorkshopError:
        return {}


def fields(text: str) -> dict[str, str]:
    """Return the fields in the words of `scontrol --oneliner show job`."""
    return dict(re.findall(r"(\w+)=(\S*)", text))


def standing(job: Job, cluster: str = "") -> Standing | None:
    """Return what SLURM says of a job that waits or is suspended; None for any other."""
    suspended = job.state == "SUSPENDED"
    if not (suspended or job.waits):
        return None
    details = facts(named(job.job_id, cluster))
    if suspended:
        sentence = "suspended by SLURM"
        since = _time(details.get("SuspendTime", ""))
        if since:
            sentence += f" since {since}"
        return Standing(
            SUSPENDED,
            f"{sentence}: another job goes before it, or an administrator stopped it",
            "It goes on when SLURM resumes it.",
        )
    obstacle = reasons.obstacle(job.reason)
    # Of several partitions, the reason is that of one.
    if obstacle and not (obstacle.of_request and "," in details.get("Partition", "")):
        return Standing(
            WAITING,
            f"this will never start{obstacle.never} ({job.reason})",
            obstacle.remedy.format(job=job.job_id),
            obstacle.of_request,
        )
    sentence = f"waits in the queue ({job.reason or 'no reason given'})"
    start = _time(details.get("StartTime", ""))
    if start:
        sentence += f"; SLURM expects its start at {start}"
    return Standing(WAITING, sentence)


def first_answer(job: str) -> Job | None:
    """Return a job that was just submitted, once SLURM has a reason for its waiting.

    None if it does not wait. The scheduler looks at it within seconds; until then the reason is
    none, or the first look's (PartitionConfig), which may yet become another.
    """
    deadline = time.monotonic() + FIRST_ANSWER_S
    while available():
        try:
            now = find(job)
        except WorkshopError:
            return None
        if now is None or not now.waits:
            return None
        if now.reason not in ("", reasons.FIRST_LOOK) or time.monotonic() > deadline:
            return now
        time.sleep(0.3)
    return None


def _time(text: str) -> str:
    """Return a time of SLURM's to the minute, such as 2026-11-28 09:05; '' for Unknown or N/A."""
    match = re.match(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d)", text)
    return f"{match[1]} {match[2]}" if match else ""


def submitted() -> list[ServerRecord]:
    """Return this user's jobs of `workshop slurm submit` that have not ended, as records.

    They are in the notes of submissions (`remember`) and in the queue. A record of these has no
    address and no key, and is never written.
    """
    clusters: dict[str, set[str]] = {}
    notes = home() / "slurm" / "clusters"
    if not (notes.is_dir() and available()):
        return []
    for note in notes.iterdir():
        clusters.setdefault(remembered(note.name), set()).add(note.name)
    jobs: list[ServerRecord] = []
    for cluster, numbers in clusters.items():
        try:
            lines = ask(cluster, "squeue", "--noheader", "--me", "--format", SQUEUE)
        except WorkshopError:  # a list of servers does not wait for a cluster that is away
            continue
        for job in _rows(lines, "squeue"):
            if job.active and re.split(r"\D", job.job_id)[0] in numbers:
                jobs.append(_without_record(job, cluster))
    return jobs


def _without_record(job: Job, cluster: str) -> ServerRecord:
    now = standing(job, cluster)
    return ServerRecord(
        name=job.name,
        url="",
        model="",
        api_key="",
        where="slurm",
        host=job.nodes,
        job_id=job.job_id,
        cluster=cluster,
        state=now.state if now else "starting",
        reason=now.text if now else "its job begins",
    )


def checked(record: ServerRecord) -> ServerRecord:
    """Return the record as the queue has it: failed, suspended, or starting where its job waits again.

    Nothing changes where the queue cannot be asked. Some clusters hide other people's jobs: a
    server that still listens is not gone, whatever the queue says. A job that the queue does not
    know may belong to another cluster: then the state stays, and `reason` names the doubt.
    """
    if not record.job_id or not available():
        return record
    try:
        job = find(of_record(record))
    except WorkshopError:
        return record
    if job is not None and is_of(job, record) and job.active:
        if job.waits and record.state == "ready":
            reason = waits_again(record.job_id, job.reason)
            return replace(record, state="starting", reason=reason)
        now = standing(job, record.cluster)
        if now and now.state == SUSPENDED:
            return replace(record, state=SUSPENDED, reason=now.text)
        if now and now.remedy:
            return replace(record, reason=now.text)
        return record
    if listens(record.url):
        return record
    if job is None or not is_of(job, record):
        return replace(record, reason=f"{doubt(record, job)}, and nothing answers at its address")
    return replace(
        record, state="failed", reason=f"its SLURM job {record.job_id} {ENDED[job.state]}"
    )


def is_of(job: Job, record: ServerRecord) -> bool:
    """Return whether a job of the right number can be the server's.

    A controller that was reset counts anew, so another job may have the number. A server's log lies
    in <name of the job>_<number>, and where it does not, its record is called like the job.
    """
    if not record.log:
        return True
    folder = Path(record.log).parent.name
    return folder == f"{job.name}_{record.job_id}" or job.name == record.name


def doubt(record: ServerRecord, job: Job | None) -> str:
    """Return the reason to doubt a server: the queue knows no job of its number, or another."""
    queue = "SLURM here"
    if record.cluster:
        queue = f"the queue of {record.cluster}"
    if job is None:
        return f"{queue} does not know its job {record.job_id}"
    return f"job {record.job_id} of {queue} is called {job.name}, so it is not this server's"


def waits_again(job_id: str, why: str) -> str:
    """Return the reason for a server whose job is back in the queue; why: '' if SLURM says none."""
    reason = f"its SLURM job {job_id} waits in the queue again"
    return f"{reason} ({why})" if why else reason


def listens(url: str) -> bool:
    """Return True if anything listens at a server's address. A completion would cost more."""
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=1).close()
        return True
    except OSError:
        return False


def cancel(job: str) -> None:
    """Cancel a job; a WorkshopError in SLURM's own words where it refuses, or does not answer."""
    job_id, _, cluster = job.partition(";")
    if not available():
        raise WorkshopError("SLURM's commands are not here.", f"On a login node: scancel {job_id}")
    ask(cluster, "scancel", job_id)

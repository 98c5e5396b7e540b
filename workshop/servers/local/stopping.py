"""`workshop stop`: end a server, known by its pid and its start time, and nothing else."""

import contextlib
import signal
import subprocess

from workshop.errors import BadInput, WorkshopError
from workshop.lock import Busy
from workshop.servers import records
from workshop.servers.host import processes
from workshop.servers.local import claims, scratch
from workshop.servers.records import ServerRecord
from workshop.servers.slurm import queue as slurm_queue

STOP_GRACE_S = 20.0  # then what is left is killed
START_TAKES_S = 10.0  # from the name's claim to the engine's process
WATCHER_TAKES_S = 10.0  # to write down an end


def stop(name: str) -> str:
    """Stop the server `name`, or cancel its SLURM job; return what was done.

    name: also of a job of `workshop slurm submit` that has not begun, or its number. If the server
    does not end, its record stays.

    Raises WorkshopError: there is none, it runs elsewhere, or it does not end.
    """
    if records.stored(name) is None:
        jobs = [job for job in records.waiting() if name in (job.name, job.job_id)]
        if jobs:
            return _cancel_waiting(name, jobs)
    record = records.require(name)
    if record.state == "failed" and not _job_goes_on(record):
        _clear(record)
        return f"{name} had failed ({record.reason}); its record is removed."
    if record.where == "slurm":
        return _cancel(record)
    if not records.is_here(record):
        place = f"in {record.where}"
        if record.where == "local":
            place = f"on {record.host}"
        raise WorkshopError(
            f"{name} runs {place}, not on this machine.", f"Stop it there: workshop stop {name}"
        )
    if record.pid is None:  # it is just being started: as soon as it has a process

        def has_process() -> bool:
            starting = records.read(name)
            return starting is None or starting.pid is not None

        processes.until(has_process, START_TAKES_S)
        record = records.read(name)
        if record is None or record.pid is None or record.state == "failed":
            raise claims.busy(name)
    _terminate(record)
    _clear(record)
    return f"{name} is stopped."


def stop_failed() -> list[str]:
    """Forget all servers of this user's that have failed; return their names, oldest first.

    One whose job goes on, or whose address answers, stays: only its record has the key.
    """
    names: list[str] = []
    for record in records.own():
        if record.state == "failed" and not _job_goes_on(record):
            _clear(record)
            names.append(record.name)
    return names


def _terminate(record: ServerRecord) -> None:
    """End the engine with all that it started: politely, then not."""
    pid = record.pid
    start = record.process_started
    with contextlib.suppress(OSError):
        records.path_of(record.name, ".stop").touch(mode=0o600)
    if pid is None:
        return  # the process that starts it sees the .stop file
    try:
        processes.send(pid, start, signal.SIGTERM)
    except PermissionError:
        problem = f"Process {pid} of {record.name} is another user's."
        raise WorkshopError(problem, "Stop it as the user who started it.") from None
    processes.ended(pid, start, STOP_GRACE_S)
    gone = processes.end_session(pid, start, record.log)
    processes.send(pid, start, signal.SIGKILL)  # one that leads no session, such as a tunnel's ssh
    if not gone or not processes.ended(pid, start, processes.KILL_TAKES_S):
        remedy = "Try again, or ask the administrator: such a process waits for a disk or a driver."
        raise WorkshopError(
            f"{record.name} does not end: process {pid} or one of its own is there still.", remedy
        )


def _clear(record: ServerRecord) -> None:
    """Forget a server that has ended, and remove what its watcher may have left on this machine."""
    claim = claims.Claim(record)

    def passed_on() -> bool:
        now = records.stored(record.name)
        return now is not None and (now.api_key, now.started) != (record.api_key, record.started)

    def free() -> bool:
        with contextlib.suppress(Busy):
            claim.take(wait_s=0.0)
            return True
        return False

    # The watcher may be stopped (Ctrl-Z): then it keeps the name, and no other server can be meant.
    processes.until(lambda: free() or passed_on(), WATCHER_TAKES_S)
    try:
        if passed_on() or records.stored(record.name) is None:
            return
        if records.is_here(record) and record.boot_id == records.boot_id():
            if record.pid:
                processes.end_session(record.pid, record.process_started, record.log)
            scratch.remove(record.name)
        claim.forget()
    finally:
        claim.give_back()


def forget(name: str) -> str:
    """Remove the record of a server on SLURM that its user knows to be gone; return what was done.

    Refused where SLURM knows better, and where something answers at its address: only the record
    has the key.
    """
    record = records.require(name)
    if record.where != "slurm":
        raise BadInput(f"{name} is no server on SLURM.", f"Stop it: workshop stop {name}")
    if _job_goes_on(record):
        problem = (
            f"{name} is not gone: its job {record.job_id} goes on, "
            f"or something answers at {record.url}."
        )
        raise WorkshopError(problem, f"Stop it: workshop stop {name}")
    _clear(record)
    return f"{name} is forgotten: its record is removed, and nothing was cancelled."


def _job_goes_on(record: ServerRecord) -> bool:
    """Return whether SLURM still has the job of a server said to be gone, or the server answers."""
    if record.where != "slurm" or not record.job_id:
        return False
    with contextlib.suppress(WorkshopError):
        job = slurm_queue.find(slurm_queue.of_record(record))
        if job is not None and slurm_queue.is_of(job, record):
            return job.active
    return slurm_queue.listens(record.url)


def _cancel_waiting(name: str, jobs: list[ServerRecord]) -> str:
    """Cancel the one job of that name that has no record yet."""
    if len(jobs) > 1:
        numbers = [str(job.job_id) for job in jobs]
        raise WorkshopError(
            f"{len(jobs)} jobs are called {name!r}: {', '.join(numbers)}.",
            f"Give the number of one of them: workshop stop {numbers[-1]}",
        )
    slurm_queue.cancel(slurm_queue.of_record(jobs[0]))
    return f"{jobs[0].name} is stopped: job {jobs[0].job_id} is cancelled before it began."


def _cancel(record: ServerRecord) -> str:
    """Cancel the server's job; its record goes once SLURM says that the job has ended.

    A job that runs removes the record itself, and is given a moment for it.
    """
    name = slurm_queue.of_record(record)
    if not name:
        remedy = (
            "`squeue --me` lists your jobs. "
            f"Where it has ended: workshop stop {record.name} --forget"
        )
        raise WorkshopError(
            f"The record of {record.name} names no SLURM job that could be cancelled.", remedy
        )
    job = slurm_queue.find(name)
    if job is not None and not slurm_queue.is_of(job, record):
        remedy = (
            f"Nothing is cancelled. Where the server is gone: workshop stop {record.name} --forget"
        )
        raise WorkshopError(
            f"{record.name} cannot be stopped: {slurm_queue.doubt(record, job)}.", remedy
        )
    if job is not None and not job.active:
        _clear(record)
        why = slurm_queue.ENDED[job.state]
        return (
            f"{record.name} is stopped: its job {record.job_id} {why}, and its record is removed."
        )
    try:
        slurm_queue.cancel(name)
    except WorkshopError as refusal:
        now = slurm_queue.find(name)
        if now is None or (now.active and now.state != "COMPLETING"):
            raise _refused(record, refusal) from None
    runs = job is not None and not job.waits
    if runs and processes.until(lambda: records.stored(record.name) is None, STOP_GRACE_S):
        return f"{record.name} is stopped: job {record.job_id} is cancelled."
    now = slurm_queue.find(name)
    if now is not None and now.active:
        problem = f"Job {record.job_id} of {record.name} was told to end, and is {now.state} still."
        raise WorkshopError(problem, f"Look again in a minute: workshop servers {record.name}")
    if job is None and now is None:  # scancel says nothing of a job that it does not know
        raise _refused(
            record, WorkshopError(f"{slurm_queue.doubt(record, None)}, and scancel did nothing.")
        )
    _clear(record)
    return f"{record.name} is stopped: job {record.job_id} is cancelled."


def _refused(record: ServerRecord, refusal: WorkshopError) -> WorkshopError:
    """Return the error, in SLURM's words, for a job that it does not cancel or does not know."""
    cluster = record.cluster or slurm_queue.cluster_here()
    where = ""
    if cluster:
        where = f" on the cluster {cluster}"
    remedy = (
        f"The record of {record.name} and its key are kept. If the job is another cluster's, "
        f"cancel it there (scancel {record.job_id}); if it has ended, forget the record: "
        f"workshop stop {record.name} --forget"
    )
    return WorkshopError(f"{record.name} is not stopped{where}: {refusal.message}", remedy)


def end(process: processes.Child | None, record: ServerRecord | None = None, log: str = "") -> None:
    """End a process with all of the session that it leads: politely, then not.

    Once it was waited for, its number may be a stranger's: then its record, or its log, tells what
    is its own.
    """
    if process is None:
        return
    start = None
    if record:
        start = record.process_started
        log = record.log
    if process.returncode is None:
        start = processes.started(process.pid)
        process.terminate()
        # not waited for yet: so the number stays its own
        processes.ended(process.pid, start, STOP_GRACE_S)
    processes.end_session(process.pid, start, log)
    process.kill()  # does nothing if it has ended
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)

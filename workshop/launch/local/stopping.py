"""`workshop stop`: end a server, and nothing else: what is signalled is known by its number and its start time."""

import contextlib
import signal
import subprocess

from workshop.errors import WorkshopError
from workshop.launch import processes, records
from workshop.launch.local import claims, scratch
from workshop.launch.records import ServerRecord
from workshop.launch.slurm import queue as slurm_queue

STOP_GRACE_S = 20.0  # then what is left is killed
START_TAKES_S = 10.0  # from the name's claim to the engine's process
WATCHER_TAKES_S = 10.0  # to write down an end


def stop(name: str) -> str:
    """Stop the server `name`, or cancel its SLURM job; return what was done. If it does not end, its record stays."""
    record = records.mine(name)
    if record.state == "failed":
        _clear(record)
        return f"{name} had failed ({record.reason}); its record is removed."
    if record.where == "slurm":
        return _cancel(record)
    if not records.is_here(record):
        place = f"on {record.host}" if record.where == "local" else f"in {record.where}"
        raise WorkshopError(f"{name} runs {place}, not on this machine.", f"Stop it there: workshop stop {name}")
    if record.pid is None:  # it is just being started: as soon as it has a process
        processes.until(lambda: (now := records.read(name)) is None or now.pid is not None, START_TAKES_S)
        record = records.read(name)
        if record is None or record.pid is None or record.state == "failed":
            raise claims.busy(name)
    _terminate(record)
    _clear(record)
    return f"{name} is stopped."


def _terminate(record: ServerRecord) -> None:
    """End the engine with all that it started: politely, then not."""
    pid, start = record.pid, record.process_started
    with contextlib.suppress(OSError):
        records.path_of(record.name, ".stop").touch(mode=0o600)
    try:
        processes.send(pid, start, signal.SIGTERM)
    except PermissionError:
        said = f"Process {pid} of {record.name} is another user's."
        raise WorkshopError(said, "Stop it as the user who started it.") from None
    processes.ended(pid, start, STOP_GRACE_S)
    gone = processes.end_session(pid, start, record.log)
    processes.send(pid, start, signal.SIGKILL)  # one that leads no session, such as a tunnel's ssh
    if not gone or not processes.ended(pid, start, processes.KILL_TAKES_S):
        remedy = "Try again, or ask the administrator: such a process waits for a disk or a driver."
        raise WorkshopError(f"{record.name} does not end: process {pid} or one of its own is there still.", remedy)


def _clear(record: ServerRecord) -> None:
    """Forget a server that has ended, and remove what it left on this machine; its watcher mostly did so already."""
    claim = claims.Claim(record)

    def passed_on() -> bool:
        now = records.stored(record.name)
        return now is not None and (now.api_key, now.started) != (record.api_key, record.started)

    # The watcher may be stopped (Ctrl-Z): then it keeps the name, and no other server can be meant.
    processes.until(lambda: claim.take(tries=1) or passed_on(), WATCHER_TAKES_S)
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


def _cancel(record: ServerRecord) -> str:
    """Cancel the server's job: one that runs removes the record itself, and is given a moment for it."""
    runs = (job := slurm_queue.find(record.job_id or "")) is not None and job.state != "PENDING"
    slurm_queue.cancel(record.job_id or "")
    if not runs or not processes.until(lambda: records.stored(record.name) is None, STOP_GRACE_S):
        job = slurm_queue.find(record.job_id or "")
        if job is not None and job.active:
            said = f"Job {record.job_id} of {record.name} was told to end, and is {job.state} still."
            raise WorkshopError(said, f"Look again in a minute: workshop slurm status {record.job_id}")
        records.remove(record.name)
    return f"{record.name} is stopped: job {record.job_id} is cancelled."


def end(process: subprocess.Popen | None, record: ServerRecord | None = None, log: str = "") -> None:
    """End a process with all of the session that it leads: politely, then not.

    Once it was waited for, its number may be a stranger's: then its record, or its log, tells what is its own.
    """
    if process is None:
        return
    start = record.process_started if record else None
    if process.returncode is None:
        start = processes.started(process.pid)
        process.terminate()
        processes.ended(process.pid, start, STOP_GRACE_S)  # not waited for yet: so the number stays its own
    processes.end_session(process.pid, start, record.log if record else log)
    process.kill()  # does nothing if it has ended
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)

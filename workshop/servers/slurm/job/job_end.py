"""The end of a SLURM job: why it ended, what its record says from then on, and whether it comes back."""

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from workshop.engine.log.failures import ROOT
from workshop.errors import WorkshopError
from workshop.servers import records
from workshop.servers.follow import Follower
from workshop.servers.records import ServerRecord, share
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.job import job_file
from workshop.servers.slurm.job.job_file import DONE

PREEMPTED = "preempted: a job that goes before took its nodes"
REFUSED_REMEDY = (
    "Submit it again; a batch goes on where it was. "
    "With sbatch --requeue a job may go back by itself."
)


@dataclass(frozen=True)
class End:
    """The end of a job.

    cause: done, cancelled, time-limit, requeue, engine, ready-budget or error. code: the job's exit
    code.
    """

    cause: str
    code: int


def write_end(
    end: End,
    record: ServerRecord | None,
    back: tuple[str, str],
    logs: list[Path],
    facts: dict[str, str],
) -> str:
    """Write the end into the record, and return the lines that say why.

    The record is removed if the job was meant to end, and gets the reason otherwise. A job that
    goes back into the queue keeps its record, as `starting`, and what was shared of it.

    Args:
        end: how the job ended.
        record: of its server; None if none was announced.
        back: why the job goes back into the queue ('' if it does not), and SLURM's words where it
            refuses that ('' otherwise).
        logs: the job's files: reasons, error, output.
        facts: the fields of `scontrol show job`.
    """
    job = job_file.own_job()
    why, refusal = back
    remedy = ""
    if refusal:
        sentence = f"SLURM did not put job {job} back into its queue ({why}): {_one_line(refusal)}"
        remedy = REFUSED_REMEDY
        _write_failed(record, sentence)
    elif why:
        sentence = slurm_queue.waits_again(job, why)
        write_waiting(record, sentence)
    else:
        sentence, remedy = reason(end.cause, end.code, logs, facts)
        was_meant = end.cause in ("cancelled", "done") and not sentence.startswith(PREEMPTED)
        if record and was_meant:
            records.remove(record.name)
        else:
            _write_failed(record, sentence)
    text = f"[workshop] ended: {sentence}"
    if remedy:
        text += f"\n[workshop] remedy: {remedy}"
    return text


def write_waiting(record: ServerRecord | None, why: str) -> None:
    """Write into the record, and its shared copies, that the job waits again."""
    if record is None:
        return
    record = replace(record, state="starting", reason=why)
    records.write(record)
    share.renew(record)


def _write_failed(record: ServerRecord | None, why: str) -> None:
    if record is None:
        return
    with suppress(WorkshopError, OSError):
        records.withdraw(record.name)
    records.write(replace(record, state="failed", reason=why.rstrip(".")))


def _one_line(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def again(cause: str, job: dict[str, str]) -> tuple[str, bool]:
    """Return why the job goes back into the queue, and whether we have to ask SLURM for that.

    '' if it does not go back.

    A preemption with a GraceTime only sends TERM; a job that ends by itself in that time does not
    come back. job: the fields of `scontrol show job`.
    """
    if cause == "done":
        return "", False
    if int(job.get("Restarts") or 0) > int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        return "put back by SLURM", False
    if cause == "requeue":
        return "its time limit was near", True
    if _preempted(job) and job.get("Requeue") == "1":
        return "preempted", True
    return "", False


def _preempted(job: dict[str, str]) -> bool:
    return job.get("PreemptTime", "None") != "None"


def reason(cause: str, code: int, logs: list[Path], job: dict[str, str]) -> tuple[str, str]:
    """Return (sentence, remedy): our own refusal if there is one, else the engine's first error.

    job: the fields of `scontrol show job`.
    """
    if cause == "done":
        return DONE, ""
    if _preempted(job):
        return (
            PREEMPTED,
            "Submit it again; with sbatch --requeue it goes back into the queue by itself.",
        )
    if cause == "cancelled" and not _at_time_limit(job):
        return "cancelled: the job was told to end", ""
    if cause in ("cancelled", "time-limit"):
        return "the job's time limit is reached", "Ask for more: sbatch --time=HH:MM:SS."
    follower = Follower(logs, own=False)
    follower.read()
    follower.reader.close()
    refusal = follower.refusal()
    if refusal:
        return refusal
    failure = follower.reader.error
    if failure and failure.rank >= ROOT:
        return failure.what, failure.remedy
    # 128 + signal; the rest is an echo
    killed = re.search(r"exit code (1[3-9]\d)$", follower.ended)
    if killed:
        remedy = (
            "Signal 9 mostly means that the host had no memory left: ask for more (sbatch --mem)."
        )
        return f"vLLM was killed by signal {int(killed[1]) - 128} ({follower.ended})", remedy
    if failure:
        return failure.what, failure.remedy
    first_end = ""
    if follower.ended:
        first_end = f" ({follower.ended})"
    remedy = f"Its last words are in {logs[1].name} and {logs[2].name}."
    return f"the engine ended by itself with exit code {code}{first_end}", remedy


def _at_time_limit(job: dict[str, str]) -> bool:
    """Return True if the job's time is over: SLURM then sends the same signal as scancel."""
    end_time = os.environ.get("SLURM_JOB_END_TIME", "")
    if end_time.isdigit():
        return time.time() > int(end_time) - 5
    return job.get("Reason") == "TimeLimit"

"""Announce the server of a SLURM job, watch its start and note its end, for slurm/job.sh.

    python -m workshop.servers.slurm.job announce|watch|end …

Runs in the engine's environment: the standard library and psutil only, which vLLM brings.
"""

import argparse
import math
import os
import re
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from workshop.engine.log.failures import ROOT
from workshop.errors import WorkshopError
from workshop.home import private_folder
from workshop.servers import records
from workshop.servers.host import machine
from workshop.servers.host.disk import refuse_full
from workshop.servers.local import claims
from workshop.servers.local.answering import answers
from workshop.servers.records import ServerRecord, share
from workshop.servers.records.record_file import CLUSTER
from workshop.servers.slurm import queue as slurm_queue
from workshop.servers.slurm.follow import DONE, Follower, refuse
from workshop.servers.start_time import LOAD_GB_PER_S, START_ALLOWANCE_S, start_budget_s
from workshop.servers.weights.check import weight_bytes

POLL_S = 0.2
PREEMPTED = "preempted: a job that goes before took its nodes"
REQUEUE_CODE = 10  # of `end`: job.sh is to ask SLURM for the requeue
REFUSED_REMEDY = (
    "Submit it again; a batch goes on where it was. "
    "With sbatch --requeue a job may go back by itself."
)


def announce(args: argparse.Namespace) -> None:
    """Choose address and ports, make the key, write the record, print what the shell needs.

    What is printed is separated by tabs.
    """
    for folder in (private_folder("servers"), Path(args.log).parent):
        refuse_full(folder, "Free some space or quota there, or call sbatch from another disk.")
    # The way to the job's other nodes is the network that the parts of the engine need.
    this_node = (socket.gethostname(), os.environ.get("SLURMD_NODENAME"))
    others = [node for node in args.nodes.split() if node not in this_node]
    submit_host = os.environ.get("SLURM_SUBMIT_HOST", "")
    api_host = machine.own_address(os.environ.get("WORKSHOP_INTERFACE", ""), submit_host, *others)
    head = machine.own_address(
        os.environ.get("WORKSHOP_FABRIC", ""), *others, submit_host, api_host
    )
    ports = machine.job_ports(
        int(os.environ["SLURM_JOB_ID"]), sorted({api_host, head}), machine.fixed_port()
    )
    url = f"http://{api_host}:{ports[0]}/v1"
    new = records.new(
        name=args.name, url=url, model=args.served, where="slurm", job_id=own_job(), log=args.log
    )
    record = _claimed(replace(new, cluster=_cluster()))
    # vLLM names what it compiles by the model's path, so a link to it is followed: as the engine's
    # environment sees it.
    model = os.path.realpath(args.model)
    if not (Path(model) / "config.json").is_file():
        model = args.model
    print(records.path_of(record.name), api_host, ports[0], head, *ports[1:4], model, sep="\t")


def _cluster() -> str:
    """Return the name of this cluster; '' where SLURM sets none that a record can hold."""
    name = os.environ.get("SLURM_CLUSTER_NAME", "")
    if not re.fullmatch(CLUSTER, name):
        return ""
    return name


def own_job() -> str:
    """Return this job's number as SLURM's commands take it: 7, or 7_2 for a task of an array.

    One task of an array has the array's own number as its SLURM_JOB_ID; `scancel 7` there ends the
    other tasks as well.
    """
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if task:
        return f"{os.environ.get('SLURM_ARRAY_JOB_ID', '')}_{task}"
    return os.environ.get("SLURM_JOB_ID", "")


def _claimed(record: ServerRecord) -> ServerRecord:
    """Write the record under its name, and return it.

    Where another server has that name, it gets the name name-job. A job that starts again keeps the
    name and the key of its first start, so its clients stay connected.
    """
    names = (record.name, records.path_of(f"{record.name}-{record.job_id}").stem)
    for name in names:
        earlier = records.stored(name)
        if earlier and _same_job(earlier, record):
            record = replace(record, name=earlier.name, api_key=earlier.api_key)
            records.write(record)
            return record
    try:
        claims.claim(record).give_back()
    except WorkshopError:
        record = replace(record, name=names[1])
        claims.claim(record).give_back()
    return record


def _same_job(earlier: ServerRecord, record: ServerRecord) -> bool:
    """Return True if two records are of one job.

    Two clusters with one home may give the same number, and their keys must not be exchanged.
    """
    return (earlier.job_id, earlier.cluster) == (record.job_id, record.cluster)


def budget_s(model: str) -> float:
    """Return how long a start may take, in seconds.

    Bytes of the weights / the folder's speed, and an allowance for the rest.
    """
    speed = _positive(
        "WORKSHOP_LOAD_GB_PER_S", LOAD_GB_PER_S, "the speed of the model folder in GB/s"
    )
    allowance = _positive("WORKSHOP_START_ALLOWANCE_S", START_ALLOWANCE_S, "seconds")
    return start_budget_s(weight_bytes(Path(model)), speed, allowance)


def _positive(name: str, default: float, meaning: str) -> float:
    """Return the number in an environment variable.

    Raises WorkshopError: it is no number above 0.
    """
    value = os.environ.get(name) or default
    with suppress(ValueError):
        if 0 < float(value) < math.inf:
            return float(value)
    raise WorkshopError(f"{name} is {value!r}.", f"Give {meaning}, above 0.")


def watch(args: argparse.Namespace) -> None:
    """Return when the server has completed a prompt.

    Raises WorkshopError: that takes longer than the budget.
    """
    record = records.load(Path(args.record))
    budget = budget_s(args.model)
    began = time.monotonic()
    follower = Follower([Path(args.output), Path(args.error)], own=False)
    weights_gb = weight_bytes(Path(args.model)) / 1e9
    _say(f"a start may take {budget / 60:.0f} minutes ({weights_gb:.1f} GB of weights)")
    while not (slurm_queue.listens(record.url) and answers(record)):
        follower.read()
        if time.monotonic() - began > budget:
            stage = follower.reader.message
            problem = (
                f"{record.model} was not ready within its budget of {budget:.0f} s; "
                f"last seen: {stage}."
            )
            remedy = (
                "If loading was still going on, set WORKSHOP_LOAD_GB_PER_S in slurm/site.sh to "
                "the folder's real speed; where it hung, the stacks of all processes in the error "
                "file say where."
            )
            raise WorkshopError(problem, remedy)
        time.sleep(POLL_S)
    follower.read()
    record = replace(
        record, state="ready", reason="", vllm_version=follower.reader.log.version or ""
    )
    records.write(record)
    share.renew(record)
    where = f"{record.name} answers at {record.url} (node {record.host}, job {record.job_id})"
    _say(f"ready after {time.monotonic() - began:.0f} s: {where}")
    _say(f"in a notebook: workshop.connect({record.name!r}); stop it: workshop stop {record.name}")


def _say(text: str) -> None:
    print(f"[workshop] {text}", flush=True)


def end(args: argparse.Namespace) -> int:
    """Write down why the job ended.

    The record is removed if the job was meant to end, and gets the reason otherwise.

    A job that goes back into the queue keeps its record, as `starting`, and what was shared of it.
    The reason is printed for the job's files. Returns REQUEUE_CODE if the shell is to ask SLURM for
    the requeue; if SLURM refuses, the shell calls this again with `--refused` and SLURM's words.
    """
    record = None
    if args.record and Path(args.record).exists():
        record = records.load(Path(args.record))
    job = own_job()
    facts = slurm_queue.fields(args.facts)
    why, requeue = _again(args.cause, facts)
    remedy = ""
    if args.refused:
        requeue = False
        sentence = (
            f"SLURM did not put job {job} back into its queue ({why}): {_one_line(args.refused)}"
        )
        remedy = REFUSED_REMEDY
        _write_failed(record, sentence)
    elif why:
        sentence = slurm_queue.waits_again(job, why)
        _write_waiting(record, sentence)
    else:
        reasons = Path(os.environ.get("WORKSHOP_REASONS") or os.devnull)
        logs = [reasons, Path(args.error), Path(args.output)]
        sentence, remedy = reason(args.cause, args.code, logs, facts)
        was_meant = args.cause in ("cancelled", "done") and not sentence.startswith(PREEMPTED)
        if record and was_meant:
            records.remove(record.name)
        else:
            _write_failed(record, sentence)
    text = f"[workshop] ended: {sentence}"
    if remedy:
        text += f"\n[workshop] remedy: {remedy}"
    print(text, flush=True)
    return REQUEUE_CODE if requeue else 0


def _write_waiting(record: ServerRecord | None, why: str) -> None:
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


def _again(cause: str, job: dict[str, str]) -> tuple[str, bool]:
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
    """Return True if SLURM ends this job because its time is over.

    For that it sends the same signal as scancel.
    """
    end_time = os.environ.get("SLURM_JOB_END_TIME", "")
    if end_time.isdigit():
        return time.time() > int(end_time) - 5
    return job.get("Reason") == "TimeLimit"


def main() -> int:
    """Run one part; an error of ours is printed so that `end` finds it again."""
    parser = argparse.ArgumentParser(prog="workshop.servers.slurm.job")
    parser.add_argument("part", choices=("announce", "watch", "end"))
    for name in (
        "name",
        "model",
        "served",
        "log",
        "nodes",
        "record",
        "output",
        "error",
        "cause",
        "refused",
        "facts",
    ):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--code", type=int, default=0)
    args = parser.parse_args()
    try:
        return {"announce": announce, "watch": watch, "end": end}[args.part](args) or 0
    except WorkshopError as error:
        return refuse(error)


if __name__ == "__main__":
    sys.exit(main())

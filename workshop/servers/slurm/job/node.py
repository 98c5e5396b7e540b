"""One node's part of the engine of a SLURM job: check the node, start vLLM, end it, clean up.

`python -m workshop.servers.slurm.job.node vllm serve MODEL FLAGS…` runs once on every node, started by
slurm/node.sh in the site's environment; node 0 is the head, which alone opens the API. `node clean`
removes what an engine that was killed has left on this node.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from workshop import python_process
from workshop.engine import trace_writer
from workshop.errors import WorkshopError
from workshop.home import home
from workshop.servers.host import processes
from workshop.servers.local import scratch as server_scratch
from workshop.servers.slurm.job import job_file, preflight
from workshop.servers.slurm.job.job_file import REFUSED_CODE, JobFile, note_reason, refuse
from workshop.vllm_package import installed, is_cpu
from workshop.workarounds import eager_cpu_pipeline

END_S = 5.0  # a worker in the middle of a collective never looks up: then it is killed
ENDED_CODE = 70  # a headless vLLM exits with 0 when its worker dies
# workshop/guard/fairshare.py: guidance compiles forms of answers, and only where vLLM lets it
CLASS_LIMITS = "workshop.guard.fairshare.FairShare"
GUARD = "workshop.guard.auth.RequireKey"


class Told(Exception):
    """SLURM, or the job's end, has told this part to end."""


def own_folders() -> list[Path]:
    """Return this job's folders on this node's disk.

    A neighbour may have made a folder or a link of any name there: only what is this user's counts.
    """
    folder = _folder()
    folders: list[Path] = []
    for path in sorted(folder.parent.glob(f"{folder.name}*")):
        is_name = path.name == folder.name or path.name.startswith(f"{folder.name}.")
        is_folder = is_name and not path.is_symlink() and path.is_dir()
        if is_folder and path.stat().st_uid == os.geteuid():
            folders.append(path)
    return folders


def _folder() -> Path:
    name = f"workshop-{getpass.getuser()}-{os.environ['SLURM_JOB_ID']}"
    return Path(os.environ.get("WORKSHOP_SCRATCH") or "/tmp") / name


def make_scratch() -> Path:
    """Return a new folder on this node's disk, for this job alone.

    Raises:
        WorkshopError: the disk cannot be written.
    """
    folder = _folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            folder = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        for part in ("tmp", "shm"):
            (folder / part).mkdir()
    except OSError:
        problem = f"{socket.gethostname()} cannot write to {folder.parent}."
        remedy = (
            "Is its disk full? Else set WORKSHOP_SCRATCH in slurm/site.sh to another disk of the "
            "nodes."
        )
        raise WorkshopError(problem, remedy) from None
    return folder


def clean(folders: list[Path]) -> None:
    """Remove folders of this job with what they note: shared memory of its own, and nobody else's."""
    for folder in folders:
        if (folder / "shm").is_dir():
            server_scratch.clear(folder / "shm")
        shutil.rmtree(folder, ignore_errors=True)


def variables(folder: Path, job: JobFile, arguments: list[str]) -> dict[str, str]:
    """Return the environment variables of the engine.

    What vLLM compiles is kept for the next start in one folder of this user's, on a disk that all
    nodes see: vLLM names it by a hash of the model, the flags and its own version, and replaces
    files whole. It is code that runs, so it does not lie beside models that others may write. What
    Triton and torch compile outside of that stays on this node's disk.
    """
    chosen = {
        "VLLM_CACHE_ROOT": str(home() / "cache" / "vllm"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "HF_HUB_OFFLINE": "1",
        # vLLM itself gives up after 600 s, and 405B loads for longer; the job's own budget decides
        "VLLM_ENGINE_READY_TIMEOUT_S": "86400",
    }
    if job.trace:
        chosen[trace_writer.FILE_VARIABLE] = job.trace
    if CLASS_LIMITS in arguments:
        chosen["VLLM_ENFORCE_STRICT_TOOL_CALLING"] = "0"
    fixed = {
        "TMPDIR": str(folder / "tmp"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        server_scratch.VARIABLE: str(folder / "shm"),
        "WORKSHOP_RECORD": job.record,
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    own = {name: value for name, value in chosen.items() if not os.environ.get(name)}
    return {**own, **fixed}


def serve_arguments(arguments: list[str], job: JobFile, rank: int) -> list[str]:
    """Return the arguments of `vllm serve` on one node.

    Args:
        arguments: the script's: the model and its flags.
        job: what the head decided.
        rank: the node's number; 0 is the head, which alone opens the API.
    """
    complete = [*arguments, "--served-model-name", job.served]
    if rank == 0:  # the guard comes last, and so stands in front of all others
        complete += ["--host", job.api_host, "--port", str(job.api_port), "--middleware", GUARD]
    if job.nodes > 1:
        complete += ["--nnodes", str(job.nodes), "--node-rank", str(rank)]
        complete += ["--master-addr", job.head_address, "--master-port", str(job.master_port)]
        if rank != 0:
            complete.append("--headless")
    return complete


def for_cpu(arguments: list[str], stages: int) -> list[str]:
    """Return the arguments as the CPU build of vLLM can take them: see `eager_cpu_pipeline`."""
    if stages == 1 or "--enforce-eager" not in arguments or not is_cpu(*installed()):
        return arguments
    changed = [word for word in arguments if word != "--enforce-eager"]
    for name, value in eager_cpu_pipeline.flags(stages).items():
        changed += [f"--{name}", value]
    return changed


def interfaces(node: preflight.Node, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that name this node's network for vLLM, Gloo and NCCL."""
    return {
        "VLLM_HOST_IP": node.address,
        "GLOO_SOCKET_IFNAME": node.interface,
        "NCCL_SOCKET_IFNAME": env.get("NCCL_SOCKET_IFNAME") or node.interface,
    }


def run(arguments: list[str], rank: int) -> int:
    """Check this node, and run vLLM until it ends; return the exit code of this part.

    Raises:
        WorkshopError: the node, or another one, has not what the plan needs.
        Told: this part was told to end; vLLM has ended.
    """
    job = job_file.read()
    folder = make_scratch()
    try:
        os.environ |= variables(folder, job, arguments)
        # Every node tells the head what it has; the head refuses for all of them what was not
        # planned. Seconds, not minutes.
        node = preflight.check(arguments[0], job)
        if node is None:
            return REFUSED_CODE
        arguments = for_cpu(arguments, job.pipeline_parallel_size)
        os.environ |= interfaces(node, os.environ)
        command = python_process.command(
            "workshop.servers.vllm_main", "serve", *serve_arguments(arguments, job, rank)
        )
        return _supervised(subprocess.Popen(command, start_new_session=True), rank)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        clean([folder])


def _supervised(engine: subprocess.Popen[bytes], rank: int) -> int:
    """Wait for vLLM; return the exit code with which this node's part ends."""
    leader, start = engine.pid, processes.started(engine.pid)

    def ask_for_stacks(*_: object) -> None:
        for pid, born in [(leader, start), *processes.session(leader, start)]:
            with suppress(PermissionError):
                processes.send(pid, born, signal.SIGUSR2)

    # With proctrack/cgroup SLURM signals the step's first process alone: it is passed on.
    signal.signal(signal.SIGUSR2, ask_for_stacks)
    try:
        # The leader stays as a zombie until the last line: its number names the session.
        os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)
    except Told:
        engine.terminate()
        processes.ended(leader, start, END_S)
        raise
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        processes.end_session(leader, start)
    code = engine.wait()
    if code < 0:
        code = 128 - code
    ended = f"{socket.gethostname()}, node {rank}: vLLM ended by itself with exit code {code}"
    note_reason(f"[workshop] {ended}\n")
    return code or ENDED_CODE


def _told(*_: object) -> None:
    raise Told


def main() -> int:
    """Run this node's part, or clean up."""
    os.umask(0o077)
    if sys.argv[1] == "clean":
        clean(own_folders())
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _told)
    try:
        return run(sys.argv[3:], int(os.environ["SLURM_NODEID"]))
    except Told:
        return 0
    except WorkshopError as error:
        return refuse(error)


if __name__ == "__main__":
    sys.exit(main())

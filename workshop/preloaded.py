"""One process that has imported vLLM, from which further processes are forked in about a second.

`workshop lab` starts it and ends it. A server on the CPU, the simulator and `--exact` are then forked from it, where
they would import vLLM anew otherwise, for 12 to 20 seconds. It serves this user alone, holds no key, and
forks nothing for which an import could have come out differently: `Preloaded.fits` compares versions, our own files and
the environment variables that imports read. Whoever finds no such process, or one that does not fit, starts Python as
usual.

What is forked runs a module as `python -m` does: with its own session, arguments, environment, folder, umask, affinity
and signals. It outlives this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import site
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workshop import python_process
from workshop.home import home
from workshop.vllm_package import installed

# Beginnings of the names of variables that Python, torch, vLLM and what they import read while they are imported.
READ_BY_IMPORTS = (
    "CUDA_",
    "GOMP_",
    "HF_",
    "HOME",
    "HUGGINGFACE_",
    "KMP_",
    "LANG",
    "LC_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PROMETHEUS_",
    "PYTHON",
    "PYTORCH_",
    "TOKENIZERS_",
    "TORCH",
    "TRANSFORMERS_",
    "VLLM_",
    "XDG_CACHE_HOME",
)
# Of these, the ones that are read again whenever they are needed.
READ_LATER = (
    "HF_TOKEN",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_DIST_IDENT",
    "VLLM_KIMI_K3_GEMM_AR",
    "VLLM_LOGGING_LEVEL",  # a forked process sets its loggers up anew
    "VLLM_RPC_BASE_PATH",
)
# What else the preloaded process gets of its user's environment: no keys and no tokens.
PATH_VARIABLE = "WORKSHOP_PRELOADED"
PASSED_ON = ("LOGNAME", "PATH", "TMPDIR", "TZ", "USER", "WORKSHOP_HOME", PATH_VARIABLE)
IMPORTED_WITHIN_S = 180.0  # the wait of somebody who asks while vLLM is being imported
ANSWER_S = 5.0
EXIT_CODE_S = 2.0  # from the end of a process to its exit code
UNKNOWN_CODE = 255  # the exit code of a process that ended after the preloaded one
MOST_DESCRIPTORS = 4  # of a message: three streams, and what ends the process with its parent
MOST_BYTES = 1 << 20  # of a message, which arrives whole; Linux sends some 200,000 at most


@dataclass(frozen=True)
class Preloaded:
    """The address of the preloaded process, and all that its imports depended on."""

    address: str  # in Linux' abstract namespace: it leaves no file behind
    pid: int
    code: str
    variables: dict[str, str]
    defaults: list[str]  # names of `variables` that its starter chose, and not the user
    set_by_imports: dict[str, str]  # by vLLM; whoever has imported it has them, too

    def fits(self, environment: Mapping[str, str], *, is_server: bool) -> bool:
        """Return True if a process with this environment would have imported the same.

        Args:
            is_server: for a server each variable counts. A worker does not compute, so that it may lack what the
                starter chose for servers: the number of threads and the library that is preloaded for them.
        """
        if self.code != code_version():
            return False
        variables = read_by_imports(environment)
        for name in variables.keys() | self.variables.keys():
            if not is_server and name in self.defaults and name not in variables:
                continue
            before = self.variables.get(name)
            if variables.get(name) not in (before, self.set_by_imports.get(name, before)):
                return False
        return True


class ForkedProcess:
    """A process that was forked for us, with the methods of `subprocess.Popen` that this package uses."""

    def __init__(self, pid: int, handle: int, connection: socket.socket, tie: int | None) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._handle = handle  # a pidfd: readable when the process has ended
        self._connection = connection  # brings the exit code
        self._tie = tie  # kept open: the process is told to end when it closes

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code: UNKNOWN_CODE if the preloaded process ended before.

        Raises subprocess.TimeoutExpired: it takes longer than `timeout` seconds.
        """
        if self.returncode is not None:
            return self.returncode
        if not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.returncode = UNKNOWN_CODE
        with contextlib.suppress(OSError, ValueError):
            self._connection.settimeout(EXIT_CODE_S)
            self.returncode = int(receive(self._connection)["exit_code"])
        self._connection.close()
        os.close(self._handle)
        if self._tie is not None:
            os.close(self._tie)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def read_by_imports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change what an import makes."""
    ignored = READ_LATER
    if sys.prefix != sys.base_prefix and [sys.prefix] == site.PREFIXES:
        ignored += ("PYTHONNOUSERSITE",)  # such an environment never looks into ~/.local
    variables = {}
    for name, value in environment.items():
        if name.startswith(READ_BY_IMPORTS) and name not in ignored:
            variables[name] = value
    return variables


def start(environment: Mapping[str, str], log: int) -> subprocess.Popen | None:
    """Start the preloaded process of this user and this Python; return None where there is one, or can be none.

    It ends when this process closes its standard input or ends, however that happens.

    Args:
        environment: that of a server on the CPU.
        log: the descriptor of the file for what it prints.
    """
    if not hasattr(os, "pidfd_open") or find() is not None:
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # Linux before 5.3
        return None
    own = {name: environment[name] for name in PASSED_ON if name in environment}
    own |= read_by_imports(environment)
    defaults = sorted(name for name in read_by_imports(environment) if name not in os.environ)
    return subprocess.Popen(
        python_process.command("workshop.preloaded_process", json.dumps(defaults)),
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=own,
        cwd=python_process.NEUTRAL_FOLDER,
        start_new_session=True,
    )


def stop(process: subprocess.Popen) -> None:
    """End the preloaded process; what was forked from it goes on."""
    process.terminate()
    process.wait()
    if process.stdin:
        process.stdin.close()
    forget(record_path(), process.pid)


def forget(path: Path, pid: int) -> None:
    """Remove the record of the preloaded process `pid`, unless it is another one's by now."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        if json.loads(path.read_bytes())["pid"] == pid:
            path.unlink()


def find() -> Preloaded | None:
    """Return the preloaded process of this user, this Python and this machine, or None."""
    preloaded = read_record()
    if preloaded is not None:
        with contextlib.suppress(OSError), _connect(preloaded.address):
            return preloaded
    return None


def read_record() -> Preloaded | None:
    """Return what the preloaded process has written down; it may have ended since."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Preloaded(**json.loads(record_path().read_bytes()))
    return None


def spawn(
    module: str,
    arguments: list[str],
    environment: Mapping[str, str],
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    folder: str = python_process.NEUTRAL_FOLDER,
    umask: int | None = None,
    is_server: bool = False,
    with_parent: bool = False,
) -> ForkedProcess | None:
    """Run `python -m module arguments` in a process that is forked; return None where it has to be started as usual.

    Args:
        environment: its whole environment.
        stdin, stdout, stderr: descriptors.
        folder: its current folder.
        umask: its umask; by default this process's.
        is_server: see `Preloaded.fits`.
        with_parent: it is told to end (SIGTERM) when this process ends, however that happens.
    """
    preloaded = read_record()
    if preloaded is None or not preloaded.fits(environment, is_server=is_server):
        return None
    if umask is None:
        umask = os.umask(0o077)
        os.umask(umask)
    request = {
        "argv": [module, *arguments],
        "environment": dict(environment),
        "folder": folder,
        "umask": umask,
        "affinity": sorted(os.sched_getaffinity(0)),
    }
    descriptors = [stdin, stdout, stderr]
    tie = None
    if with_parent:
        end_of_child, tie = os.pipe()
        descriptors.append(end_of_child)
    process = None
    try:
        connection = _connect(preloaded.address)
        process = _ask(connection, request, descriptors, tie)
    except (OSError, ValueError, LookupError):  # it has ended, or was not able to fork
        pass
    finally:
        if with_parent:
            os.close(end_of_child)
        if tie is not None and process is None:
            os.close(tie)
    return process


def _ask(
    connection: socket.socket, request: dict, descriptors: list[int], tie: int | None
) -> ForkedProcess:
    """Send a request with its descriptors; return the process that was forked."""
    try:
        send(connection, request, *descriptors)
        connection.settimeout(IMPORTED_WITHIN_S)
        handles: list[int] = []
        pid = receive(connection, handles)["pid"]
        return ForkedProcess(pid, handles[0], connection, tie)
    except BaseException:
        connection.close()
        raise


def _connect(address: str) -> socket.socket:
    """Return a connection to the preloaded process. Raises OSError: there is none, or it is another user's."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(ANSWER_S)
        connection.connect(f"\0{address}")
        if user_of(connection) != os.geteuid():
            raise PermissionError(address)
    except BaseException:
        connection.close()
        raise
    return connection


def user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return struct.unpack("3i", credentials)[1]


def send(connection: socket.socket, message: dict, *descriptors: int) -> None:
    """Send a message, and descriptors with it. Raises OSError: the other end has gone."""
    socket.send_fds(connection, [json.dumps(message).encode()], descriptors)


def receive(connection: socket.socket, descriptors: list[int] | None = None) -> dict:
    """Return the next message, and add the descriptors that came with it. Raises OSError or ValueError: there is none."""
    text, came, _, _ = socket.recv_fds(connection, MOST_BYTES, MOST_DESCRIPTORS)
    if descriptors is not None:
        descriptors += came
    if not text:  # also somebody who only looked whether we are there
        raise ConnectionResetError("the other end has closed the connection")
    return json.loads(text)


def record_path() -> Path:
    """Return the file that says where the preloaded process of this Python listens.

    WORKSHOP_PRELOADED names another one, for all homes: the tests have a home each.
    """
    path = os.environ.get(PATH_VARIABLE)
    if path:
        return Path(path)
    name = sys.prefix.strip(os.sep).replace(os.sep, "-")[-100:]
    return home() / "run" / f"preloaded-{socket.gethostname()}-{name}.json"


def code_version() -> str:
    """Return a text that changes with Python, vLLM and this package's own files."""
    newest = 0
    for folder, _, files in os.walk(python_process.PACKAGE):
        for file in files:
            if file.endswith(".py"):
                newest = max(newest, os.stat(os.path.join(folder, file)).st_mtime_ns)
    return f"{python_process.PYTHON} {sys.version} {installed()} {newest}"

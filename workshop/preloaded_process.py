"""The preloaded process itself: it imports vLLM, and forks what `preloaded.spawn` asks for."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import secrets
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from workshop import python_process
from workshop.files import replacement
from workshop.preloaded import (
    ANSWER_S,
    Preloaded,
    code_version,
    forget,
    read_by_imports,
    read_record,
    receive,
    record_path,
    send,
    user_of,
)

IMPORTED_BY_WORKERS = (
    "vllm.benchmarks.serve",
    "vllm.v1.core.sched.scheduler",
    "workshop.servers.cpu_worker",
    "workshop.servers.vllm_main",
)


class _Server:
    """The preloaded process: it imports vLLM, forks on request, and tells exit codes."""

    def __init__(self, defaults: list[str]) -> None:
        self._requests: dict[int, socket.socket] = {}  # of running processes, by their pid
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        address = f"workshop-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"\0{address}")
        self._listener.listen(64)
        variables = read_by_imports(os.environ)
        self._record = Preloaded(address, os.getpid(), code_version(), variables, defaults, {})
        self._path = record_path()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write()

    def _write(self) -> None:
        """Write the record."""
        with replacement(self._path, private=True, sync=False) as file:
            file.write(json.dumps(asdict(self._record)).encode())

    def note_imports(self) -> None:
        """Note which variables the imports have set, unless the record has gone or is another's by now."""
        before = self._record.variables
        changed = dict(read_by_imports(os.environ).items() - before.items())
        if changed and read_record() == self._record:
            self._record = replace(self._record, set_by_imports=changed)
            self._write()

    def run(self) -> dict | None:
        """Fork until standard input ends; return None then, and in each fork what it shall run."""
        try:
            while True:
                ready, _, _ = select.select([0, self._listener, self._wake_reader], [], [])
                if self._wake_reader in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                    self._tell_exit_codes()
                if 0 in ready:
                    forget(self._path, os.getpid())
                    return None
                if self._listener in ready:
                    request = self._answer()
                    if request is not None:
                        return request
        except KeyboardInterrupt:  # it is ended by its starter alone
            return None

    def _tell_exit_codes(self) -> None:
        """Tell those who asked for them which processes have ended, and how."""
        while self._requests:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            connection = self._requests.pop(pid, None)
            if connection is not None:
                with contextlib.suppress(OSError), connection:
                    send(connection, {"exit_code": os.waitstatus_to_exitcode(status)})

    def _answer(self) -> dict | None:
        """Answer one connection by a fork; return the request in the new process, and None in this one."""
        connection, _ = self._listener.accept()
        descriptors: list[int] = []
        request: dict = {}
        try:
            connection.settimeout(ANSWER_S)
            if user_of(connection) != os.geteuid():
                raise PermissionError("another user")
            request = receive(connection, descriptors)
            pid = os.fork()
            if pid:
                self._requests[pid] = connection
                handle = os.pidfd_open(pid)  # here it is not reaped yet, however soon it ends
                try:
                    send(connection, {"pid": pid}, handle)
                finally:
                    os.close(handle)
        except (OSError, ValueError):
            if connection not in self._requests.values():
                connection.close()
            pid = None
        if pid == 0:
            self._become(request, connection, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        return request if pid == 0 else None

    def _become(self, request: dict, connection: socket.socket, descriptors: list[int]) -> None:
        """Be a process of its own: as if Python had just been started for the request."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for listening in (self._listener, connection, *self._requests.values()):
            listening.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        for number, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, number)
        if len(descriptors) > 3:
            _end_with(os.dup(descriptors[3]))
        os.environ.clear()
        os.environ.update(request["environment"])
        os.umask(request["umask"])
        os.sched_setaffinity(0, request["affinity"])
        os.chdir(request["folder"])


def _end_with(tie: int) -> None:
    """Let Linux send SIGTERM to this process when the other end of a pipe closes."""
    import fcntl  # not there on Windows, where nothing is forked

    fcntl.fcntl(tie, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(tie, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(tie, fcntl.F_SETFL, fcntl.fcntl(tie, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([tie], [], [], 0)[0]:  # it has closed already
        os.kill(os.getpid(), signal.SIGTERM)


def _import_all() -> None:
    """Import vLLM as its servers, the simulator and `--exact` need it."""
    from workshop.workarounds import cpu_package_name, one_import

    began = time.monotonic()
    cpu_package_name.apply()
    one_import.import_vllm()
    for module in IMPORTED_BY_WORKERS:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all pages
    print(f"[workshop] vLLM is imported after {time.monotonic() - began:.1f} s", flush=True)


def _set_title(title: str) -> None:
    """Say in `ps` what this process is, where vLLM's own module for that is there."""
    with contextlib.suppress(ImportError):
        import setproctitle

        setproctitle.setproctitle(title)


def serve(defaults: list[str], import_all: Callable[[], None]) -> None:
    """Be the preloaded process; or, in each process that is forked from it, run what was asked for."""
    _set_title("workshop lab: vLLM is imported here")  # a first time before the environment changes
    server = _Server(defaults)
    import_all()
    server.note_imports()
    request = server.run()
    if request is None:
        return
    tempfile.tempdir = None
    module, *arguments = request["argv"]
    sys.argv = [module, *arguments]
    _set_title(" ".join(python_process.command(module, *arguments)))
    if "vllm.logger" in sys.modules:
        sys.modules["vllm.logger"]._configure_vllm_root_logger()
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]), _import_all)

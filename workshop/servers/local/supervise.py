"""The life of one engine: start it, watch it, record it, and end it with everything it started.

`run` is what `workshop serve` does in the foreground; `start` does the same in a process of its own
and returns when the server answers. If the watcher dies, the engine is told to end by the kernel;
if the engine dies, the watcher writes down why and ends what is left of it.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from workshop import preloaded, python_process
from workshop.engine.reconcile.keeping import keep_start
from workshop.errors import WorkshopError
from workshop.home import new_log, private_folder
from workshop.servers import records
from workshop.servers.follow import Follower
from workshop.servers.host import processes
from workshop.servers.local import READY_TIMEOUT_S, Launch, claims, scratch
from workshop.servers.local.answering import answers
from workshop.servers.local.stopping import STOP_GRACE_S, end
from workshop.servers.local.stopping import stop as stop
from workshop.servers.progress import TaskProgress
from workshop.servers.records import ServerRecord
from workshop.vllm_package import installed

POLL_S = 0.1
FOLLOWED_S = 600.0  # the wait for a start of somebody else's
WORDS = ".watcher.log"  # beside the engine's log: what the watcher itself says
Report = Callable[[TaskProgress], None]


class Stopped(BaseException):
    """A signal asked the watcher to end."""


def run(
    launch: Launch,
    report: Report = lambda progress: None,
    on_ready: Callable[[ServerRecord], None] = lambda record: None,
    record: ServerRecord | None = None,
) -> None:
    """Start the engine, report its progress, call `on_ready` when it answers, wait for its end.

    Args:
        record: the record to write, with the server's key; None makes a new one.

    Raises:
        WorkshopError: it did not start, or ended by itself: the record keeps the reason.
    """
    try:
        claim = claims.claim(record or new_record(launch))
    except WorkshopError:
        launch.let_go()
        raise
    process = None
    is_intended = False
    with stop_signals():
        try:
            env = launch.env | scratch.environment(scratch.make(launch.name))
            process = _spawn_engine(launch, env)
            record = claim.write(pid=process.pid, process_started=processes.started(process.pid))
            watch = _Watch(launch, report, process)
            watch.until_ready(record)
            launch.let_go()
            on_ready(claim.write(state="ready", vllm_version=installed()[1]))
            keep_start(watch.follower.reader.log)
            watch.until_end()
        except WorkshopError as error:
            # the disk may be full: then the first error counts
            with contextlib.suppress(WorkshopError):
                claim.write(state="failed", reason=error.message.rstrip("."))
            raise
        except BaseException as error:
            is_intended = True
            if not isinstance(error, Stopped):
                raise
        finally:
            end(process, claim.record)
            launch.let_go()
            scratch.remove(launch.name)
            if is_intended:
                claim.forget()
            claim.give_back()


def _spawn_engine(launch: Launch, env: dict[str, str]) -> processes.Child:
    """Start the engine's first process; it is told to end when this process ends."""
    with new_log(launch.log.name) as log:
        if launch.can_be_forked:
            module, *arguments = launch.argv[launch.argv.index("-m") + 1 :]
            output = log.fileno()
            with open(os.devnull, "rb") as nothing:
                process = preloaded.spawn(
                    module,
                    arguments,
                    env,
                    stdin=nothing.fileno(),
                    stdout=output,
                    stderr=output,
                    folder=os.getcwd(),
                    umask=0o077,
                    is_server=True,
                    with_parent=True,
                )
            if process is not None:
                return process
        return processes.spawn(launch.argv, log, env=env, umask=0o077)


def new_record(launch: Launch) -> ServerRecord:
    """Return the record of a server that is about to start, with a new key."""
    return records.new(
        name=launch.name,
        url=launch.url,
        model=launch.served,
        log=str(launch.log),
        trace=launch.trace,
    )


def stop_signals() -> contextlib.AbstractContextManager:
    """Turn the signals that end a session into Stopped, once.

    A second Ctrl-C must not leave half of it running.
    """

    def stop() -> NoReturn:
        raise Stopped

    return processes.on_signals(
        (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop, signal.SIG_IGN
    )


class _Watch:
    """Waits until an engine answers, and for its end; its log says how far it is, and why it ends."""

    def __init__(self, launch: Launch, report: Report, process: processes.Child):
        self.launch = launch
        self.report = report
        self.process = process
        self.follower = Follower([launch.log])

    def until_ready(self, record: ServerRecord) -> None:
        """Return when the server answers a completion with its model.

        Raises WorkshopError: it is not ready within READY_TIMEOUT_S, or it ends.
        """
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (self.follower.reader.stage == "ready" and answers(record)):
            self.follower.read()
            self.report(self.follower.progress)
            self.refuse_ended()
            if time.monotonic() > deadline:
                remedy = f"Its own words are in {self.launch.log}."
                raise WorkshopError(
                    f"{record.model} was not ready after {READY_TIMEOUT_S:.0f} s.", remedy
                )
            time.sleep(POLL_S)
        self.report(TaskProgress(1.0, "ready"))

    def until_end(self) -> NoReturn:
        """Wait for the engine's end; raise Stopped if it was asked for, else with the reason."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
            self.follower.read()
            self.refuse_ended()

    def refuse_ended(self) -> None:
        """Return if the engine runs; raise Stopped if it was asked to end, else with the reason."""
        code = self.process.poll()
        if code is None:
            return
        if records.path_of(self.launch.name, ".stop").exists():
            raise Stopped
        self.follower.read()
        failure = self.follower.reader.error
        if failure:
            raise WorkshopError(f"vLLM ended: {failure.what.rstrip('.')}.", failure.remedy)
        how = f"exit code {code}"
        if code == preloaded.UNKNOWN_CODE:
            how = "nobody was told its exit code"
        if code < 0:
            how = f"killed by signal {-code}"
        hint = ""
        if code == -signal.SIGKILL:
            hint = " Signal 9 without a word is what a system out of memory sends."
        raise WorkshopError(
            f"vLLM ended by itself ({how}).", f"Its last words are in {self.launch.log}.{hint}"
        )


@dataclass
class LocalStart:
    """A server that is being started in processes of its own."""

    launch: Launch
    record: ServerRecord
    watcher: subprocess.Popen

    def wait(self, report: Report = lambda progress: None) -> ServerRecord:
        """Return the server's record when it answers; end the start if this is interrupted."""
        try:
            return _wait_for(self.launch, self.record, self.watcher, report)
        except BaseException:
            if self.watcher.poll() is None:
                self.watcher.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.watcher.wait(STOP_GRACE_S + 10)
            raise


def start(launch: Launch, report: Report = lambda progress: None) -> ServerRecord:
    """Start a server as `begin` does; return its record when it answers."""
    return begin(launch).wait(report)


def begin(launch: Launch, *, with_parent: bool = False) -> LocalStart:
    """Begin to start a server in processes of its own.

    It outlives this process, or, with_parent, ends with it however it ends (call it from the main
    thread then: for Linux the thread that starts a process is its parent).
    """
    private_folder("servers")
    try:
        claims.refuse_taken(launch.name)
        record = new_record(launch)
        watcher = _watcher(launch, record, with_parent)
    finally:
        launch.let_go()
    return LocalStart(launch, record, watcher)


def follow(
    name: str,
    report: Report = lambda progress: None,
    *,
    look: Callable[[str], ServerRecord | None] = records.read,
) -> ServerRecord | None:
    """Wait for a server that somebody else starts; return its record once settled (None: stopped).

    Args:
        look: returns the server's record as it is now.

    Raises:
        WorkshopError: it was not ready in time.
    """
    deadline = time.monotonic() + FOLLOWED_S
    follower = None
    while True:
        record = look(name)
        if record is None or record.state != "starting":
            return record
        progress = TaskProgress(0.0, "importing vLLM")
        if record.pid:
            follower = follower or Follower([Path(record.log)])
            follower.read()
            progress = follower.progress
        report(progress)
        if time.monotonic() > deadline:
            raise WorkshopError(
                f"The server {name!r} was not ready after {FOLLOWED_S:.0f} s.",
                f"Its own words are in {record.log}.",
            )
        time.sleep(POLL_S)


def _watcher(launch: Launch, record: ServerRecord, with_parent: bool) -> subprocess.Popen:
    """Start the watcher, which takes the name and inherits the port."""
    descriptors: list[int] = []
    if launch.port_claim:
        descriptors.append(launch.port_claim.fileno())
    watcher = processes.spawn(
        python_process.command("workshop.servers.local.supervise"),
        new_log(launch.log.with_suffix(WORDS).name),
        with_parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=python_process.environment(),
    )
    assert watcher.stdin is not None  # a pipe, as asked for
    with contextlib.suppress(BrokenPipeError), watcher.stdin:  # it ended already: its words say why
        task = (replace(launch, port_claim=None), record, *descriptors)
        watcher.stdin.write(pickle.dumps(task))
    return watcher


def _wait_for(
    launch: Launch, own_record: ServerRecord, watcher: subprocess.Popen, report: Report
) -> ServerRecord:
    follower = Follower([launch.log])
    while True:
        ended = watcher.poll() is not None
        record = records.stored(launch.name)
        # the watcher has ended, and another server has the name
        if record and record.api_key != own_record.api_key:
            record = None
        if record and record.pid:
            follower.read()
            report(follower.progress)
        if record and record.state == "ready" and not ended:
            report(TaskProgress(1.0, "ready"))
            return record
        if ended:
            raise _last_words(launch, watcher, record)
        time.sleep(POLL_S)


def _last_words(
    launch: Launch, watcher: subprocess.Popen, record: ServerRecord | None
) -> WorkshopError:
    if watcher.returncode == 0:
        return WorkshopError(f"{launch.name} was stopped before it answered.")
    lines = launch.log.with_suffix(WORDS).read_text(errors="replace").strip().splitlines()
    if lines:
        return WorkshopError(*lines[-1].partition("\t")[::2])
    why = "its watcher ended without a word"
    if record and record.reason:
        why = record.reason
    return WorkshopError(
        f"{launch.name} did not start: {why}.",
        f"Is there space on the disk of {launch.log.parent}?",
    )


def _main() -> int:
    """Be the watcher of a server in the background.

    Standard input has a launch, a record, and the descriptor of the port, if any.
    """
    launch, record, *port = pickle.load(sys.stdin.buffer)
    if port:
        launch = replace(launch, port_claim=socket.socket(fileno=port[0]))
    try:
        run(launch, record=record)
    except WorkshopError as error:
        print(f"{error.message}\t{error.remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())

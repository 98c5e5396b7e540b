"""The life of one engine: started, watched until it answers, recorded, and ended with everything it started.

`run` is what `workshop serve` does in the foreground; `start` does the same in a process of its own and returns
when the server answers. If the watcher dies, the engine is told to end by the kernel; if the engine dies, the
watcher writes down why and ends what is left of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from workshop.engine.log import Reader
from workshop.errors import WorkshopError
from workshop.launch import records, scratch
from workshop.launch.home import cannot_write, private_folder
from workshop.launch.local import Launch
from workshop.launch.progress import Progress
from workshop.launch.records import ServerRecord
from workshop.launch.vllm_main import end_session, installed

POLL_S = 0.1
STOP_GRACE_S = 20.0       # then what is left is killed
REFUSALS = (400, 404, 422, 501)  # HTTP: waiting does not change these
READY_TIMEOUT_S = 3600.0  # of one local start; a download from the Hub is part of it
CLEAN_EXITS = (0, -signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGTERM, 128 + signal.SIGINT)
Report = Callable[[Progress], None]


class Stopped(BaseException):
    """A signal asked the watcher to end."""


def run(launch: Launch, report: Report = lambda progress: None,
        on_ready: Callable[[ServerRecord], None] = lambda record: None) -> None:
    """Start the engine, report its progress, call `on_ready` when it answers, return when it was stopped.

    Raises:
        WorkshopError: it did not start, or it ended by itself; the record keeps the reason.
    """
    record = _new_record(launch)
    records.write(record)
    with stop_signals():
        process = None
        try:
            process = _spawn(launch, scratch.make(launch.name))
            record = replace(record, pid=process.pid)
            records.write(record)
            watch = _Watch(launch, process)
            watch.until_ready(record, report)
            record = replace(record, state="ready", vllm_version=installed()[1])
            records.write(record)
            on_ready(record)
            watch.until_end()
            records.remove(launch.name)
        except Stopped:
            end(process)
            records.remove(launch.name)
        except WorkshopError as error:
            records.write(replace(record, state="failed", reason=error.message.rstrip(".")))
            raise
        except BaseException:
            records.remove(launch.name)
            raise
        finally:
            end(process)
            scratch.remove(launch.name)


def _new_record(launch: Launch) -> ServerRecord:
    return ServerRecord(name=launch.name, url=launch.url, model=launch.served, api_key=secrets.token_urlsafe(32),
                        where="local", host=socket.gethostname(), boot_id=records.boot_id(), log=str(launch.log),
                        state="starting", started=records.now())


@contextlib.contextmanager
def stop_signals():
    """Turn the signals that end a session into Stopped, once: a second Ctrl-C must not leave half of it running."""
    def stop(number, frame):
        for again in previous:
            signal.signal(again, signal.SIG_IGN)
        raise Stopped
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in previous:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _spawn(launch: Launch, folder: Path) -> subprocess.Popen:
    """Start the engine as the leader of a session of its own, its words going to the log, its sockets to `folder`."""
    private_folder("logs")
    try:
        log = os.open(launch.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise cannot_write(launch.log, error) from None
    try:
        return subprocess.Popen(launch.argv, env=launch.env | scratch.environment(folder), stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, umask=0o077, start_new_session=True,
                                preexec_fn=end_with_parent)
    finally:
        os.close(log)


def end_with_parent() -> None:
    """In a new process, before its program: ask Linux for a SIGTERM when the parent dies, by kill -9 too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)   # PR_SET_PDEATHSIG


class _Watch:
    """Reads the log as it grows, and knows whether the engine lives and answers."""

    def __init__(self, launch: Launch, process: subprocess.Popen):
        self.launch, self.process, self.reader = launch, process, Reader()
        self._log = launch.log.open(encoding="utf-8", errors="replace", newline="")

    def until_ready(self, record: ServerRecord, report: Report) -> None:
        """Return when the server answers a completion with its model."""
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (self.reader.stage == "ready" and answers(record)):
            self._read()
            report(Progress(self.reader.fraction, self.reader.message))
            self._alive()
            if time.monotonic() > deadline:
                raise WorkshopError(f"{record.model} was not ready after {READY_TIMEOUT_S:.0f} s.",
                                    f"Its own words are in {self.launch.log}.")
            time.sleep(POLL_S)
        report(Progress(1.0, "ready"))

    def until_end(self) -> None:
        """Return when the engine was stopped; raise with the reason if it ended by itself."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
            self._read()
            self._alive(stopped_is_fine=True)
            if self.process.returncode is not None:
                return

    def _read(self) -> None:
        while chunk := self._log.read(65536):
            self.reader.feed(chunk)

    def _alive(self, stopped_is_fine: bool = False) -> None:
        code = self.process.poll()
        failure = self.reader.error
        asked = stopped_is_fine and code in CLEAN_EXITS and scratch.asked_to_stop(self.launch.name)
        if code is None or (asked and failure is None):
            return
        self._read()
        failure = self.reader.error
        if failure is not None:
            raise WorkshopError(f"vLLM ended: {failure.what.rstrip('.')}.", failure.remedy)
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        hint = " Signal 9 without a word is what a system out of memory sends." if code == -signal.SIGKILL else ""
        raise WorkshopError(f"vLLM ended by itself ({how}).", f"Its last words are in {self.launch.log}.{hint}")


def answers(record: ServerRecord) -> bool:
    """Return whether the server completes a prompt of one token with the model that it should.

    Raises:
        WorkshopError: it is there and refuses: it knows no such model, or this one does not complete text.
    """
    body = json.dumps({"model": record.model, "prompt": "The", "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{record.url}/completions", data=body, headers={
        "Authorization": f"Bearer {record.api_key}", "Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))   # never through a site's web proxy
    try:
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["model"] == record.model
    except urllib.error.HTTPError as error:
        if error.code not in REFUSALS:
            return False
        raise _refused(record, error) from None
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return False


def _refused(record: ServerRecord, error: urllib.error.HTTPError) -> WorkshopError:
    said = ""
    with contextlib.suppress(OSError, http.client.HTTPException):
        said = error.read(2000).decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        body = json.loads(said)
        said = body.get("detail") or body["error"]["message"] or ""
    said = (str(said).strip().splitlines() or ["no word"])[0][:160].rstrip(".")
    remedy = ("Another server took this port: `workshop servers` lists yours." if "does not exist" in said else
              "Serve a model that generates text, with its tokenizer; an embedding model does not.")
    return WorkshopError(f"The server is up, but refuses to complete a prompt with {record.model} ({error.code}): "
                         f"{said}.", remedy)


def end(process: subprocess.Popen | None) -> None:
    """End an engine with all that it started: politely, then not."""
    if process is None:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE_S)
    end_session(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def start(launch: Launch, report: Report = lambda progress: None, *, with_parent: bool = False) -> ServerRecord:
    """Start a server in processes of its own; return its record when it answers.

    It outlives this process, or, with_parent, ends with it however it ends (call it from the main thread then:
    for Linux the thread that starts a process is its parent).

    Raises:
        WorkshopError: it did not become ready; the reason is also in its record.
    """
    private_folder("logs")
    words = launch.log.with_suffix(".watcher.log")
    command = [sys.executable, "-m", "workshop.launch.supervise"]
    with words.open("wb") as errors:
        watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
                                   start_new_session=True, preexec_fn=end_with_parent if with_parent else None)
    spec = {**vars(launch), "log": str(launch.log)}
    watcher.stdin.write(json.dumps(spec).encode())
    watcher.stdin.close()
    try:
        return _wait_for(launch, watcher, words, report)
    except BaseException:
        if watcher.poll() is None:
            watcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                watcher.wait(STOP_GRACE_S + 10)
        raise


def _wait_for(launch: Launch, watcher: subprocess.Popen, words: Path, report: Report) -> ServerRecord:
    reader, log = Reader(), None
    while True:
        ended = watcher.poll() is not None
        record = records.load(records.path_of(launch.name)) if records.path_of(launch.name).exists() else None
        if record and record.pid and log is None:
            log = launch.log.open(encoding="utf-8", errors="replace", newline="")
        if log:
            reader.feed(log.read())
            report(Progress(reader.fraction, reader.message))
        if record and record.state == "ready" and not ended:
            report(Progress(1.0, "ready"))
            return record
        if ended:
            last = words.read_text(errors="replace").strip().splitlines()
            what, _, remedy = (last[-1] if last else "the watcher ended without a word").partition("\t")
            raise WorkshopError(what, remedy)
        time.sleep(POLL_S)


def stop(name: str) -> str:
    """Stop the server `name`, or cancel its SLURM job; return what was done.

    Raises:
        WorkshopError: there is no record of it, or it cannot be stopped from this machine.
    """
    path = records.path_of(name)
    record = records.load(path) if path.exists() else None
    if record is None:
        known = ", ".join(each.name for each in records.own()) or "none"
        raise WorkshopError(f"No server called {name!r} is known here.", f"Known: {known}.")
    record = records.checked(record)
    if record.state == "failed":
        if record.pid and record.boot_id == records.boot_id():
            end_session(record.pid)
        scratch.remove(name)
        records.remove(name)
        return f"{name} had failed ({record.reason}); its record is removed."
    if record.where == "slurm":
        return _cancel(record)
    if record.host != socket.gethostname():
        raise WorkshopError(f"{name} runs on {record.host}, not on this machine.",
                            f"Stop it there: workshop stop {name}")
    _terminate(record)
    records.remove(name)
    return f"{name} is stopped."


def _cancel(record: ServerRecord) -> str:
    """Cancel the server's job: the job removes the record itself, and is given a moment for it."""
    from workshop.launch import slurm_queue

    slurm_queue.cancel(record.job_id or "")
    deadline = time.monotonic() + STOP_GRACE_S
    while records.path_of(record.name).exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    records.remove(record.name)
    return f"{record.name} is stopped: job {record.job_id} is cancelled."


def _terminate(record: ServerRecord) -> None:
    if record.pid is None:
        return
    scratch.ask_to_stop(record.name)
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(record.pid)
        process.terminate()
        with contextlib.suppress(psutil.TimeoutExpired):
            process.wait(STOP_GRACE_S)
    end_session(record.pid)
    deadline = time.monotonic() + 5      # its watcher removes the record itself
    while records.path_of(record.name).exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _main() -> int:
    """Be the watcher of a server in the background: the launch comes on standard input."""
    spec = json.load(sys.stdin)
    launch = Launch(**{**spec, "log": Path(spec["log"])})
    try:
        run(launch)
    except WorkshopError as error:
        print(f"{error.message}\t{error.remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())

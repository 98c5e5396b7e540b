"""The life of one engine: started, watched until it answers, recorded, and ended with everything it started.

`run` is what `workshop serve` does in the foreground; `start` does the same in a process of its own and returns
when the server answers. If the watcher dies, the engine is told to end by the kernel; if the engine dies, the
watcher writes down why and ends what is left of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import httpx

from workshop.engine.log import Reader
from workshop.errors import WorkshopError
from workshop.launch import processes, records
from workshop.launch.home import cannot_write, private_folder
from workshop.launch.local import Launch, claims, scratch
from workshop.launch.local.claims import Claim
from workshop.launch.local.stopping import STOP_GRACE_S
from workshop.launch.local.stopping import stop as stop
from workshop.launch.lock import Lock
from workshop.launch.progress import Progress
from workshop.launch.records import ServerRecord
from workshop.launch.vllm_main import installed

POLL_S = 0.1
REFUSALS = (400, 404, 422, 501)  # HTTP: waiting does not change these
READY_TIMEOUT_S = 3600.0  # of one local start; a download from the Hub is part of it
Report = Callable[[Progress], None]


class Stopped(BaseException):
    """A signal asked the watcher to end."""


def run(
    launch: Launch,
    report: Report = lambda progress: None,
    on_ready: Callable[[ServerRecord], None] = lambda record: None,
    claim: Claim | None = None,
) -> None:
    """Start the engine, report its progress, call `on_ready` when it answers, return when it was stopped.

    claim: of the server's name, if it is taken already.

    Raises:
        WorkshopError: the name is taken, it did not start, or it ended by itself; the record keeps the reason.
    """
    claim, process = claim or claims.claim(new_record(launch)), None
    with stop_signals():
        try:
            process = _spawn(launch, scratch.make(launch.name))
            record = claim.write(pid=process.pid, process_started=processes.started(process.pid))
            watch = _Watch(launch, process)
            watch.until_ready(record, report)
            launch.let_go()
            on_ready(claim.write(state="ready", vllm_version=installed()[1]))
            watch.until_end()
        except WorkshopError as error:
            with contextlib.suppress(WorkshopError):  # the disk may be full: then the first error counts
                claim.write(state="failed", reason=error.message.rstrip("."))
            raise
        except BaseException as error:
            end(process, claim.record)
            scratch.remove(launch.name)
            claim.forget()
            if not isinstance(error, Stopped):
                raise
        finally:
            end(process, claim.record)
            launch.let_go()
            scratch.remove(launch.name)
            claim.close()


def new_record(launch: Launch) -> ServerRecord:
    """Return the record of a server that is about to start, with a new key."""
    return ServerRecord(
        name=launch.name,
        url=launch.url,
        model=launch.served,
        api_key=secrets.token_urlsafe(32),
        where="local",
        host=socket.gethostname(),
        boot_id=records.boot_id(),
        log=str(launch.log),
        state="starting",
        started=records.now(),
    )


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
        return subprocess.Popen(
            launch.argv,
            env=launch.env | scratch.environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            umask=0o077,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    finally:
        os.close(log)


def end_with_parent() -> None:
    """In a new process, before its program: ask Linux for a SIGTERM when the parent dies, by kill -9 too."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


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
                raise WorkshopError(
                    f"{record.model} was not ready after {READY_TIMEOUT_S:.0f} s.",
                    f"Its own words are in {self.launch.log}.",
                )
            time.sleep(POLL_S)
        report(Progress(1.0, "ready"))

    def until_end(self) -> NoReturn:
        """Wait for the engine's end; raise Stopped if somebody asked for it, else with the reason."""
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
            self._read()
            self._alive()

    def _read(self) -> None:
        while chunk := self._log.read(65536):
            self.reader.feed(chunk)

    def _alive(self) -> None:
        code = self.process.poll()
        if code is None:
            return
        if claims.asked_to_stop(self.launch.name):
            raise Stopped
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
    body = {"model": record.model, "prompt": "The", "max_tokens": 1}
    key = {"Authorization": f"Bearer {record.api_key}"}
    try:  # never through a site's web proxy, nor where a redirect leads: the key is for this server
        answer = httpx.post(f"{record.url}/completions", json=body, headers=key, timeout=60, trust_env=False)
        if answer.status_code not in REFUSALS:
            return answer.status_code == 200 and answer.json()["model"] == record.model
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    raise _refused(record, answer)


def _refused(record: ServerRecord, answer: httpx.Response) -> WorkshopError:
    said = answer.content[:2000].decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        body = json.loads(said)
        said = body.get("detail") or body["error"]["message"] or ""
    said = (str(said).strip().splitlines() or ["no word"])[0][:160].rstrip(".")
    remedy = (
        "Another server took this port: `workshop servers` lists yours."
        if "does not exist" in said
        else "Serve a model that generates text, with its tokenizer; an embedding model does not."
    )
    code = answer.status_code
    return WorkshopError(
        f"The server is up, but refuses to complete a prompt with {record.model} ({code}): {said}.", remedy
    )


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


def start(launch: Launch, report: Report = lambda progress: None, *, with_parent: bool = False) -> ServerRecord:
    """Start a server in processes of its own; return its record when it answers.

    It outlives this process, or, with_parent, ends with it however it ends (call it from the main thread then:
    for Linux the thread that starts a process is its parent).

    Raises:
        WorkshopError: it did not become ready; the reason is also in its record.
    """
    claim = claims.claim(new_record(launch))
    try:
        words = private_folder("logs") / f"{launch.name}.watcher.log"
        watcher = _watcher(launch, claim, words, with_parent)
    except BaseException:
        claim.forget()
        claim.close()
        raise
    claim.lock.hand_over()
    launch.let_go()
    try:
        return _wait_for(launch, claim.record, watcher, words, report)
    except BaseException:
        if watcher.poll() is None:
            watcher.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                watcher.wait(STOP_GRACE_S + 10)
        raise


def _watcher(launch: Launch, claim: Claim, words: Path, with_parent: bool) -> subprocess.Popen:
    """Start the watcher, which inherits the name and the port."""
    held = [launch.held.fileno()] if launch.held else []
    try:
        with words.open("wb") as errors:
            watcher = subprocess.Popen(
                [sys.executable, "-m", "workshop.launch.local.supervise"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=[claim.lock.descriptor, *held],
                preexec_fn=end_with_parent if with_parent else None,
            )
    except OSError as error:
        raise cannot_write(words, error) from None
    spec = {
        "launch": {**vars(launch), "log": str(launch.log), "held": None},
        "record": asdict(claim.record),
        "lock": claim.lock.descriptor,
        "held": held,
    }
    with contextlib.suppress(BrokenPipeError), watcher.stdin:  # it ended already: its words say why
        watcher.stdin.write(json.dumps(spec).encode())
    return watcher


def _wait_for(
    launch: Launch, mine: ServerRecord, watcher: subprocess.Popen, words: Path, report: Report
) -> ServerRecord:
    reader, log = Reader(), None
    while True:
        ended = watcher.poll() is not None
        record = records.stored(launch.name)
        if record and record.api_key != mine.api_key:  # the watcher has ended, and another server has the name
            record = None
        if record and record.pid and log is None:
            log = launch.log.open(encoding="utf-8", errors="replace", newline="")
        if log:
            reader.feed(log.read())
            report(Progress(reader.fraction, reader.message))
        if record and record.state == "ready" and not ended:
            report(Progress(1.0, "ready"))
            return record
        if ended:
            raise _last_words(launch, watcher, words, record)
        time.sleep(POLL_S)


def _last_words(launch: Launch, watcher: subprocess.Popen, words: Path, record: ServerRecord | None) -> WorkshopError:
    if watcher.returncode == 0:
        return WorkshopError(f"{launch.name} was stopped before it answered.")
    said = words.read_text(errors="replace").strip().splitlines()
    if said:
        return WorkshopError(*said[-1].partition("\t")[::2])
    why = record.reason if record and record.reason else "its watcher ended without a word"
    return WorkshopError(f"{launch.name} did not start: {why}.", f"Is there space on the disk of {words.parent}?")


def _main() -> int:
    """Be the watcher of a server in the background: launch, record, and what is held come on standard input."""
    spec = json.load(sys.stdin)
    held = socket.socket(fileno=spec["held"][0]) if spec["held"] else None
    launch = Launch(**{**spec["launch"], "log": Path(spec["launch"]["log"]), "held": held})
    claim = Claim(ServerRecord(**spec["record"]), Lock(records.lock_of(launch.name), spec["lock"]))
    try:
        run(launch, claim=claim)
    except WorkshopError as error:
        print(f"{error.message}\t{error.remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())

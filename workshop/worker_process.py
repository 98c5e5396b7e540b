"""Worker processes: modules of this package that run in a process of their own and answer messages one by one.

The parent asks through a `WorkerProcess`, the module answers through a `Channel`. What libraries print in the worker
goes to its standard error, of which a failure names the last line. Another interpreter may run the worker, so this
module needs the standard library of Python 3.10 alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import IO, Any, Protocol

from workshop import preloaded, python_process

ENDING_S = 5.0  # for a worker without an answer to end by itself and leave its exit code


class Format(Protocol):
    """The format in which messages are written to a pipe and read from it, the same at both ends."""

    def write(self, pipe: IO[bytes], message: object) -> None: ...

    def read(self, pipe: IO[bytes]) -> Any: ...


class JsonLines:
    """One line of JSON for each message, which people and scripts can write as well."""

    def write(self, pipe: IO[bytes], message: object) -> None:
        pipe.write(json.dumps(message).encode() + b"\n")
        pipe.flush()

    def read(self, pipe: IO[bytes]) -> Any:
        return json.loads(pipe.readline())


class Pickles:
    """Python objects, for messages that hold classes of this package."""

    def write(self, pipe: IO[bytes], message: object) -> None:
        pickle.dump(message, pipe)
        pipe.flush()

    def read(self, pipe: IO[bytes]) -> Any:
        return pickle.load(pipe)


class NoAnswer(Exception):
    """The worker ended, was killed after its time limit, or wrote something that is no message."""


class WorkerProcess:
    """The parent's end of a worker, which gets its messages by a pipe.

    Args:
        module: the worker's module, which answers through a `Channel`.
        message_format: how both ends write a message.
        python: the interpreter that runs the worker.
        variables: environment variables to set for the worker.

    Raises:
        OSError, ValueError: the interpreter cannot be run.
    """

    def __init__(
        self,
        module: str,
        message_format: Format,
        *,
        python: str = python_process.PYTHON,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self._format = message_format
        self._time_limit_s: float | None = None  # the one that was exceeded
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115  closed in end()
        messages, writer = os.pipe()
        reader, answers = os.pipe()
        self._messages: IO[bytes] = os.fdopen(writer, "wb")
        self._answers: IO[bytes] = os.fdopen(reader, "rb")
        try:
            environment = python_process.environment(dict(variables or {}), python=python)
            errors = self._errors.fileno()
            process = None
            if python == python_process.PYTHON:
                process = preloaded.spawn(
                    module,
                    [],
                    environment,
                    stdin=messages,
                    stdout=answers,
                    stderr=errors,
                    folder=python_process.NEUTRAL_FOLDER,
                )
            self._process = process or subprocess.Popen(
                python_process.command(module, python=python),
                stdin=messages,
                stdout=answers,
                stderr=errors,
                env=environment,
                cwd=python_process.NEUTRAL_FOLDER,
            )
        except BaseException:
            for file in (self._messages, self._answers, self._errors):
                file.close()
            raise
        finally:
            os.close(messages)
            os.close(answers)

    def ask(self, message: object, limit_s: float | None = None) -> Any:
        """Send a message and return the answer.

        Args:
            limit_s: seconds after which a worker without an answer is killed; None waits.

        Raises NoAnswer: `failure` says how the worker ended.
        """
        limit = None
        if limit_s is not None:
            limit = threading.Timer(limit_s, self._exceed, [limit_s])
            limit.start()
        try:
            self._format.write(self._messages, message)
            return self._format.read(self._answers)
        except (OSError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise NoAnswer from error
        finally:
            if limit is not None:
                limit.cancel()

    def _exceed(self, limit_s: float) -> None:
        self._time_limit_s = limit_s
        self._process.kill()

    def failure(self) -> str:
        """Return a sentence that says how the worker failed, with the last line that it wrote."""
        if self._time_limit_s is not None:
            ended = f"gave no answer and was ended after {self._time_limit_s:g} s"
            return f"{self.python} {ended}{_after_colon(self.last_line())}"
        self._close_messages()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        code = self._process.poll() or 0
        how = ""
        if code > 0:
            how = f" (exit code {code})"
        elif code < 0:  # the system ended it: signal 9 is mostly a lack of memory
            how = f" ({signal.strsignal(-code) or 'signal'}, signal {-code})"
        return f"{self.python} ended without an answer{how}{_after_colon(self.last_line())}"

    def last_line(self) -> str:
        """Return the last line that the worker wrote to its standard error; "" if it wrote nothing."""
        self._errors.seek(0)
        return python_process.last_line(self._errors.read())

    def end(self) -> None:
        """Kill the worker, with a job that still runs, and close what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._close_messages()
        self._answers.close()
        self._errors.close()

    def _close_messages(self) -> None:
        """Close the worker's input, at whose end the worker ends by itself."""
        with contextlib.suppress(OSError):  # it has ended, and a message lies in the pipe
            self._messages.close()


def _after_colon(line: str) -> str:
    return f": {line}" if line else ""


class Channel:
    """The worker's end, over its standard input and output. What is printed from now on goes to standard error."""

    def __init__(self, message_format: Format) -> None:
        self._format = message_format
        self._messages = io.BufferedReader(io.FileIO(0, closefd=False))
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[Any]:
        """Yield each message until the parent closes the pipe."""
        while self._messages.peek(1):
            yield self.receive()

    def receive(self) -> Any:
        """Wait for the next message and return it."""
        return self._format.read(self._messages)

    def send(self, answer: object) -> None:
        """Send an answer."""
        self._format.write(self._answers, answer)

"""Runs the client of `vllm bench serve` in a process of its own.

It watches how busy that process is.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from workshop.errors import WorkshopError
from workshop.servers.records.record_file import ServerRecord
from workshop.vllm_package import WITHOUT_A_MODEL
from workshop.worker_process import JsonLines, NoAnswer, WorkerProcess

POLL_S = 0.25


@dataclass(frozen=True)
class ClientRun:
    """One finished run.

    `result` is what `--save-result --save-detailed` wrote. `cpu_share` is that of one core, while
    the client sent requests.
    """

    result: dict[str, Any]
    cpu_share: float | None


class Client:
    """A process that has loaded vLLM's benchmark client.

    It sends one load after the other to one server.

    Loading vLLM takes longer than many a load, so all points share the process. Use it in a `with`
    statement.
    """

    def __init__(self, server: ServerRecord):
        """Start the process.

        `server` is its address and key. The key travels in the environment, not on a command line.
        """
        self._server = server
        self._folder = tempfile.TemporaryDirectory()
        self._worker = WorkerProcess(
            "workshop.measure.vllm_client_process",
            JsonLines(),
            variables={**WITHOUT_A_MODEL, "OPENAI_API_KEY": server.api_key or ""},
            folder=None,  # the tokenizer may be a relative path
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process, and with it a load that is still being sent."""
        self._worker.end()
        self._folder.cleanup()

    def run(self, options: Mapping[str, str | list[str]], flags: tuple[str, ...] = ()) -> ClientRun:
        """Send one load with the functions of `vllm bench serve`.

        Args:
            options: of vllm bench serve, with their value or values ("--model": "llama").
            flags: of vllm bench serve, without values.

        Raises:
            WorkshopError: the client failed, or some requests were not answered; with its last
                line.
        """
        result_file = Path(self._folder.name, "result.json")
        result_file.unlink(missing_ok=True)
        arguments = ["--save-result", "--save-detailed", "--disable-tqdm", *flags]
        every_option: dict[str, str | list[str]] = {
            "--base-url": self._server.url.removesuffix("/v1"),
            "--result-dir": self._folder.name,
            "--result-filename": result_file.name,
            "--ready-check-timeout-sec": "0",  # it would send the first prompt, and fill the cache
            **options,
        }
        for name, value in every_option.items():
            values = [value] if isinstance(value, str) else value
            arguments += [name, *values]
        printed_before = self._worker.printed_bytes()
        watch = _CpuWatch(self._worker.pid)
        try:
            with contextlib.suppress(NoAnswer):  # it ended early: the missing result says so
                self._worker.ask(arguments)
        finally:
            watch.stop()
        result: dict[str, Any] = {"completed": 0}
        if result_file.exists():
            result = json.loads(result_file.read_text())
        expected = int(str(options["--num-prompts"]))
        if result["completed"] < expected:
            last_line = self._worker.last_line(printed_before) or "it printed nothing."
            remedy = "Look at the server's log."
            if self._server.log:
                remedy = f"The server's log is {self._server.log}."
            raise WorkshopError(
                f"vllm bench serve had {result['completed']} of {expected} answers: {last_line}",
                remedy,
            )
        return ClientRun(result, watch.share_of_last(float(result["duration"])))


class _CpuWatch:
    """Notes a process's processor time a few times a second, in a thread."""

    def __init__(self, pid: int):
        # seconds since the process was created, and its CPU seconds
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, args=(pid,), daemon=True)
        self._thread.start()

    def _sample(self, pid: int) -> None:
        try:
            process = psutil.Process(pid)
            created = process.create_time()
            while not self._stopped.wait(POLL_S):
                times = process.cpu_times()
                age_s = time.time() - created
                self._samples.append((age_s, times.user + times.system))
        except psutil.Error:
            return  # it has ended

    def stop(self) -> None:
        """Stop noting."""
        self._stopped.set()
        self._thread.join(timeout=5)

    def share_of_last(self, seconds: float) -> float | None:
        """Return the mean share of one core over the last `seconds`.

        None if that time was too short to measure it.
        """
        if len(self._samples) < 3 or seconds < 4 * POLL_S:
            return None
        end_s, end_cpu = self._samples[-1]
        begin_s, begin_cpu = end_s, end_cpu
        for age_s, cpu_s in reversed(self._samples):
            if end_s - age_s > seconds:
                break
            begin_s, begin_cpu = age_s, cpu_s
        if end_s - begin_s < 2 * POLL_S:
            return None
        return (end_cpu - begin_cpu) / (end_s - begin_s)

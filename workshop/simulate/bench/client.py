"""Runs `vllm bench serve` in a process of its own, and watches how busy that process is."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from workshop import python_process
from workshop.errors import WorkshopError
from workshop.servers.record_file import ServerRecord
from workshop.vllm_package import WITHOUT_A_MODEL

POLL_S = 0.25


@dataclass(frozen=True)
class ClientRun:
    """One finished run. result: what `--save-result --save-detailed` wrote. cpu_share: of one core, while it sent."""

    result: dict[str, Any]
    cpu_share: float | None


def run(
    server: ServerRecord, options: Mapping[str, str | list[str]], flags: tuple[str, ...] = ()
) -> ClientRun:
    """Send one load to a server with `vllm bench serve`.

    Args:
        server: its address and key; the key goes to the client in its environment, not on its command line.
        options: of vllm bench serve, with their value or values ("--model": "llama").
        flags: of vllm bench serve, without values.

    Raises:
        WorkshopError: the client failed, or some requests were not answered; with its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        result_file = Path(folder, "result.json")
        command = python_process.command("workshop.servers.vllm_main", "bench", "serve")
        command += ["--save-result", "--save-detailed", "--disable-tqdm", *flags]
        every_option: dict[str, str | list[str]] = {
            "--base-url": server.url.removesuffix("/v1"),
            "--result-dir": folder,
            "--result-filename": result_file.name,
            "--ready-check-timeout-sec": "0",  # it would send the first prompt, and fill the cache
            **options,
        }
        for name, value in every_option.items():
            command += [name, value] if isinstance(value, str) else [name, *value]
        environment = python_process.environment(
            {**WITHOUT_A_MODEL, "OPENAI_API_KEY": server.api_key or ""}
        )
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
        watch = _CpuWatch(process.pid)
        try:
            printed, _ = process.communicate()
        finally:
            process.kill()  # also where the user interrupts
            watch.stop()
        result: dict[str, Any] = {"completed": 0}
        if result_file.exists():
            result = json.loads(result_file.read_text())
    expected = int(str(options["--num-prompts"]))
    if result["completed"] < expected:
        last_line = python_process.last_line(printed) or "it printed nothing."
        raise WorkshopError(
            f"vllm bench serve had {result['completed']} of {expected} answers: {last_line}",
            f"The server's log is {server.log}." if server.log else "Look at the server's log.",
        )
    return ClientRun(result, watch.share_of_last(float(result["duration"])))


class _CpuWatch:
    """Notes a process's processor time a few times a second, in a thread."""

    def __init__(self, pid: int):
        self._samples: list[
            tuple[float, float]
        ] = []  # seconds since it was created, its CPU seconds
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
        """Return the mean share of one core over the last `seconds`; None if that was too short to see."""
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

"""Run commands on the GPUs of this host, as many at once as GPUs are free, in their order.

    python benchmarks/gpu/run_queue.py QUEUE.json OUT_FOLDER [--budget-s 1400]

QUEUE.json is a list of {"name", "gpus": how many it needs, "limit_s", "command": […], "env": {…}}; "{out}" in a command
is OUT_FOLDER. A command sees its GPUs alone (CUDA_VISIBLE_DEVICES) and prints into OUT_FOLDER/NAME.out. One that waits
for more GPUs holds those after it back. OUT_FOLDER/queue.json says at any time what ran, how long, and how it ended.
What is over its limit is killed with all that it started, and so is everything when this ends or is told to (SIGTERM).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


class Running:
    """One command on its GPUs."""

    def __init__(self, job: dict, gpus: list[str], out: Path):
        self.job, self.gpus, self.began = job, gpus, time.time()
        environment = {**os.environ, **job.get("env", {}), "CUDA_VISIBLE_DEVICES": ",".join(gpus)}
        command = [
            sys.executable if word == "python" else word.replace("{out}", str(out))
            for word in job["command"]
        ]
        with open(out / f"{job['name']}.out", "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )

    def ended(self) -> bool:
        """True once it has ended, by itself or at its limit."""
        if self.process.poll() is None and time.time() - self.began < self.job["limit_s"]:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # also what it left running
        self.process.wait()
        return True


def run(jobs: list[dict], gpus: list[str], out: Path, budget_s: float) -> dict[str, dict]:
    """Run all; return how each ended, by name."""
    began, waiting, running, states = time.time(), list(jobs), [], {}
    try:
        while (waiting or running) and time.time() - began < budget_s:
            for command in [command for command in running if command.ended()]:
                running.remove(command)
                gpus = sorted(gpus + command.gpus)
                states[command.job["name"]] |= {
                    "seconds": round(time.time() - command.began, 1),
                    "exit": command.process.returncode,
                }
                print(
                    f"{time.time() - began:5.0f}s {command.job['name']}: {states[command.job['name']]}",
                    flush=True,
                )
            for job in list(waiting):
                if job["gpus"] > len(gpus):
                    break  # a large one waits for GPUs instead of starving
                waiting.remove(job)
                assigned, gpus = gpus[: job["gpus"]], gpus[job["gpus"] :]
                running.append(Running(job, assigned, out))
                states[job["name"]] = {"gpus": assigned, "began_s": round(time.time() - began, 1)}
            (out / "queue.json").write_text(json.dumps(states, indent=1) + "\n")
            time.sleep(0.2)
    finally:  # an engine that lives on would hold the memory of the next one
        for command in running:
            command.job["limit_s"] = 0
            command.ended()
            states[command.job["name"]]["exit"] = "stopped"
        (out / "queue.json").write_text(json.dumps(states, indent=1) + "\n")
    return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("queue", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", default="0,1", help="as CUDA_VISIBLE_DEVICES has them")
    parser.add_argument("--budget-s", type=float, default=1e9)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    states = run(
        json.loads(options.queue.read_text()), options.gpus.split(","), out, options.budget_s
    )
    sys.exit(any(state.get("exit") != 0 for state in states.values()))


if __name__ == "__main__":
    main()

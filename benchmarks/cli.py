"""Measure the processor time of each command that should answer at once.

    python benchmarks/cli.py [--runs 5] [--beside OTHER_CHECKOUT]

Prints a table: seconds of the processor (user and system) above those of an empty Python, medians of so many runs.
With --beside the same commands of another checkout, such as a worktree of the last release, are measured in turns
in the same environment, so that other programs disturb both alike.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from workshop.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
EMPTY = ["-c", "pass"]
WORDS = [
    *(["--help"], *([name, "--help"] for name in COMMANDS)),
    ["servers"],
    ["ask", "What is a KV cache?"],  # no server is recorded
    ["plan", "llama-3.1-70b", "--gpu", "h100"],
    ["models"],
]


def processor_s(arguments: list[str], environment: dict[str, str]) -> float:
    """Return the processor time of a Python with these arguments, in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-P", *arguments], env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def environment_of(checkout: Path, home: str) -> dict[str, str]:
    """Return the environment in which a checkout's packages are found, and no server is recorded."""
    result = {name: value for name, value in os.environ.items() if not name.startswith("WORKSHOP_")}
    result["PYTHONPATH"] = os.pathsep.join([str(checkout), str(checkout / "planner")])
    result["WORKSHOP_HOME"] = home
    return result


def measure(checkouts: list[Path], runs: int, home: str) -> None:
    """Print a line for each command, with a figure for each checkout."""
    environments = [environment_of(checkout, home) for checkout in checkouts]
    print("| command |" + "".join(f" {checkout.name}, s |" for checkout in checkouts))
    print("|---|" + "---:|" * len(checkouts))
    for arguments in WORDS:
        figures: list[list[float]] = [[] for _ in checkouts]
        for environment in environments:
            processor_s(["-m", "workshop", *arguments], environment)  # writes the bytecode
        for _ in range(runs):
            for environment, seconds in zip(environments, figures, strict=True):
                empty_s = processor_s(EMPTY, environment)
                seconds.append(processor_s(["-m", "workshop", *arguments], environment) - empty_s)
        cells = (f" {statistics.median(seconds):.2f} |" for seconds in figures)
        print(f"| {' '.join(arguments)} |" + "".join(cells), flush=True)


def main() -> None:
    """Measure this checkout, and another one beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=Path)
    options = parser.parse_args()
    checkouts = [ROOT]
    if options.beside:
        checkouts.insert(0, options.beside.resolve())
    with tempfile.TemporaryDirectory() as home:
        measure(checkouts, options.runs, home)


if __name__ == "__main__":
    main()

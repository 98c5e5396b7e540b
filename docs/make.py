"""Renew the pages, tables and pictures that a script makes without a GPU or hours: `make docs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# A script with its arguments -> what it writes. CONTRIBUTING.md names those that a person runs.
GENERATORS = {
    "docs/glossary.py": "docs/glossary.md and the notebooks' tooltips, from docs/glossary.toml",
    "docs/checks.py": "docs/checks.md, from the exercises and notebooks",
    "docs/cards.py": "docs/cards.md, from the public measurements and logs",
    "docs/hardware.py": "the record of the table of `workshop models`, in the planner's data",
    "benchmarks/gpu/report.py": "the tables of docs/gpu.md and docs/figures.md, from the recorded runs",
    "benchmarks/accuracy/accuracy.py": "docs/accuracy.md and its picture, from the recorded runs",
    "benchmarks/quantization/page.py": "the tables of docs/quantization.md, from the recorded measurement",
    "benchmarks/teaching_model/card.py": "the figures of the teaching model's card, from its evaluation",
    "benchmarks/exact.py page": "the table of architectures in docs/exact.md, from the recorded builds",
    "slides/figures.py": "slides/figures, from what the planner computes",
}


def run(command: str) -> int:
    """Run a script of this repository with its arguments; return its exit code."""
    script, *arguments = command.split()
    command_line = [sys.executable, "-P", str(ROOT / script), *arguments]
    return subprocess.run(command_line, cwd=ROOT).returncode


def main() -> int:
    """Run each generator; return the first exit code that is not 0."""
    for command, what in GENERATORS.items():
        print(what, flush=True)
        code = run(command)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())

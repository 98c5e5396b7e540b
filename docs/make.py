"""Renew everything in the repository that a script makes: `make docs`. A test compares each with its source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATORS = {
    "docs/api.py": "docs/api.md, from the docstrings of the front door",
    "docs/glossary.py": "docs/glossary.md and the notebooks' tooltips, from docs/glossary.toml",
    "docs/checks.py": "the checks of docs/teaching.md, from the exercises and notebooks",
    "benchmarks/gpu/report.py": "the tables of docs/gpu.md and docs/figures.md, from the recorded runs",
}


def main() -> int:
    """Run each generator; return the first exit code that is not 0."""
    for script, what in GENERATORS.items():
        print(what, flush=True)
        done = subprocess.run([sys.executable, "-P", str(ROOT / script)], cwd=ROOT)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())

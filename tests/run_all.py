"""Run every test that this machine can run: `make test`.

The quick ones run in two processes. Then those of the SLURM test bed run beside those with servers and browsers, which
leave a core idle for most of the time. Tests that failed run once more, alone: beside others a time limit may pass
that is kept otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SLURM_LOG = ROOT / ".ci" / "output" / "slurm.log"
SERVERS = "live or starts or browser"
MARKS = {
    "quick": f"not ({SERVERS} or slurm)",
    "servers": f"({SERVERS}) and not slurm",
    "slurm": "slurm",
}
TESTS_FAILED = 1  # exit code of pytest; others mean that it could not run them


def command(part: str, *options: str) -> list[str]:
    """Return what runs a part of the tests; each part remembers its failures in a folder of its own."""
    cache = f"cache_dir=.pytest_cache/{part}"
    return [sys.executable, "-P", "-m", "pytest", "-o", cache, "-m", MARKS[part], *options]


def run(part: str, *options: str) -> int:
    """Run a part of the tests, and return pytest's exit code."""
    return subprocess.run(command(part, *options), cwd=ROOT).returncode


def run_beside_slurm() -> dict[str, int]:
    """Run the tests with servers and the SLURM test bed's at the same time; return their exit codes.

    What the test bed prints comes when both are done.
    """
    SLURM_LOG.parent.mkdir(parents=True, exist_ok=True)
    with SLURM_LOG.open("wb") as log:
        slurm = subprocess.Popen(command("slurm"), cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            servers_code = run("servers")
        finally:
            slurm_code = slurm.wait()
    print(SLURM_LOG.read_text(errors="replace"), flush=True)
    return {"servers": servers_code, "slurm": slurm_code}


def main() -> int:
    """Run all parts; return 0 if every test passed, the second time at the latest."""
    os.environ["PYTHONUNBUFFERED"] = "1"
    codes = {"quick": run("quick", "-n", "2", "--dist", "loadfile")}
    codes |= run_beside_slurm()
    for part, code in codes.items():
        if code == TESTS_FAILED:
            print(f"\nWhat failed of the part “{part}” runs once more, alone.", flush=True)
            codes[part] = run(part, "--last-failed", "--last-failed-no-failures", "none")
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())

"""Run every test that this machine can run: `make test`.

Two rows of parts run side by side. Tests that failed run once more, alone: beside others a time limit may pass that is
kept otherwise. Servers are forked from one process that has imported vLLM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "helpers"))  # with -P Python does not look beside this file

import one_import  # noqa: E402
import tree  # noqa: E402

LOGS = ROOT / ".ci" / "output"  # of the parts that run beside another
MARKS = {
    "quick": "not (live or starts or browser or slurm or upstream)",
    "servers": "(live or starts) and not (browser or slurm or notebook or upstream)",
    "notebooks": "notebook and (live or starts) and not (browser or slurm or upstream)",
    "slurm": "slurm and not upstream",
    "browser": "browser and not (slurm or upstream)",
}
# What a file says that has tests of a part: collecting all files takes 25 s of a processor.
NAMED = {
    "servers": ("mark.live", "mark.starts"),
    "notebooks": ("mark.notebook",),
    "slurm": ("mark.slurm",),
    "browser": ("mark.browser",),
}
# Two rows of parts run side by side. A third one made all of them slower on two processors.
ROWS = (("quick", "servers", "notebooks"), ("slurm", "browser"))
PRINTED = ROWS[0]  # at once; what the others print comes when all are done
# Files in the order of their names: the order of their numbers of tests leaves long ones to the end.
OPTIONS = {"quick": ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")}
SLOWEST = 30  # tests that are printed at the end
TESTS_FAILED = 1  # exit code of pytest; others mean that it could not run them


def command(part: str, *options: str) -> list[str]:
    """Return what runs a part of the tests; each part remembers its failures in a folder of its own."""
    cache = f"cache_dir=.pytest_cache/{part}"
    python = [sys.executable, "-P", "-m", "pytest", "-o", cache, "-m", MARKS[part], *options]
    return [*python, *files_of(part)]


def files_of(part: str) -> list[str]:
    """Return the files that may have tests of a part; []: all."""
    texts = NAMED.get(part, ())
    if not texts:
        return []
    paths = [path for path in tree.files("tests", ".py") if path.name.startswith("test_")]
    return [str(path) for path in paths if any(text in path.read_text() for text in texts)]


def environment(part: str, *options: str) -> dict[str, str]:
    """Return the environment of a part; a run of what failed keeps the durations of the first run."""
    if "--last-failed" in options:
        return dict(os.environ)
    return {**os.environ, "WORKSHOP_TEST_DURATIONS": str(durations_file(part))}


def durations_file(part: str) -> Path:
    """Return the file with the seconds and the name of each test of a part."""
    return LOGS / f"durations-{part}.tsv"


def run(part: str, *options: str) -> int:
    """Run a part of the tests, and return pytest's exit code."""
    environ = environment(part, *options)
    return subprocess.run(command(part, *options), cwd=ROOT, env=environ).returncode


def run_to_log(part: str, *options: str) -> int:
    """Run a part of the tests, with what it prints in a file, and return pytest's exit code."""
    with (LOGS / f"{part}.log").open("wb") as log:
        return subprocess.run(
            command(part, *options),
            cwd=ROOT,
            env=environment(part),
            stdout=log,
            stderr=subprocess.STDOUT,
        ).returncode


def run_row(parts: tuple[str, ...]) -> dict[str, int]:
    """Run parts one after the other; return the exit code of each."""
    codes = {}
    for part in parts:
        runner = run if part in PRINTED else run_to_log
        codes[part] = runner(part, *OPTIONS.get(part, ()))
    return codes


def run_side_by_side() -> dict[str, int]:
    """Run the rows of parts; return the exit code of each part."""
    LOGS.mkdir(parents=True, exist_ok=True)
    codes: dict[str, int] = {}
    with ThreadPoolExecutor(len(ROWS)) as pool:
        for row in pool.map(run_row, ROWS):
            codes |= row
    for part in codes:
        if part not in PRINTED:
            print((LOGS / f"{part}.log").read_text(errors="replace"), flush=True)
    return codes


def slowest_tests(count: int) -> list[str]:
    """Return the slowest tests of all parts, a line each."""
    lines: list[tuple[float, str]] = []
    for part in MARKS:
        if durations_file(part).exists():
            for line in durations_file(part).read_text(encoding="utf-8").splitlines():
                seconds, _, test = line.partition("\t")
                lines.append((float(seconds), test))
    lines.sort(reverse=True)
    return [f"{seconds:8.1f} s  {test}" for seconds, test in lines[:count]]


def main() -> int:
    """Run all parts; return 0 if every test passed, the second time at the latest."""
    os.environ["PYTHONUNBUFFERED"] = "1"
    # Four processes share the machine: threads of one that wait for each other hold up all.
    os.environ["OMP_NUM_THREADS"] = "1"
    LOGS.mkdir(parents=True, exist_ok=True)
    for part in MARKS:
        durations_file(part).unlink(missing_ok=True)
    with one_import.shared(LOGS / "preloaded.log"):
        code = run_parts()
    print(f"\nThe {SLOWEST} slowest tests ({LOGS.relative_to(ROOT)}/durations-*.tsv has all):")
    print(*slowest_tests(SLOWEST), sep="\n", flush=True)
    return code


def run_parts() -> int:
    """Run all parts, and what failed once more; return the highest exit code."""
    codes = run_side_by_side()
    for part, code in codes.items():
        if code == TESTS_FAILED:
            print(f"\nWhat failed of the part “{part}” runs once more, alone.", flush=True)
            codes[part] = run(part, "--last-failed", "--last-failed-no-failures", "none")
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())

"""Plant faults, one at a time, and see whether the tests that are named for each notice.

    python tests/power/plant.py                                    # all: about ten minutes
    python tests/power/plant.py key_passed_on commit_without_fsync
    python tests/power/plant.py --list

`faults.toml` says what is changed, what it would mean for a user, and which tests must fail. The
checkout is copied to a temporary folder. There all named tests run once, and must pass. Then each
fault is planted alone, and at least one of its tests must fail. Run it by hand after tests were
moved, merged or removed. Exit code 1: a fault was missed, or could not be planted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "helpers"))  # with -P Python does not look there

import tree  # noqa: E402

FAULTS = Path(__file__).parent / "faults.toml"
LONGEST_RUN_S = 3600
LONGEST_FAULT_S = 300  # a test that waits for ever with its fault has noticed it
TESTS_FAILED = 1  # pytest's exit code; others say that the tests did not run
WHERE_THE_CODE_IS = """
import subprocess, sys
import inference_planner, workshop
from workshop import python_process
code = "import inference_planner, workshop; print(inference_planner.__file__, workshop.__file__)"
child = subprocess.run([sys.executable, "-c", code], env=python_process.environment(), text=True,
                       capture_output=True, check=True)
print(inference_planner.__file__, workshop.__file__, child.stdout)
"""


@dataclass(frozen=True)
class Fault:
    """One change of a file. `means` is what it does to a user, `tests` must notice it."""

    name: str
    room: str
    means: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def planted_in(self, text: str) -> str:
        """Return the file's text with the fault. Raises ValueError: `old` is not there once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"{self.name}: its `old` stands {count} times in {self.file}, and must once. "
                "The code has moved or changed: update the fault in tests/power/faults.toml."
            )
        return text.replace(self.old, self.new)


def read_faults() -> list[Fault]:
    """Return the faults of the table, in its order."""
    table = tomllib.loads(FAULTS.read_text(encoding="utf-8"))
    return [Fault(**{**row, "tests": tuple(row["tests"])}) for row in table["fault"]]


def copy_checkout(folder: Path) -> None:
    """Copy every file of the checkout that git tracks, or would."""
    for path in tree.files():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def run_python(
    folder: Path, *arguments: str, limit_s: float = LONGEST_RUN_S
) -> subprocess.CompletedProcess[str]:
    """Run Python with the code of the copy, and return its exit code and output."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'planner'}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the copy is compiled once, not at each run
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit_s,
    )


def run_tests(
    folder: Path, tests: list[str], limit_s: float = LONGEST_RUN_S
) -> subprocess.CompletedProcess[str]:
    """Run tests of the copy."""
    # nbval takes seconds to import, at each start of pytest, and no test here is a notebook
    without = ["-p", "no:cacheprovider", "-p", "no:nbval"]
    return run_python(folder, "-m", "pytest", "-q", *without, *tests, limit_s=limit_s)


def check_copy_is_used(folder: Path) -> None:
    """Raise SystemExit unless Python, and a Python that the workshop starts, use the copy."""
    done = run_python(folder, "-c", WHERE_THE_CODE_IS)
    places = done.stdout.split()
    if done.returncode or not all(Path(place).is_relative_to(folder) for place in places):
        raise SystemExit(f"The copy's code is not what runs:\n{done.stdout}")


def check_tests_pass(folder: Path, faults: list[Fault]) -> None:
    """Raise SystemExit unless every test that is named passes without a fault."""
    tests = sorted({test for fault in faults for test in fault.tests})
    done = run_tests(folder, tests)
    if done.returncode:
        raise SystemExit(f"{done.stdout}\nThese tests must pass before a fault is planted.")


def failed_tests(output: str) -> list[str]:
    """Return the names of the tests that failed, from pytest's short summary."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return [line.split(" - ")[0].split(" ", 1)[1] for line in lines]


def is_caught(folder: Path, fault: Fault) -> bool:
    """Plant a fault in the copy, run its tests, print the verdict, and take the fault out again.

    Raises SystemExit: the tests did not run.
    """
    path = folder / fault.file
    path.write_text(fault.planted_in(path.read_text(encoding="utf-8")), encoding="utf-8")
    began = time.monotonic()
    try:
        done = run_tests(folder, list(fault.tests), LONGEST_FAULT_S)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess([], TESTS_FAILED, stdout="        (at its limit)")
    finally:
        shutil.copy2(ROOT / fault.file, path)
    if done.returncode not in (0, TESTS_FAILED):
        raise SystemExit(f"{done.stdout}\n{fault.name}: its tests did not run.")
    caught = done.returncode == TESTS_FAILED
    verdict = "caught" if caught else "MISSED"
    print(f"{verdict}  {fault.name} ({time.monotonic() - began:.0f} s): {fault.means}", flush=True)
    for test in failed_tests(done.stdout):
        print(f"        {test}", flush=True)
    return caught


def chosen(names: list[str]) -> list[Fault]:
    """Return the faults of these names, or all. Raises SystemExit: a name is not in the table."""
    faults = {fault.name: fault for fault in read_faults()}
    unknown = [name for name in names if name not in faults]
    if unknown:
        raise SystemExit(f"There is no fault {', '.join(unknown)}: --list prints the names.")
    return [faults[name] for name in names or faults]


def main() -> int:
    """Read the arguments; list the faults, or plant them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="FAULT", help="all faults without it")
    parser.add_argument("--list", action="store_true", help="print the faults, and plant none")
    arguments = parser.parse_args()
    faults = chosen(arguments.names)
    if arguments.list:
        for fault in faults:
            print(f"{fault.room:14} {fault.name:32} {fault.means}")
        return 0
    try:
        for fault in faults:
            fault.planted_in((ROOT / fault.file).read_text(encoding="utf-8"))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name).resolve()
        copy_checkout(folder)
        check_copy_is_used(folder)
        check_tests_pass(folder, faults)
        missed = [fault for fault in faults if not is_caught(folder, fault)]
    print(f"{len(faults) - len(missed)} of {len(faults)} faults are caught.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

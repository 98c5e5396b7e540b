"""Programs of the system, asked with a time limit: none of them holds up a command of ours, or ends it."""

import subprocess
from typing import NamedTuple

LATE = 124  # the exit code of what took too long, as timeout(1) has it


class Answer(NamedTuple):
    """What a program said: exit code (1 where it could not be run), its output, the last line of its complaint."""

    code: int
    out: str
    said: str


def ask(*command: str, within_s: float = 20.0, env: dict[str, str] | None = None) -> Answer:
    """Run a program to its end, or for so long at most."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=within_s, env=env)
    except subprocess.TimeoutExpired:
        return Answer(LATE, "", f"no answer within {within_s:.0f} s")
    except OSError as error:
        return Answer(1, "", f"it cannot be run ({error.strerror})")
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return Answer(done.returncode, done.stdout, said[-1])

"""Programs of the system, run with a time limit: none holds up a command of ours, or ends it."""

import subprocess
from typing import NamedTuple

LATE = 124  # the exit code of what took too long, as timeout(1) has it


class Finished(NamedTuple):
    """A program's exit code, and all that it wrote to its two streams."""

    code: int  # 1 where it could not be run
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """The lines of both streams, the output's first, without blanks around them."""
        stripped = (line.strip() for line in (self.out + "\n" + self.err).splitlines())
        return [line for line in stripped if line]

    @property
    def complaint(self) -> str:
        """The last line of the errors; without one, the exit code in words."""
        return (self.err.strip().splitlines() or [f"exit code {self.code}"])[-1]


def run(*command: str, within_s: float = 20.0, env: dict[str, str] | None = None) -> Finished:
    """Run a program to its end, or for so long at most."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=within_s, env=env
        )
    except subprocess.TimeoutExpired:
        return Finished(LATE, "", f"no answer within {within_s:.0f} s")
    except OSError as error:
        return Finished(1, "", f"it cannot be run ({error.strerror})")
    except ValueError as error:
        # a null byte, or half of a surrogate pair, which no argument can hold
        return Finished(1, "", f"it cannot be run ({error})")
    return Finished(done.returncode, done.stdout, done.stderr)

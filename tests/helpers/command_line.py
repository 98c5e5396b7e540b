"""A command line as a person types it, run in this process."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from typing import NamedTuple

import pytest

from workshop import cli


class Done(NamedTuple):
    """A command's exit code and its two outputs."""

    code: object
    out: str
    err: str


def run_arguments(*arguments: str) -> Done:
    """Run `workshop ARGUMENTS`, as its entry point does."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["workshop", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out.flush()
        err.flush()
    return Done(end.value.code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode())


def run(line: str) -> Done:
    """Run `workshop LINE`."""
    return run_arguments(*shlex.split(line))

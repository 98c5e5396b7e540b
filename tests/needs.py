"""What a test needs and this machine may lack: skipped with one line on a user's machine, failed in CI."""

from __future__ import annotations

import os

import pytest


def lacking(what: str) -> None:
    """Skip the test, saying what is lacking; in CI nothing is skipped silently: fail."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {what}", pytrace=False)
    pytest.skip(what)

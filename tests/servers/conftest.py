"""What tests of launch share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def bin_folder(tmp_path, monkeypatch) -> Path:
    """A folder at the front of PATH for stand-ins of SLURM's commands."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder

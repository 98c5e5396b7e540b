"""Stand-ins for commands of a system, which a test puts at the front of PATH."""

from __future__ import annotations

from pathlib import Path


def stand_in(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{script}\n")
    (folder / name).chmod(0o755)

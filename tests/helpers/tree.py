"""The files of the repository, without what tools install and make beside them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]


def files(folder: str = ".", suffix: str = "") -> list[Path]:
    """Return the files of a folder of the repository that git keeps or would keep."""
    done = subprocess.run(
        [*COMMAND, "--", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / name for name in sorted(set(done.stdout.split("\0"))) if name.endswith(suffix)]
    return [path for path in paths if path.is_file()]

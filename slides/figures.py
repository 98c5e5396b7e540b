"""Draw the slides' figures again: `python slides/figures.py` writes slides/figures/*.svg, `--check` only compares.

Their numbers are computed by `workshop` when they are drawn; the files are committed, and a test compares them.
"""

from __future__ import annotations

import sys
from pathlib import Path

# this checkout's workshop, installed or not, and the drawings beside this file
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from drawings import (
    chat,
    engine,
    guess,
    kv_cache,
    memory,
    network,
    parallel,
    probabilities,
    requests,
    scale,
    speed,
    xray,
)

FOLDER = Path(__file__).parent / "figures"
PARTS = (
    memory,
    kv_cache,
    network,
    parallel,
    engine,
    speed,
    probabilities,
    requests,
    xray,
    chat,
    guess,
    scale,
)
FIGURES = {name: draw for part in PARTS for name, draw in part.FIGURES.items()}


def drawn() -> dict[str, str]:
    """Return every figure, drawn now: name → SVG."""
    return {name: draw().svg() for name, draw in FIGURES.items()}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print("usage: python slides/figures.py [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, svg in drawn().items():
        path = FOLDER / f"{name}.svg"
        if not path.exists() or path.read_text(encoding="utf-8") != svg:
            stale.append(name)
            if not arguments:
                path.write_text(svg, encoding="utf-8")
    unknown = sorted(path.stem for path in FOLDER.glob("*.svg") if path.stem not in FIGURES)
    print(
        f"{len(FIGURES)} figures, {len(stale)} {'differ' if arguments else 'written'}"
        + (f": {', '.join(stale)}" if stale else "")
        + (f"; of no use: {', '.join(unknown)}" if unknown else "")
    )
    return 1 if arguments and (stale or unknown) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

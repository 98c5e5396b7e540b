"""Draw the slides' figures again: `python slides/figures.py` writes slides/figures/*.svg.

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
    starts,
    xray,
)

FOLDER = Path(__file__).parent / "figures"
PARTS = (
    memory,
    kv_cache,
    network,
    starts,
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


def main() -> None:
    changed = []
    for name, draw in FIGURES.items():
        path, svg = FOLDER / f"{name}.svg", draw().svg()
        if not path.exists() or path.read_text(encoding="utf-8") != svg:
            changed.append(name)
            path.write_text(svg, encoding="utf-8")
    unknown = sorted(path.stem for path in FOLDER.glob("*.svg") if path.stem not in FIGURES)
    print(
        f"{len(FIGURES)} figures, {len(changed)} written"
        + (f": {', '.join(changed)}" if changed else "")
        + (f"; of no use: {', '.join(unknown)}" if unknown else "")
    )


if __name__ == "__main__":
    main()

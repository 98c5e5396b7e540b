"""Time the live pages: start until the first slider and until all is there, a step, bytes.

    python benchmarks/live_pages.py [--runs 5]

Chromium with the network cut, each run in a new profile (cold), then once more in it (warm).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("docs/site", "tests", "tests/browser")]

import lab_page  # noqa: E402
from live import pages  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

STEP = """async label => { const e = document.querySelector(`[aria-label="${label}"]`), took = [];
  for (let i = 0; i < 20; i++) { e.value = Number(e.min) + (Number(e.max) - Number(e.min)) * (i % 10 + 1) / 12;
    const began = performance.now(); e.dispatchEvent(new Event('input'));
    await new Promise(done => requestAnimationFrame(() => setTimeout(done))); took.push(performance.now() - began); }
  return took; }"""
SLIDER = {"plan": "requests", "explorer": "temperature"}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        print(
            "page      MB    first slider, s     all, s             a step to the screen, ms (median, most)"
        )
        print("                cold   warm         cold   warm")
        for path in [path for path in pages.build(Path(folder)) if path.stem in SLIDER]:
            measurements = [
                measure(playwright, path, Path(folder) / f"profile{number}")
                for number in range(runs)
            ]
            cold, warm, steps = zip(*measurements, strict=True)
            first, ready = (
                [statistics.median(start[at] for start in starts) / 1000 for starts in (cold, warm)]
                for at in (0, 1)
            )
            steps = [step for run_steps in steps for step in run_steps]
            size = path.stat().st_size / 1e6
            print(
                f"{path.stem:9} {size:3.0f}   {first[0]:5.1f}  {first[1]:5.1f}        {ready[0]:5.1f}  {ready[1]:5.1f}         {statistics.median(steps):.0f}, {max(steps):.0f}"
            )


def measure(
    playwright, path: Path, profile: Path
) -> tuple[tuple[int, int], tuple[int, int], list[float]]:
    """Return (first slider, all) in ms of a cold and of a warm start, and the steps' ms."""
    context = playwright.chromium.launch_persistent_context(
        str(profile), executable_path=lab_page.chromium(), args=lab_page.FLAGS, offline=True
    )
    starts = []
    for _ in range(2):
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.ready", timeout=120_000)
        starts.append(
            page.evaluate(
                "[+document.documentElement.dataset.first, +document.documentElement.dataset.ready]"
            )
        )
    steps = page.evaluate(STEP, SLIDER[path.stem])
    context.close()
    return tuple(starts[0]), tuple(starts[1]), steps


if __name__ == "__main__":
    main()

"""Time the planner's page: its bytes, the start of its Python, and an answer after a change.

    python benchmarks/plan_page.py [--runs 5]

Chromium with the network cut, each run in a new profile (cold), then once more in it (warm).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("docs/site", "tests/helpers", "tests/browser")]

import lab_page  # noqa: E402
from live import pages  # noqa: E402
from playwright.sync_api import Playwright, sync_playwright  # noqa: E402

# Ten changes of the longest request, each until another answer is there.
ANSWERS_MS = """async () => { const control = document.querySelector('[name="max_model_len"]'), took = [];
  for (let step = 1; step <= 10; step++) {
    const began = performance.now(), answered = new Promise(done => new MutationObserver(done)
      .observe(document.getElementById("answer"), { childList: true }));
    control.value = 1024 * step; control.dispatchEvent(new Event("input", { bubbles: true }));
    await answered; took.push(performance.now() - began); }
  return took; }"""


def measure(playwright: Playwright, path: Path, profile: Path) -> tuple[float, float, list[float]]:
    """Return the ms until the first plan of a cold and of a warm start, and those of changes."""
    context = playwright.chromium.launch_persistent_context(
        str(profile), executable_path=lab_page.chromium(), args=lab_page.FLAGS, offline=True
    )
    starts = []
    for _ in range(2):
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_function("document.documentElement.dataset.ready", timeout=120_000)
        starts.append(page.evaluate("+document.documentElement.dataset.ready"))
    answers = page.evaluate(ANSWERS_MS)
    context.close()
    return starts[0], starts[1], answers


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages.build(Path(folder))
        path = Path(folder) / "plan.html"
        measurements = [
            measure(playwright, path, Path(folder) / f"profile{number}") for number in range(runs)
        ]
        cold, warm, answers = zip(*measurements, strict=True)
        all_answers = [answer for of_run in answers for answer in of_run]
        print(
            f"{path.name}: {path.stat().st_size / 1e6:.0f} MB; first plan after {statistics.median(cold) / 1e3:.1f} s cold, "
            f"{statistics.median(warm) / 1e3:.1f} s warm; an answer {statistics.median(all_answers):.0f} ms after a change, "
            f"{max(all_answers):.0f} at most"
        )


if __name__ == "__main__":
    main()

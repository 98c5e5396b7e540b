"""Measure what a few refusals cost: rows/s where 0.5 % of the requests get a 429, as a share of rows/s without them.

    python benchmarks/batch/pace.py [--rows 30000] [--busy 0.005] [--delay-s 0.005] [--rounds 3]

The stub has no /metrics, so the pace is found by what comes back. Rounds alternate, and the medians are compared, as a
machine is never quiet. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workshop import batch

STUB = Path(__file__).with_name("stub.py")


def rows_per_s(prompts: Path, busy: float, delay_s: float) -> tuple[float, int]:
    """Return (rows/s, requests at once at the end) of one run."""
    options = ["--no-metrics", "--busy", str(busy), "--delay-s", str(delay_s)]
    stub = subprocess.Popen(
        [sys.executable, str(STUB), *options], stdout=subprocess.PIPE, text=True
    )
    limits = []
    try:
        url = stub.stdout.readline().strip()
        output = prompts.with_name(f"{time.monotonic_ns()}.jsonl")
        summary = batch.run(prompts, output, url=url, report=lambda look: limits.append(look.limit))
    finally:
        stub.terminate()
        stub.wait()
    if summary.answered != summary.rows:
        raise SystemExit(f"{summary}")
    return summary.answered / summary.seconds, limits[-1]


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--busy", type=float, default=0.005)
    parser.add_argument("--delay-s", type=float, default=0.005)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with_refusals, without, limits = [], [], []
    with tempfile.TemporaryDirectory() as temporary:
        prompts = Path(temporary) / "in.txt"
        prompts.write_text("".join(f"Prompt number {number}\n" for number in range(arguments.rows)))
        for _ in range(arguments.rounds):
            rate, limit = rows_per_s(prompts, arguments.busy, arguments.delay_s)
            with_refusals.append(rate)
            limits.append(limit)
            without.append(rows_per_s(prompts, 0.0, arguments.delay_s)[0])
    ratio = statistics.median(with_refusals) / statistics.median(without)
    print(
        json.dumps(
            {
                "ratio": round(ratio, 3),
                "rows_per_s_with_refusals": [round(rate) for rate in with_refusals],
                "rows_per_s_without": [round(rate) for rate in without],
                "at_once_at_the_end": limits,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

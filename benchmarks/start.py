"""From nothing to the first completion: `workshop serve` beside bare vLLM, import times, resident memory.

    python benchmarks/start.py [--pairs 5]

The pairs alternate on the same machine with the same model, flags and environment, so their ratio holds where
absolute times vary. Prints a table and writes benchmarks/results/start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "start.json"


def serve_with_workshop() -> float:
    """Return the seconds from `workshop serve --background` to a completion."""
    import workshop
    from workshop.servers.local import supervise

    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-P", "-m", "workshop", "serve", "--background"],
        check=True,
        capture_output=True,
    )
    workshop.connect().complete("San Francisco is a", max_tokens=16, temperature=0)
    took = time.perf_counter() - began
    supervise.stop("teaching-model")
    return took


def serve_bare() -> float:
    """Return the seconds from bare vLLM, with the same flags and environment and no key, to the same completion."""
    from workshop.servers import local

    launch = local.prepare(name="bare")
    argv = launch.argv[: launch.argv.index("--middleware")]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            argv, env=launch.env, stdout=log, stderr=log, start_new_session=True
        )
        body = json.dumps(
            {
                "model": launch.served,
                "prompt": "San Francisco is a",
                "max_tokens": 16,
                "temperature": 0,
            }
        )
        request = urllib.request.Request(
            f"{launch.url}/completions",
            data=body.encode(),
            headers={"Content-Type": "application/json"},
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    answer.read()
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("bare vLLM ended") from None
                time.sleep(0.1)
        took = time.perf_counter() - began
        process.terminate()
        process.wait(60)
    return took


def seconds_of(*command: str, times: int = 9) -> float:
    """Return the median wall-clock seconds of a command."""

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        return time.perf_counter() - began

    return statistics.median(once() for _ in range(times))


def import_megabytes() -> float:
    """Return the most resident megabytes of a Python that imports workshop and nothing else."""
    # VmHWM, not ru_maxrss: the latter counts what the parent had when it forked.
    code = "import workshop; print(next(l for l in open('/proc/self/status') if l.startswith('VmHWM')).split()[1])"
    kib = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    return 1.024e-3 * float(kib)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    os.environ["WORKSHOP_HOME"] = tempfile.mkdtemp()
    times = [(serve_with_workshop(), serve_bare()) for _ in range(pairs)]
    empty = seconds_of("-c", "pass")
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "pairs_s": [[round(seconds, 2) for seconds in pair] for pair in times],
        "serve_s": round(statistics.median(pair[0] for pair in times), 1),
        "bare_s": round(statistics.median(pair[1] for pair in times), 1),
        "ratio_of_medians": round(
            statistics.median(a for a, _ in times) / statistics.median(b for _, b in times), 3
        ),
        "import_s": round(seconds_of("-c", "import workshop"), 3),
        "help_s": round(seconds_of("-m", "workshop", "--help"), 3),
        "empty_python_s": round(empty, 3),
        "import_mb": round(import_megabytes(), 1),
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

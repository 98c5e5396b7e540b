"""A million rows against the stub: rows/s, and whether the client's memory stays flat.

    python benchmarks/batch/rows.py [--rows 1000000]

Prints one JSON object. Stub and client share the machine's cores; 2 cores are what the bar is for (1,500 rows/s,
200 MB). Memory is the client's proportional set size (PSS), as the kernel counts it, looked at every 2 s.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
import stub


def measure(rows: int, folder: Path) -> dict:
    """Return rows/s and memory of one run over `rows` rows."""
    prompts, output = folder / "in.jsonl", folder / "out.jsonl"
    with prompts.open("w") as file:
        for number in range(rows):
            file.write(
                f'{{"custom_id": "row-{number}", "prompt": "Prompt number {number} of many", "max_tokens": 16}}\n'
            )
    with stub.running() as url:
        began = time.monotonic()
        command = [sys.executable, "-m", "workshop", "batch", str(prompts), str(output)]
        client = subprocess.Popen(
            [*command, "--url", url, "--json"], stdout=subprocess.PIPE, text=True
        )
        memory = list(watch(psutil.Process(client.pid), began))
        summary = json.loads(client.stdout.read())
        seconds = time.monotonic() - began
    with output.open("rb") as file:
        ids = [line[15 : line.index(b'"', 15)] for line in file]
    middle = [mb for at, mb in memory if at > seconds * 0.25]
    return {
        "rows": rows,
        "in_output": len(ids),
        "different": len(set(ids)),
        "exit_code": summary["exit_code"],
        "seconds": round(seconds, 1),
        "rows_per_s": round(rows / seconds),
        "rows_per_s_while_sending": round(rows / summary["seconds"]),
        "memory_mb_largest": round(max(mb for _, mb in memory), 1),
        "memory_mb_grown_from_a_quarter_to_the_end": round(middle[-1] - middle[0], 1)
        if middle
        else None,
        "memory_mb": [(round(at), round(mb, 1)) for at, mb in memory[:: max(1, len(memory) // 12)]],
    }


def watch(process: psutil.Process, began: float):
    """Yield (seconds, MB of PSS) until the process ends."""
    while True:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            yield time.monotonic() - began, process.memory_full_info().pss / 1e6
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return
        time.sleep(2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(measure(parser.parse_args().rows, Path(temporary)), indent=1))

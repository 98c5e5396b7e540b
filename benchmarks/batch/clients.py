"""Measure the CPU time of a row: `workshop batch` beside a plain aiohttp script that writes one file.

    python benchmarks/batch/clients.py [--rows 8000] [--at-once 16 64 256] [--rounds 5]

Each client is a process of its own, and both send to the stub. What the kernel accounts for a process (user and system
time), less that of the same client with FEW rows, is divided by the rows. Rounds alternate, and the median counts, as a
machine is never quiet: the ratio is that of the two runs of a round. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import stub

FEW = 200  # rows of the run that shows what a start costs
PLAIN = """
import asyncio, json, sys
import aiohttp, uvloop

url, prompts, output, at_once = sys.argv[1:]

async def send(session, lines, file):
    for line in lines:
        row = json.loads(line)
        body = {"model": "stub", "prompt": row["prompt"], "max_tokens": row["max_tokens"]}
        async with session.post(url + "/completions", json=body) as response:
            answer = await response.json()
        file.write(json.dumps({"custom_id": row["custom_id"], "response": answer}) + "\\n")

async def main():
    connector = aiohttp.TCPConnector(limit=0)
    with open(prompts) as lines, open(output, "w") as file:
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(send(session, lines, file) for _ in range(int(at_once))))

uvloop.run(main())
"""


def workshop_batch(url: str, prompts: Path, output: Path, at_once: int) -> list[str]:
    """Return the command of `workshop batch`."""
    command = [sys.executable, "-m", "workshop", "batch", str(prompts), str(output)]
    return [*command, "--url", url, "--concurrency", str(at_once), "--json"]


def plain_script(url: str, prompts: Path, output: Path, at_once: int) -> list[str]:
    """Return the command of the plain script."""
    return [sys.executable, "-c", PLAIN, url, str(prompts), str(output), str(at_once)]


CLIENTS = {"workshop_batch": workshop_batch, "plain_script": plain_script}


def run(client: str, rows: int, at_once: int, folder: Path) -> tuple[float, float]:
    """Return (CPU seconds, largest resident MiB) of one run of a client."""
    prompts = folder / "in.jsonl"
    with prompts.open("w") as file:
        for number in range(rows):
            row = {"custom_id": f"row-{number}", "prompt": f"Prompt number {number} of many"}
            file.write(json.dumps(row | {"max_tokens": 16}) + "\n")
    output = folder / f"{time.monotonic_ns()}.jsonl"
    with stub.running() as url:
        command = CLIENTS[client](url, prompts, output, at_once)
        with (folder / "stderr").open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    with output.open("rb") as file:
        answers = sum(1 for _ in file)
    if process.returncode or answers != rows:
        problem = (folder / "stderr").read_text()[-500:]
        raise SystemExit(f"{client}: {answers} of {rows} answers. {problem}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(rows: int, at_once: int, rounds: int, folder: Path) -> dict:
    """Return the CPU time of a row of both clients, and how they compare."""
    microseconds: dict[str, list[float]] = {client: [] for client in CLIENTS}
    memory_mib: dict[str, float] = dict.fromkeys(CLIENTS, 0.0)
    for _ in range(rounds):
        for client in CLIENTS:
            start_s, _ = run(client, FEW, at_once, folder)
            whole_s, mib = run(client, rows, at_once, folder)
            microseconds[client].append(1e6 * (whole_s - start_s) / (rows - FEW))
            memory_mib[client] = max(memory_mib[client], mib)
    ratios = []
    for ours, plain in zip(*microseconds.values(), strict=True):
        ratios.append(round(ours / plain, 2))
    medians = {name: round(statistics.median(times)) for name, times in microseconds.items()}
    return {
        "at_once": at_once,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "cpu_us_a_row": medians,
        "largest_memory_mib": {name: round(mib) for name, mib in memory_mib.items()},
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--at-once", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        results = [
            measure(options.rows, at_once, options.rounds, folder) for at_once in options.at_once
        ]
    print(json.dumps({"rows": options.rows, "runs": results}, indent=1))


if __name__ == "__main__":
    main()

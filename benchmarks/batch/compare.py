"""The batch client beside others, on the same server in one run, as ratios of requests/s.

    python benchmarks/batch/compare.py [--requests 192] [--at-once 16] [--rounds 3]

Finds the server as connect() does. Mixed lengths (1 to 256 tokens, the same for all). Rounds alternate, and the median
counts, as a machine is never quiet. `batch` runs with the same number at once as the others, and once more as a person
runs it: it finds its own. Others: `vllm bench serve` at equal concurrency; a ThreadPoolExecutor with
`requests`; the same pool with a barrier after each `--at-once` requests, as simple senders do.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests

import workshop
from workshop import batch


def jobs(count: int, seed: int) -> list[tuple[str, int]]:
    """Return (prompt, tokens) pairs; the prompts differ, so that no prefix is cached."""
    chance = random.Random(seed)
    return [(f"{chance.random()} San Francisco is a", chance.randint(1, 256)) for _ in range(count)]


def with_batch(llm, work, at_once: int | None, folder: Path) -> float:
    """Return requests/s of `workshop batch`, from its own start of sending to its end."""
    rows = [
        {"prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        for prompt, tokens in work
    ]
    name = f"{time.monotonic_ns()}"
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = batch.run(
        folder / f"{name}.jsonl", folder / f"{name}.out.jsonl", concurrency=at_once, url=llm.url
    )
    assert summary.answered == len(work)
    return len(work) / summary.seconds


def with_pool(llm, work, at_once: int, barrier: bool) -> float:
    """Return requests/s of a ThreadPoolExecutor with `requests`, a session a thread's worth of connections."""
    session = requests.Session()
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=at_once))

    def send(job):
        prompt, tokens = job
        body = {
            "model": llm.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
        }
        answer = session.post(f"{llm.url}/completions", json=body, headers=llm.headers, timeout=600)
        answer.raise_for_status()
        return answer.json()

    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        groups = (
            [work[start : start + at_once] for start in range(0, len(work), at_once)]
            if barrier
            else [work]
        )
        for group in groups:
            list(pool.map(send, group))
    return len(work) / (time.perf_counter() - began)


def with_vllm_bench(llm, work, at_once: int, folder: Path) -> float:
    """Return requests/s of `vllm bench serve`."""
    data, result = folder / "bench.jsonl", folder / "bench.json"
    data.write_text(
        "".join(
            json.dumps({"prompt": prompt, "output_tokens": tokens}) + "\n"
            for prompt, tokens in work
        )
    )
    command = [sys.executable, "-m", "workshop.servers.vllm_main", "bench", "serve"]
    command += ["--backend", "openai", "--base-url", llm.root, "--endpoint", "/v1/completions"]
    command += ["--model", llm.model, "--tokenizer", llm.get("/v1/models")["data"][0]["root"]]
    command += ["--dataset-name", "custom", "--dataset-path", str(data)]
    command += ["--custom-output-len", "-1", "--num-prompts", str(len(work))]
    command += ["--max-concurrency", str(at_once), "--ignore-eos", "--disable-tqdm"]
    command += ["--skip-chat-template", "--disable-shuffle"]
    command += ["--save-result", "--result-filename", str(result)]
    environment = {**os.environ, "OPENAI_API_KEY": llm.record.api_key, "TORCHDYNAMO_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    figures = json.loads(result.read_text())
    if figures["completed"] != len(work):
        raise SystemExit(
            f"vllm bench serve completed {figures['completed']}: {done.stdout[-2000:]}"
        )
    return figures["request_throughput"]


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    llm = workshop.connect()
    speeds = {
        name: []
        for name in ("batch", "batch, its own number", "vllm bench serve", "thread pool", "barrier")
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for number in range(options.rounds):
            work = jobs(options.requests, number)
            # Each gets prompts of its own, but the same lengths: a cached prefix would favour whoever comes later.
            workloads = [
                [(f"{name} {prompt}", tokens) for prompt, tokens in work] for name in "abcde"
            ]
            speeds["batch"].append(with_batch(llm, workloads[0], options.at_once, folder))
            speeds["vllm bench serve"].append(
                with_vllm_bench(llm, workloads[1], options.at_once, folder)
            )
            speeds["thread pool"].append(
                with_pool(llm, workloads[2], options.at_once, barrier=False)
            )
            speeds["barrier"].append(with_pool(llm, workloads[3], options.at_once, barrier=True))
            speeds["batch, its own number"].append(with_batch(llm, workloads[4], None, folder))

    def ratio(ours: str, theirs: str) -> float:
        return round(
            statistics.median(a / b for a, b in zip(speeds[ours], speeds[theirs], strict=True)), 3
        )

    others = ("vllm bench serve", "thread pool", "barrier")
    ratios = {
        ours: {name: ratio(ours, name) for name in others}
        for ours in ("batch", "batch, its own number")
    }
    print(
        json.dumps(
            {
                "requests": options.requests,
                "at_once": options.at_once,
                "ratio_to": ratios,
                "requests_per_s": {
                    name: [round(rate, 2) for rate in rates] for name, rates in speeds.items()
                },
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()

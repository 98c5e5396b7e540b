"""Measure what HTTP adds: one server as `vllm serve` starts it, closed loops, times at the client and in the server.

    python benchmarks/gpu/over_http.py OUT.json [--model M] [--loads 1x1024x128,64x1024x128 …] [--text]
        [any flag of vllm serve]

benchmarks/gpu/loads.py records `AsyncLLM` inside one process. Here requests come by HTTP, as a user's do: sent by
`workshop.measure`'s sender, from another process. The model has the sizes of a catalog model but for the vocabulary,
which is the teaching model's with its tokenizer, so that text is read and written; its weights are dummies. A load is
REQUESTS AT ONCE × PROMPT TOKENS × ANSWER TOKENS; three waves are sent, and 24 requests at least. Means at
the client stand beside those of the server's own histograms: of its API server (time_to_first_token) and of its engine
(request_queue_time, request_prefill_time, request_decode_time). --text sends texts, not token ids: the API server makes
tokens of them. Needs vLLM with CUDA.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean

import httpx
from prometheus_client.parser import text_string_to_metric_families

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "planner"), str(HERE)]

PORT = 18011
URL = f"http://127.0.0.1:{PORT}"
LOADS = (
    "1x128x128,4x128x128,16x128x128,64x128x128,256x128x128,"
    "1x1024x128,4x1024x128,16x1024x128,64x1024x128,256x1024x128,1x8192x64,8x8192x64,32x8192x64"
)
WAVES = 3
FEWEST = 24  # requests of a load
HISTOGRAMS = (
    "time_to_first_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
)
IDS = range(300, 8000)  # of prompts: tokens of the teaching model that are text
READY_WITHIN_S = 300.0


def write_model(name: str, folder: Path) -> None:
    """Write the config of a catalog model with the vocabulary and the tokenizer of the teaching model."""
    from inference_planner.catalog import load_model

    teaching = ROOT / "workshop" / "teaching_model"
    vocabulary = json.loads((teaching / "config.json").read_text())["vocab_size"]
    raw = {**load_model(name).raw, "vocab_size": vocabulary}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(teaching / file, folder)


def sums() -> dict[str, tuple[float, float]]:
    """Return sum and count of the server's histograms."""
    totals: Counter[str] = Counter()
    for family in text_string_to_metric_families(httpx.get(f"{URL}/metrics", timeout=30).text):
        for sample in family.samples:
            totals[sample.name] += sample.value
    return {name: (totals[f"vllm:{name}_sum"], totals[f"vllm:{name}_count"]) for name in HISTOGRAMS}


def means_ms(before: dict[str, tuple[float, float]], after: dict[str, tuple[float, float]]) -> dict:
    """Return the means of the histograms between two readings, in ms."""
    return {
        name.removesuffix("_seconds"): round(
            1e3 * (after[name][0] - total) / max(1, after[name][1] - count), 3
        )
        for name, (total, count) in before.items()
    }


def bodies(at_once: int, prompt: int, answer: int, text: bool) -> list[dict]:
    """Return the requests of a load; no two have a prefix in common."""
    dice = random.Random(prompt)
    pieces: dict[int, str] = {}
    if text:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(
            str(ROOT / "workshop" / "teaching_model" / "tokenizer.json")
        )
        pieces = {number: tokenizer.decode([number]) for number in IDS}
    requests = []
    for _ in range(max(FEWEST, WAVES * at_once)):
        ids = dice.choices(IDS, k=prompt)
        requests.append(
            {
                "prompt": "".join(pieces[number] for number in ids) if text else ids,
                "max_tokens": answer,
                "min_tokens": answer,
                "ignore_eos": True,
                "temperature": 0,
            }
        )
    return requests


async def load(text: str, as_text: bool) -> dict:
    """Send a load; return its means at the client, and in the server."""
    from workshop.client.client import Client
    from workshop.client.reach import record_of_address
    from workshop.measure import timed

    at_once, prompt, answer = (int(number) for number in text.split("x"))
    client = Client(record_of_address(f"{URL}/v1", "--url"), "model")
    requests = bodies(at_once, prompt, answer, as_text)
    async with timed.TimedSender(client) as sender:
        await timed.send_together(sender, bodies(at_once, 64, 8, as_text)[:at_once], at_once)
        before = sums()
        cpu_s, began_s = time.process_time(), sender.now()
        received = await timed.send_together(sender, requests, at_once)
        client_share = (time.process_time() - cpu_s) / (sender.now() - began_s)
        after = sums()
    outcomes = [timed_answer.outcome() for timed_answer in received]
    return {
        "requests_at_once": at_once,
        "prompt_tokens": prompt,
        "output_tokens": answer,
        "text": as_text,
        "ttft_ms": round(mean(outcome.ttft_ms for outcome in outcomes), 1),
        "ttft_ms_of_the_first_wave": round(mean(o.ttft_ms for o in outcomes[:at_once]), 1),
        "tpot_ms": round(mean(outcome.tpot_ms for outcome in outcomes), 2),
        "server_means_ms": means_ms(before, after),
        "client_processor_share": round(client_share, 3),
    }


def answers() -> bool:
    """Return True once the server says that it is healthy."""
    try:
        return httpx.get(f"{URL}/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def main() -> None:
    """Start the server, send the loads, write the record after each, and stop the server."""
    from workshop.servers.local.stopping import end

    parser = argparse.ArgumentParser(description="Measure what HTTP adds.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="llama-3.1-8b", help="of the catalog")
    parser.add_argument("--loads", default=LOADS)
    parser.add_argument("--text", action="store_true", help="send texts, not token ids")
    options, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        write_model(options.model, folder)
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(folder)]
        command += ["--load-format", "dummy", "--max-model-len", "16384", "--port", str(PORT)]
        command += ["--served-model-name", "model", "--no-enable-prefix-caching", *flags]
        log = options.out.with_suffix(".log")
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        began = time.time()
        try:
            while not answers():
                if server.poll() is not None or time.time() - began > READY_WITHIN_S:
                    sys.exit(f"The server did not start: {log}")
                time.sleep(0.5)
            record = {
                "model": options.model,
                "measured": datetime.now(UTC).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "flags": flags,
                "vllm_version": httpx.get(f"{URL}/version", timeout=10).json()["version"],
                "ready_s": round(time.time() - began, 1),
                "loads": [],
            }
            for text in options.loads.split(","):
                record["loads"].append(asyncio.run(load(text, options.text)))
                options.out.write_text(json.dumps(record))
                print(text, record["loads"][-1], flush=True)
        finally:
            end(server)


if __name__ == "__main__":
    main()

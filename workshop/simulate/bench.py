"""`vllm bench serve` as the client: it sends a load to a server as its trace says, and measures.

`on_a_new_server` starts one for it, as `workshop tune --verify` does for its best choices.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate, count, islice
from pathlib import Path

from workshop.errors import WorkshopError
from workshop.launch import local, records
from workshop.launch.local import supervise
from workshop.launch.record_file import ServerRecord
from workshop.launch.vllm_main import WITHOUT_A_MODEL
from workshop.simulate.arrivals import Arrival
from workshop.simulate.report import PERCENTILES

CHUNK_TOKENS = 16  # that one hash of a trace stands for
MEASURES = ("ttft", "tpot", "e2el")
NAME = "tune-verify"  # of the server


def on_a_new_server(model: str | None, flags: Sequence[str], arrivals: Sequence[Arrival]) -> dict:
    """Start `vllm serve` on this machine, send the requests, stop it; return what `bench` does.

    model: a folder or Hub id, None for the teaching model.
    """
    launch = local.prepare(model, name=NAME, vllm_args=tuple(flags))
    supervise.start(launch)
    try:
        return bench(records.read(NAME), launch.served, launch.model, arrivals)
    finally:
        supervise.stop(NAME)


def trace_of(arrivals: Sequence[Arrival]) -> str:
    """Return the requests in the form of Mooncake's traces, with times in s; no two prompts begin alike."""
    chunks = [-(-one.prompt_tokens // CHUNK_TOKENS) for one in arrivals]
    starts = accumulate(chunks, initial=0)
    rows = (
        {
            "timestamp": one.arrival_s,
            "input_length": one.prompt_tokens,
            "output_length": one.output_tokens,
            "hash_ids": list(islice(count(start), size)),
        }
        for one, start, size in zip(arrivals, starts, chunks, strict=False)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def bench(server: ServerRecord, model: str, tokenizer: str, arrivals: Sequence[Arrival]) -> dict:
    """Send the requests at their times; return p50, p95, p99 and mean in ms of ttft, tpot and e2el, and tokens_per_s.

    Args:
        model: the name that requests give.
        tokenizer: a folder or Hub id.

    Raises:
        WorkshopError: the client failed, or some requests did; with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace, result = Path(folder, "trace.jsonl"), Path(folder, "result.json")
        trace.write_text(trace_of(arrivals), encoding="utf-8")
        options = {
            "--base-url": server.url.removesuffix("/v1"),
            "--model": model,
            "--tokenizer": tokenizer,
            "--dataset-name": "timed_trace",
            "--dataset-path": str(trace),
            "--timed-trace-chunk-hash-size": str(CHUNK_TOKENS),
            "--num-prompts": str(len(arrivals)),
            "--percentile-metrics": ",".join(MEASURES),
            "--metric-percentiles": ",".join(map(str, PERCENTILES)),
            "--result-dir": folder,
            "--result-filename": result.name,
        }
        words = [sys.executable, "-m", "workshop.launch.vllm_main", "bench", "serve", "--save-result", "--disable-tqdm"]
        environment = {**os.environ, **WITHOUT_A_MODEL, "OPENAI_API_KEY": server.api_key or ""}
        argv = [*words, *(word for option in options.items() for word in option)]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", env=environment)
        said = json.loads(result.read_text()) if result.exists() else {"completed": 0}
    if said["completed"] < len(arrivals):
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise WorkshopError(
            f"vllm bench serve had {said['completed']} of {len(arrivals)} answers: {lines[-1][:300] if lines else 'it said nothing.'}",
            f"The server's log is {server.log}.",
        )
    found = {
        name: {**{f"p{p}": said[f"p{p}_{name}_ms"] for p in PERCENTILES}, "mean": said[f"mean_{name}_ms"]}
        for name in MEASURES
    }
    return {**found, "tokens_per_s": said["output_throughput"]}

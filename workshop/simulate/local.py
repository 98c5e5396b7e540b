"""A real server on this machine beside its simulation: its clock is measured, a load is simulated, then sent for real.

`vllm bench serve` may be the client: it sends a load as its trace says, and measures. `on_a_new_server` starts a server
for it, as `workshop tune --verify` does for its best choices.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path

import httpx

from workshop import python_process
from workshop.engine import metrics
from workshop.errors import WorkshopError
from workshop.servers import local, records
from workshop.servers.local import supervise
from workshop.servers.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Rules
from workshop.simulate.report import PERCENTILES, Outcome, percentiles
from workshop.vllm_package import WITHOUT_A_MODEL

MANY = 16  # requests at once, of the second measurement
SHORT, LONG, TOKENS = 16, 200, 48
BUSY = 0.25  # of what the server could answer
SECONDS = 12.0
LEAST_RATE, MOST_RATE = 0.5, 6.0
VOCABULARY = 4000  # ids below are words of the teaching model
CPU_SEQS, CPU_BATCHED_TOKENS = 128, 2048  # vllm serve's on a CPU (0.32.0)
CHUNK_TOKENS = 16  # that one hash of vllm bench's trace stands for
MEASURES = ("ttft", "tpot", "e2el")
NAME = "tune-verify"  # of a new server


@dataclass(frozen=True)
class Comparison:
    """One load, measured and simulated: p50, p95, … in ms of each of ttft, tpot, e2el.

    steps_ms: a step of one request, as it was measured before the load and after it.
    """

    model: str
    requests: int
    rate: float
    steps_ms: tuple[float, float]
    measured: dict[str, dict[str, float]]
    simulated: dict[str, dict[str, float]]

    def to_dict(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        before, after = self.steps_ms
        lines = [
            f"{self.model} here: {self.requests} requests, {self.rate:.1f} a second",
            f"A step of one request took {before:.1f} ms before, {after:.1f} ms after; the simulation takes the mean.",
            f"{'ms':<12}{'measured':>12}{'simulated':>12}",
        ]
        for name, seen in self.measured.items():
            for p in ("p50", "p95"):
                said = self.simulated[name][p]
                lines.append(
                    f"{name} {p:<7}{seen[p]:>12,.1f}{said:>12,.1f}{(said / seen[p] - 1) * 100:>+8.0f} %"
                )
        return "\n".join(lines)


def compare(seed: int = 0, vllm_bench: bool = False) -> Comparison:
    """Measure the clock of the server that runs here, simulate a load on it, and send it the same.

    vllm_bench: `vllm bench serve` sends the load and measures.

    Raises WorkshopError: no server runs here, or it does not answer.
    """
    ready = [one for one in records.own() if one.state == "ready" and one.where == "local"]
    if len(ready) != 1:
        many = ", ".join(one.name for one in ready) or "none"
        remedy = "workshop serve --background starts one; workshop stop NAME ends one."
        raise WorkshopError(f"One server must run here, and there is: {many}.", remedy)
    try:
        return asyncio.run(_compare(ready[0], seed, vllm_bench))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        remedy = f"Its log is {ready[0].log}."
        raise WorkshopError(
            f"{ready[0].url} does not answer as vLLM does ({error!r}).", remedy
        ) from None


async def _compare(server: ServerRecord, seed: int, vllm_bench: bool) -> Comparison:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=120, trust_env=False
    ) as client:
        model = (await client.get("models")).raise_for_status().json()["data"][0]
        talk = _Talk(client, model["id"])
        before, rate = await measure(talk)
        load = drawn(
            rate=rate, seconds=SECONDS, prompt=(SHORT, LONG), output=(8, TOKENS), seed=seed
        )
        if vllm_bench:
            seen = bench(server, model["id"], model["root"], load)
            del seen["tokens_per_s"]
        else:
            seen = _figures(await talk.send(load))
        after, _ = await measure(talk)  # other programs may have taken the processor meanwhile
        clock = Clock(**{name: (before[name] + after[name]) / 2 for name in before})
    said = _figures(process.run(rules(server, model["max_model_len"]), clock, load)["requests"])
    return Comparison(model["id"], len(load), rate, (_step_ms(before), _step_ms(after)), seen, said)


def _figures(requests: list[Outcome]) -> dict[str, dict[str, float]]:
    return {
        name: percentiles([getattr(one, f"{name}_ms") for one in requests]) for name in MEASURES
    }


def _step_ms(clock: dict[str, float]) -> float:
    return Clock(**clock).gpu_ms([(1, 0)])


def rules(server: ServerRecord, max_model_len: int) -> Rules:
    """Return what the CPU's scheduler was told, as its /metrics and vLLM's defaults say."""
    seen = metrics.fetch(server.url, server.api_key)
    return Rules(
        num_gpu_blocks=seen.num_blocks,
        block_size=seen.block_size,
        max_model_len=max_model_len,
        max_num_seqs=CPU_SEQS,
        max_num_batched_tokens=CPU_BATCHED_TOKENS,
        async_scheduling=False,
    )


async def measure(talk: _Talk) -> tuple[dict[str, float], float]:
    """Return the server's clock, as Clock's arguments, and a rate that keeps it busy but not full.

    From whole answers alone, so that it does not matter when a busy client looks: of few and of many tokens, of one
    request and of MANY at once, to short prompts and to long ones.
    """

    async def answer_ms(prompt_tokens: int, tokens: int, at_once: int = 1) -> float:
        """Return the median time of a whole answer, in ms."""
        rounds = [
            await talk.send([Arrival(0.0, prompt_tokens, tokens)] * at_once) for _ in range(4)
        ]
        # the first warms it up
        return statistics.median(one.e2el_ms for each in rounds[1:] for one in each)

    short_ms, many_short_ms, long_ms = [
        await answer_ms(*of) for of in ((SHORT, 2), (SHORT, 2, MANY), (LONG, 2))
    ]
    step_ms = max(0.01, await answer_ms(SHORT, TOKENS) - short_ms) / (TOKENS - 2)
    many_ms = max(step_ms, (await answer_ms(SHORT, TOKENS, MANY) - many_short_ms) / (TOKENS - 2))
    token_ms = max(0.0, long_ms - short_ms) / (LONG - SHORT)
    way_s = max(0.0, short_ms - 2 * step_ms - SHORT * token_ms) / 1e3
    request_ms = (many_ms - step_ms) / (MANY - 1) - token_ms
    clock = {
        "weights_ms": 0.0,
        "token_ms": token_ms,
        "fixed_ms": step_ms - token_ms,
        "request_ms": request_ms,
    }
    clock |= {"way_in_s": way_s / 2, "way_out_s": way_s / 2}
    rate = BUSY * MANY / (many_ms / 1e3 * (8 + TOKENS) / 2)
    return clock, min(MOST_RATE, max(LEAST_RATE, rate))


class _Talk:
    """Sends requests whose lengths are exact, and notes when their tokens come."""

    def __init__(self, client: httpx.AsyncClient, model: str):
        self.client, self.model, self._dice = client, model, random.Random(0)

    async def send(self, load: list[Arrival]) -> list[Outcome]:
        start = time.perf_counter()
        return await asyncio.gather(*(self._one(one, start) for one in load))

    async def _one(self, one: Arrival, start: float) -> Outcome:
        await asyncio.sleep(max(0.0, one.arrival_s - (time.perf_counter() - start)))
        prompt = [self._dice.randrange(5, VOCABULARY) for _ in range(one.prompt_tokens)]
        body = {"model": self.model, "prompt": prompt, "temperature": 0, "stream": True}
        body |= {
            "max_tokens": one.output_tokens,
            "min_tokens": one.output_tokens,
            "ignore_eos": True,
        }
        sent_s, times = time.perf_counter() - start, []
        async with self.client.stream("POST", "completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    times.append(time.perf_counter() - start)
        return Outcome(sent_s, one.prompt_tokens, times[0], times[-1], one.output_tokens, 0, 0)


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
    rows, fresh = [], count()
    for one in arrivals:
        hashes = list(islice(fresh, -(-one.prompt_tokens // CHUNK_TOKENS)))
        lengths = {"input_length": one.prompt_tokens, "output_length": one.output_tokens}
        rows.append({"timestamp": one.arrival_s, **lengths, "hash_ids": hashes})
    return "".join(json.dumps(row) + "\n" for row in rows)


def bench(server: ServerRecord, model: str, tokenizer: str, arrivals: Sequence[Arrival]) -> dict:
    """Send the requests at their times; return p50, p95, p99 and mean in ms of ttft, tpot and e2el, and tokens_per_s.

    model: the name that requests give.
    tokenizer: a folder or Hub id.

    Raises WorkshopError: the client failed, or some requests did; with its last words.
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
        command = python_process.command(
            "workshop.servers.vllm_main", "bench", "serve", "--save-result", "--disable-tqdm"
        )
        for name, value in options.items():
            command += [name, value]
        environment = python_process.environment(
            {**WITHOUT_A_MODEL, "OPENAI_API_KEY": server.api_key or ""}
        )
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment
        )
        said = json.loads(result.read_text()) if result.exists() else {"completed": 0}
    if said["completed"] < len(arrivals):
        line = python_process.last_line(done.stderr or done.stdout) or "it said nothing."
        sentence = f"vllm bench serve had {said['completed']} of {len(arrivals)} answers: {line}"
        raise WorkshopError(sentence, f"The server's log is {server.log}.")
    found = {
        name: {
            **{f"p{p}": said[f"p{p}_{name}_ms"] for p in PERCENTILES},
            "mean": said[f"mean_{name}_ms"],
        }
        for name in MEASURES
    }
    return {**found, "tokens_per_s": said["output_throughput"]}

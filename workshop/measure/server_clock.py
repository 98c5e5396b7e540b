"""Compares a real server on this machine with its simulation.

It measures the server's clock, simulates a load, and sends the same load.

`vllm bench serve` may be the client: it sends the load of a trace, and measures. `on_a_new_server`
starts a server for it; `workshop tune --verify` uses that for its best choices.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from workshop.engine import metrics
from workshop.errors import WorkshopError
from workshop.servers import local, records
from workshop.servers.local import supervise
from workshop.servers.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.bench import client as bench_client
from workshop.simulate.bench.points import MEASURES, Figures, figures_of
from workshop.simulate.clock import Clock
from workshop.simulate.engine import Rules
from workshop.simulate.report import PERCENTILES, Outcome, percentiles

MANY = 16  # requests at once, of the second measurement
SHORT, LONG, TOKENS = 16, 200, 48
BUSY = 0.25  # of what the server could answer
SECONDS = 12.0
LEAST_RATE, MOST_RATE = 0.5, 6.0
VOCABULARY = 4000  # ids below are words of the teaching model
CPU_SEQS, CPU_BATCHED_TOKENS = 128, 2048  # vllm serve's on a CPU (0.32.0)
CHUNK_TOKENS = 16  # that one hash of vllm bench's trace stands for
NAME = "tune-verify"  # of a new server


@dataclass(frozen=True)
class Comparison:
    """One load, measured and simulated.

    Both have p50, p95, … of ttft, tpot and e2el in ms (None without values).

    `steps_ms` is how long a step of one request took before the load and after it.
    """

    model: str
    requests: int
    rate: float
    steps_ms: tuple[float, float]
    measured: Figures
    simulated: Figures

    def to_dict(self) -> dict:
        """Return plain data, as `--json` prints it."""
        return asdict(self)

    def __str__(self) -> str:
        before, after = self.steps_ms
        lines = [
            f"{self.model} here: {self.requests} requests, {self.rate:.1f} a second",
            f"A step of one request took {before:.1f} ms before, {after:.1f} ms after; the simulation takes the mean.",
            f"{'ms':<12}{'measured':>12}{'simulated':>12}",
        ]
        for name in self.measured:
            for p in ("p50", "p95"):
                measured = self.measured[name][p]
                simulated = self.simulated[name][p]
                if measured is None or simulated is None:
                    continue  # no request had a second token
                off_percent = (simulated / measured - 1) * 100
                lines.append(
                    f"{name} {p:<7}{measured:>12,.1f}{simulated:>12,.1f}{off_percent:>+8.0f} %"
                )
        return "\n".join(lines)


def compare(seed: int = 0, vllm_bench: bool = False) -> Comparison:
    """Measure the clock of the server that runs here, simulate a load, and send the same load.

    Args:
        seed: of the load.
        vllm_bench: let `vllm bench serve` send the load and measure.

    Raises:
        WorkshopError: no server runs here, or it does not answer.
    """
    ready = []
    for record in records.own():
        if record.state == "ready" and record.where == "local":
            ready.append(record)
    if len(ready) != 1:
        names = ", ".join(record.name for record in ready) or "none"
        remedy = "workshop serve --background starts one; workshop stop NAME ends one."
        raise WorkshopError(f"One server must run here, and there is: {names}.", remedy)
    server = ready[0]
    try:
        return asyncio.run(_compare(server, seed, vllm_bench))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        remedy = f"Its log is {server.log}."
        raise WorkshopError(
            f"{server.url} does not answer as vLLM does ({error!r}).", remedy
        ) from None


async def _compare(server: ServerRecord, seed: int, vllm_bench: bool) -> Comparison:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, timeout=120, trust_env=False
    ) as client:
        model = (await client.get("models")).raise_for_status().json()["data"][0]
        sender = Sender(client, model["id"])
        before, rate = await measure(sender)
        load = drawn(
            rate=rate, seconds=SECONDS, prompt=(SHORT, LONG), output=(8, TOKENS), seed=seed
        )
        if vllm_bench:
            measured = bench(server, model["id"], model["root"], load)
            del measured["tokens_per_s"]
        else:
            measured = _figures(await sender.send(load))
        after, _ = await measure(sender)  # other programs may have taken the processor meanwhile
    outcome = process.run(rules(server, model["max_model_len"]), _mean(before, after), load)
    if outcome is None:
        raise LookupError("a simulation without a watcher always has a result")
    return Comparison(
        model=model["id"],
        requests=len(load),
        rate=rate,
        steps_ms=(before.gpu_ms([(1, 0)]), after.gpu_ms([(1, 0)])),
        measured=measured,
        simulated=_figures(outcome["requests"]),
    )


def _figures(requests: list[Outcome]) -> Figures:
    figures = {}
    for name in MEASURES:
        times_ms = [getattr(outcome, f"{name}_ms") for outcome in requests]
        figures[name] = percentiles(times_ms)
    return figures


def _mean(before: Clock, after: Clock) -> Clock:
    """Return the mean of two measured clocks."""
    return Clock(
        weights_ms=0.0,
        token_ms=(before.token_ms + after.token_ms) / 2,
        fixed_ms=(before.fixed_ms + after.fixed_ms) / 2,
        request_ms=(before.request_ms + after.request_ms) / 2,
        way_in_s=(before.way_in_s + after.way_in_s) / 2,
        way_out_s=(before.way_out_s + after.way_out_s) / 2,
    )


def rules(server: ServerRecord, max_model_len: int) -> Rules:
    """Return the rules of the CPU server's scheduler, from its /metrics and vLLM's defaults.

    Raises WorkshopError: /metrics does not say how many blocks there are.
    """
    published = metrics.fetch(server.url, server.api_key)
    if published.num_blocks is None or published.block_size is None:
        raise WorkshopError(
            f"/metrics of {server.url} does not say how many blocks its KV cache has.",
            "Serve with a vLLM that publishes cache_config_info.",
        )
    return Rules(
        num_gpu_blocks=published.num_blocks,
        block_size=published.block_size,
        max_model_len=max_model_len,
        max_num_seqs=CPU_SEQS,
        max_num_batched_tokens=CPU_BATCHED_TOKENS,
        async_scheduling=False,
    )


async def measure(sender: Sender) -> tuple[Clock, float]:
    """Measure the server's clock, and a rate (requests a second) that keeps it busy but not full.

    Only whole answers are timed, so that a busy client measures the same: answers of few and of
    many tokens, of one request and of MANY at once, to short prompts and to long ones.
    """

    async def answer_ms(prompt_tokens: int, tokens: int, at_once: int = 1) -> float:
        """Return the median time of a whole answer, in ms."""
        load = [Arrival(0.0, prompt_tokens, tokens)] * at_once
        await sender.send(load)  # warms the server up
        times_ms = []
        for _ in range(3):
            outcomes = await sender.send(load)
            times_ms += [outcome.e2el_ms for outcome in outcomes]
        return statistics.median(times_ms)

    short_ms = await answer_ms(SHORT, 2)
    many_short_ms = await answer_ms(SHORT, 2, MANY)
    long_ms = await answer_ms(LONG, 2)
    step_ms = max(0.01, await answer_ms(SHORT, TOKENS) - short_ms) / (TOKENS - 2)
    many_ms = max(step_ms, (await answer_ms(SHORT, TOKENS, MANY) - many_short_ms) / (TOKENS - 2))
    token_ms = max(0.0, long_ms - short_ms) / (LONG - SHORT)
    way_s = max(0.0, short_ms - 2 * step_ms - SHORT * token_ms) / 1e3
    request_ms = (many_ms - step_ms) / (MANY - 1) - token_ms
    clock = Clock(
        weights_ms=0.0,
        token_ms=token_ms,
        fixed_ms=step_ms - token_ms,
        request_ms=request_ms,
        way_in_s=way_s / 2,
        way_out_s=way_s / 2,
    )
    rate = BUSY * MANY / (many_ms / 1e3 * (8 + TOKENS) / 2)
    return clock, min(MOST_RATE, max(LEAST_RATE, rate))


class Sender:
    """Sends requests of exact lengths, and records when their tokens arrive."""

    def __init__(self, client: httpx.AsyncClient, model: str):
        self.client = client
        self.model = model
        self._dice = random.Random(0)

    async def send(self, load: list[Arrival]) -> list[Outcome]:
        """Send all requests, each at its time; return their outcomes in the same order."""
        start = time.perf_counter()
        return await asyncio.gather(*(self._send_one(arrival, start) for arrival in load))

    async def _send_one(self, arrival: Arrival, start: float) -> Outcome:
        await asyncio.sleep(max(0.0, arrival.arrival_s - (time.perf_counter() - start)))
        prompt = [self._dice.randrange(5, VOCABULARY) for _ in range(arrival.prompt_tokens)]
        body = {
            "model": self.model,
            "prompt": prompt,
            "temperature": 0,
            "stream": True,
            "max_tokens": arrival.output_tokens,
            "min_tokens": arrival.output_tokens,
            "ignore_eos": True,
        }
        sent_s = time.perf_counter() - start
        times = []
        async with self.client.stream("POST", "completions", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                    times.append(time.perf_counter() - start)
        return Outcome(
            arrival_s=sent_s,
            prompt_tokens=arrival.prompt_tokens,
            first_s=times[0],
            last_s=times[-1],
            output_tokens=arrival.output_tokens,
        )


def on_a_new_server(model: str | None, flags: Sequence[str], arrivals: Sequence[Arrival]) -> dict:
    """Start `vllm serve` on this machine, send the requests, and stop it.

    Return what `bench` returns.

    Args:
        model: a folder or Hub id, None for the teaching model.
        flags: of vllm serve.
    """
    launch = local.prepare(model, name=NAME, vllm_args=tuple(flags))
    supervise.start(launch)
    try:
        return bench(_record(NAME), launch.served, launch.model, arrivals)
    finally:
        supervise.stop(NAME)


def _record(name: str) -> ServerRecord:
    record = records.read(name)
    if record is None:
        raise WorkshopError(f"The server {name!r} is gone.", "Run the command again.")
    return record


def trace_of(arrivals: Sequence[Arrival]) -> str:
    """Return the requests as a trace of Mooncake's form, with times in s.

    A hash id stands for CHUNK_TOKENS tokens. Prompts that begin with the same pieces share the ids
    of the whole chunks in them; all other chunks are different.
    """
    lines = []
    new_ids = itertools.count()
    shared_ids: dict[tuple[int | None, tuple[str, ...]], int] = {}
    for arrival in arrivals:
        hash_ids: list[int] = []
        before = None
        for chunk in _shared_chunks(arrival):
            key = (before, chunk)
            if key not in shared_ids:
                shared_ids[key] = next(new_ids)
            before = shared_ids[key]
            hash_ids.append(before)
        chunks = -(-arrival.prompt_tokens // CHUNK_TOKENS)
        hash_ids += itertools.islice(new_ids, chunks - len(hash_ids))
        row = {
            "timestamp": arrival.arrival_s,
            "input_length": arrival.prompt_tokens,
            "output_length": arrival.output_tokens,
            "hash_ids": hash_ids,
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def _shared_chunks(arrival: Arrival) -> Iterator[tuple[str, ...]]:
    """Yield, for each whole chunk of the prompt's named pieces, the piece of each of its tokens."""
    names = itertools.chain.from_iterable(
        itertools.repeat(name, tokens) for name, tokens in arrival.named_pieces
    )
    while True:
        chunk = tuple(itertools.islice(names, CHUNK_TOKENS))
        if len(chunk) < CHUNK_TOKENS:
            return
        yield chunk


def bench(server: ServerRecord, model: str, tokenizer: str, arrivals: Sequence[Arrival]) -> dict:
    """Send the requests at their times with `vllm bench serve`.

    Args:
        model: the name that requests give.
        tokenizer: a folder or Hub id.

    Returns:
        p50, p95, p99 and mean in ms of ttft, tpot and e2el, and tokens_per_s.

    Raises:
        WorkshopError: the client or some of the requests failed; with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.jsonl")
        trace.write_text(trace_of(arrivals), encoding="utf-8")
        options = {
            "--model": model,
            "--tokenizer": tokenizer,
            "--dataset-name": "timed_trace",
            "--dataset-path": str(trace),
            "--timed-trace-chunk-hash-size": str(CHUNK_TOKENS),
            "--num-prompts": str(len(arrivals)),
            "--percentile-metrics": ",".join(MEASURES),
            "--metric-percentiles": ",".join(map(str, PERCENTILES)),
        }
        result = bench_client.run(server, options).result
    return {**figures_of(result), "tokens_per_s": result["output_throughput"]}

"""Compares a real server on this machine with its simulation.

It measures the server's clock, simulates a load, and sends the same load.

`vllm bench serve` may be the client: it sends the load of a trace, and measures.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.client.client import Client
from workshop.errors import WorkshopError
from workshop.measure import conversations, server_clock, timed, vllm_client
from workshop.measure.points import MEASURES, Figures, figures_of
from workshop.measure.prediction import percentiles_of
from workshop.servers import records
from workshop.servers.records.record_file import ServerRecord
from workshop.simulate import process
from workshop.simulate.arrivals import Arrival, drawn
from workshop.simulate.clock import Clock
from workshop.simulate.report import PERCENTILES

SECONDS = 12.0
CHUNK_TOKENS = 16  # that one hash of vllm bench's trace stands for


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
    client = Client(server)
    (model, *_) = client.models()
    before, rate = timed.run(server_clock.measure(client))
    prompt, output = (server_clock.SHORT, server_clock.LONG), (8, server_clock.TOKENS)
    load = drawn(rate=rate, seconds=SECONDS, prompt=prompt, output=output, seed=seed)
    if vllm_bench:
        measured = bench(server, model["id"], model["root"], load)
        del measured["tokens_per_s"]
    else:
        measured = percentiles_of(timed.run(conversations.send(client, load)))
    # other programs may have taken the processor meanwhile
    after, _ = timed.run(server_clock.measure(client))
    rules = server_clock.rules(server, model["max_model_len"])
    outcome = process.run(rules, _mean(before, after), load)
    if outcome is None:
        raise LookupError("a simulation without a watcher always has a result")
    return Comparison(
        model=model["id"],
        requests=len(load),
        rate=rate,
        steps_ms=(before.gpu_ms([(1, 0)]), after.gpu_ms([(1, 0)])),
        measured=measured,
        simulated=percentiles_of(outcome["requests"]),
    )


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


def trace_of(arrivals: Sequence[Arrival]) -> str:
    """Return the requests as a trace of Mooncake's form, with times in s.

    A hash id stands for CHUNK_TOKENS tokens. All chunks are different: no two prompts share one.
    """
    lines = []
    new_ids = itertools.count()
    for arrival in arrivals:
        chunks = -(-arrival.prompt_tokens // CHUNK_TOKENS)
        row = {
            "timestamp": arrival.arrival_s,
            "input_length": arrival.prompt_tokens,
            "output_length": arrival.output_tokens,
            "hash_ids": list(itertools.islice(new_ids, chunks)),
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


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
        with vllm_client.Client(server) as sender:
            result = sender.run(options).result
    return {**figures_of(result), "tokens_per_s": result["output_throughput"]}

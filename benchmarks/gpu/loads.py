"""Record open-loop loads on the GPUs of this host: one engine as `vllm serve` has it, every request's times.

    python benchmarks/gpu/loads.py llama-3.1-8b OUT.json [--loads benchmarks/simulate/loads.json] [--only light,burst]
        [--tensor-parallel-size T] [--max-model-len L] [--extra '{"enforce_eager": true}']
        [--replicas 2 | --replicas 1 --prefill-replicas 1] [--memory [--zero-biases]] [--energy]

benchmarks/simulate/shapes.py says what a load is and draws its requests, so the simulation gets the very same. An
agent's request waits for the answer before it, which is a part of its prompt. Times are taken around
AsyncLLM.generate: no HTTP, no detokenizing. A row: arrival_s, first_token_s, finished_s, prompt tokens, output tokens. --energy adds
what NVML's counters say of each load. Weights are dummies, so there
is nothing to download. The record is written after each load: what was measured stays, whatever comes. Several replicas have a
GPU each and get the requests in turn; with prefill replicas, those read the prompts and NIXL takes the KV cache from
there to where the answers are made. --memory writes OUT.rank0.json, …: what each GPU's memory profiling saw, in bytes.
--zero-biases is for a mixture of experts with biases, whose dummies are as large as its dummy weights. Needs vLLM with CUDA.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
SIMULATE = HERE.parent / "simulate"
sys.path[:0] = [str(HERE), str(SIMULATE), str(HERE.parents[1])]
import shapes  # noqa: E402
from measure import ENVIRONMENT, model_folder  # noqa: E402

from workshop.servers.host.energy import taken_joules  # noqa: E402
from workshop.simulate.arrivals import Arrival, drawn  # noqa: E402
from workshop.simulate.report import percentiles  # noqa: E402
from workshop.workarounds import cpu_package_name  # noqa: E402

cpu_package_name.apply()  # also in the processes that vLLM starts: the CPU's build, to try this script

LOADS = SIMULATE / "loads.json"
LONGEST_S = 120.0  # of one load
# (requests at once, prompt tokens): kernels are compiled and memory is taken before anything is measured
WARM_UP = ((1, 200), (8, 200), (64, 200), (1, 600), (2, 1000), (8, 1024), (1, 4000))


class Texts:
    """The token ids of a load's prompts: pieces of one name are the same ids, and answers are what the model said."""

    def __init__(self, seed: int, vocabulary: int):
        self.dice = random.Random(seed)
        self.vocabulary = vocabulary
        self.pieces: dict[str, list[int]] = {}

    def drawn(self, count: int) -> list[int]:
        return [self.dice.randrange(5, self.vocabulary) for _ in range(count)]

    def prompt(self, arrival: Arrival) -> list[int]:
        """Return the ids of a request's prompt; an answer in it must have come."""
        ids: list[int] = []
        for name, length in arrival.pieces:
            piece = self.pieces.setdefault(name, [])
            piece += self.drawn(length - len(piece))
            ids += piece[:length]
        return ids + self.drawn(arrival.prompt_tokens - len(ids))


class Client:
    """Sends requests to one engine and notes when their tokens come, in seconds since the load began."""

    def __init__(self, llm):
        self.llm, self.gaps_s, self.sent = llm, [], 0
        self.vocabulary = llm.vllm_config.model_config.get_vocab_size()

    async def send(self, arrival: Arrival, ids: list[int], start: float) -> tuple[list, list[int]]:
        """Send one request at its time; return its row and the ids of the answer."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await asyncio.sleep(max(0.0, arrival.arrival_s - (time.perf_counter() - start)))
        tokens = arrival.output_tokens
        began, first, last = time.perf_counter() - start, None, None
        answer: list[int] = []
        sampling = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            min_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.sent += 1
        async for part in self.llm.generate(
            {"prompt_token_ids": ids}, sampling, request_id=str(self.sent)
        ):
            now = time.perf_counter() - start
            if first is None:
                first = now
            else:
                self.gaps_s.append(now - last)
            last = now
            answer += part.outputs[0].token_ids
        row = [round(began, 5), round(first, 5), round(last, 5), len(ids), len(answer)]
        return row, answer

    async def conversation(
        self, turns: list[Arrival], texts: Texts, ids: list[int], start: float
    ) -> list[list]:
        """Send the requests of one client, each when it has thought about the answer before; return their rows."""
        rows = []
        for turn in turns:
            if rows:
                await asyncio.sleep(turn.think_s)
                ids = texts.prompt(turn)
                turn = replace(turn, arrival_s=0.0)
            row, answer = await self.send(turn, ids, start)
            if turn.answer:
                texts.pieces[turn.answer] = answer
            rows.append(row)
        return rows

    async def load(self, arrivals: list[Arrival], seed: int) -> list[list]:
        """Send all requests; return their rows in the order of `arrivals`."""
        self.gaps_s, texts = [], Texts(seed, self.vocabulary)
        conversations = list(followed(arrivals))
        # drawn before the clock starts: to draw thousands of ids takes milliseconds
        first_prompts = [texts.prompt(turns[0]) for turns in conversations]
        start = time.perf_counter()
        tasks = []
        for turns, ids in zip(conversations, first_prompts, strict=True):
            tasks.append(self.conversation(turns, texts, ids, start))
        rows = []
        for part in await asyncio.wait_for(asyncio.gather(*tasks), LONGEST_S):
            rows += part
        return rows


def followed(arrivals: list[Arrival]) -> Iterator[list[Arrival]]:
    """Yield each client's requests: one alone, or those of a session, which stand one after the other."""
    turns: list[Arrival] = []
    for arrival in arrivals:
        if arrival.follows is None and turns:
            yield turns
            turns = []
        turns.append(arrival)
    yield turns


def of_sessions(load: dict, arrivals: list[Arrival], rows: list[list]) -> dict:
    """Return the rows of agents in the order in which they were sent, each with its session and its turn."""
    places = []
    for session, turns in enumerate(followed(arrivals)):
        places += [[session, turn] for turn in range(len(turns))]
    sent = sorted(zip(rows, places, strict=True))
    return {
        "system": load["agents"]["system"],
        "sessions": [place for _, place in sent],
        "rows": [row for row, _ in sent],
    }


def summary(rows: list[list], gaps_s: list[float]) -> dict:
    """Return tokens/s and percentiles in ms."""

    def in_ms(name: str, values: list[float]) -> dict:
        figures = percentiles(values)
        return {
            f"{name}_ms_{p}": figures[p] and round(figures[p] * 1e3, 2)
            for p in ("p50", "p95", "p99")
        }

    took = max(row[2] for row in rows)
    return {
        "requests": len(rows),
        "took_s": round(took, 2),
        "tokens_per_s": round(sum(row[4] for row in rows) / took, 1),
        **in_ms("ttft", [first - at for at, first, *_ in rows]),
        **in_ms(
            "tpot", [(last - first) / (made - 1) for _, first, last, _, made in rows if made > 1]
        ),
        **in_ms("itl", gaps_s),
    }


class Servers:
    """Engines behind one `generate`: those that answer take turns; those that prefill do so, too."""

    def __init__(self, answering: list, prefilling: list):
        self.all, self.vllm_config = [*prefilling, *answering], answering[0].vllm_config
        self.answering, self.prefilling = itertools.cycle(answering), itertools.cycle(prefilling)

    async def generate(self, prompt: dict, sampling, request_id: str):
        """Yield what the answering engine says; the first token comes from there, as with vLLM's example proxy."""
        if prefill := next(self.prefilling, None):
            prefill_sampling = sampling.clone()
            prefill_sampling.max_tokens = prefill_sampling.min_tokens = 1
            prefill_sampling.extra_args = {
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}
            }
            async for part in prefill.generate(
                prompt, prefill_sampling, request_id=f"prefill-{request_id}"
            ):
                handed_over = part.kv_transfer_params
            sampling.extra_args = {"kv_transfer_params": handed_over}
        async for part in next(self.answering).generate(prompt, sampling, request_id=request_id):
            yield part


def started(options: argparse.Namespace, model: Path) -> Servers:
    """Start the engines, each on its own GPUs where there are several."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    extra, count = dict(options.extra), options.replicas + options.prefill_replicas
    if options.memory:
        extra["worker_extension_cls"] = "measure_worker.MemoryReport"
    if options.prefill_replicas:
        extra["kv_transfer_config"] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}

    def engine(number: int) -> AsyncLLM:
        if count > 1:  # the engine's processes inherit both
            os.environ["CUDA_VISIBLE_DEVICES"] = str(number)
            os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(5600 + 10 * number)
        args = AsyncEngineArgs(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            tensor_parallel_size=options.tensor_parallel_size,
            max_model_len=options.max_model_len,
            **extra,
        )
        return AsyncLLM.from_engine_args(args, usage_context=UsageContext.OPENAI_API_SERVER)

    engines = [engine(number) for number in range(count)]
    return Servers(engines[options.prefill_replicas :], engines[: options.prefill_replicas])


async def record(options: argparse.Namespace) -> None:
    """Start the engines, run the loads one after the other, and write the record after each."""
    import vllm

    began = time.time()
    name = f"{options.model}-{hashlib.sha256(json.dumps(options.config).encode()).hexdigest()[:8]}"
    # vLLM finds what it compiled by the model's path
    models_folder = Path(tempfile.gettempdir()) / "loads"
    llm = started(
        options,
        model_folder(
            {"name": name, "model": options.model, "config": options.config}, models_folder
        ),
    )
    scheduler, cache = llm.vllm_config.scheduler_config, llm.vllm_config.cache_config
    report = {
        "model": options.model,
        "tp": options.tensor_parallel_size,
        "replicas": options.replicas,
        "prefill_replicas": options.prefill_replicas,
        "max_model_len": options.max_model_len,
        "extra": options.extra,
        "config": options.config,
        "vllm_version": vllm.__version__,
        "gpu": gpu_name(),
        "cpu": cpu_name(),
        "start_s": round(time.time() - began, 1),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "async_scheduling": getattr(scheduler, "async_scheduling", None),
        "kv_blocks": cache.num_gpu_blocks
        // llm.vllm_config.parallel_config.data_parallel_size,  # of each engine
        "block_size": cache.block_size,
        "kv_cache_tokens": getattr(cache, "kv_cache_size_tokens", None),  # as its log says
        "workloads": [],
    }
    if options.zero_biases:
        report["zero_biases"] = await llm.all[0].collective_rpc("zero_biases")
    client = Client(llm)
    for number, (count, tokens) in enumerate(WARM_UP):
        if tokens + 16 > options.max_model_len:
            continue
        await client.load(drawn(burst=count, prompt=(tokens, tokens), output=(16, 16)), -1 - number)
    for load in options.loads:
        arrivals = shapes.requests(load)
        joules = taken_joules() if options.energy else 0.0
        try:
            rows = await client.load(arrivals, load.get("seed", 0))
            result = {**load, **summary(rows, client.gaps_s), "rows": rows}
            if options.energy:
                result["joules_per_token"] = (taken_joules() - joules) / sum(r[4] for r in rows)
            if "agents" in load:
                result |= of_sessions(load, arrivals, rows)
        except Exception as error:  # one load that fails leaves the others
            result = {**load, "failed": f"{type(error).__name__}: {error}"[:500]}
        report["workloads"].append(result)
        shown = {k: v for k, v in result.items() if k not in ("rows", "sessions")}
        print("LOAD", json.dumps(shown), flush=True)
        options.out.write_text(json.dumps(report))
    for engine in llm.all:
        engine.shutdown()


def gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "none"


def cpu_name() -> str:
    """The host decides how soon a step starts."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a catalog name, or a folder with a config.json")
    parser.add_argument("out", type=Path)
    parser.add_argument("--loads", type=Path, nargs="+", default=[LOADS])
    parser.add_argument("--only", help="names of loads, with commas")
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--prefill-replicas", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument(
        "--extra", type=json.loads, default={}, help="more arguments of the engine, as JSON"
    )
    parser.add_argument(
        "--config", type=json.loads, default={}, help="fields of config.json that differ, as JSON"
    )
    parser.add_argument(
        "--memory", action="store_true", help="also what the memory profiling of each GPU saw"
    )
    parser.add_argument(
        "--energy", action="store_true", help="also joules per output token of each load, by NVML"
    )
    parser.add_argument(
        "--zero-biases", action="store_true", help="with --memory: so that tokens differ in experts"
    )
    options = parser.parse_args()
    loads = []
    for path in options.loads:
        loads += json.loads(path.read_text())
    options.loads = loads
    if options.only:
        options.loads = [load for load in options.loads if load["name"] in options.only.split(",")]
    os.environ.update(ENVIRONMENT)
    os.environ["WORKSHOP_MEASURE_OUT"] = str(options.out.with_suffix(""))
    os.environ["PYTHONPATH"] = (
        f"{HERE}:{os.environ.get('PYTHONPATH', '')}"  # measure_worker, in the engine's processes
    )
    asyncio.run(record(options))


if __name__ == "__main__":
    main()

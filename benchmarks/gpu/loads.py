"""Record open-loop loads on the GPUs of this host: one engine as `vllm serve` has it, every request's times.

    python benchmarks/gpu/loads.py llama-3.1-8b OUT.json [--loads benchmarks/simulate/loads.json] [--only light,burst]
        [--tensor-parallel-size T] [--max-model-len L] [--extra '{"enforce_eager": true}']
        [--replicas 2 | --replicas 1 --prefill-replicas 1] [--memory [--zero-biases]]

A load is {"name", "rate" and "seconds", or "burst", "prompt", "output", "prefix", "seed"}; its requests are drawn by
workshop.simulate.arrivals, so the simulation gets the very same. Times are taken around AsyncLLM.generate: no HTTP, no
detokenizing. A row: arrival_s, first_token_s, finished_s, prompt tokens, output tokens. Weights are dummies, so there
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
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
from measure import ENVIRONMENT, model_folder  # noqa: E402

from workshop.simulate.arrivals import Arrival, drawn, prompts  # noqa: E402
from workshop.simulate.report import percentiles  # noqa: E402
from workshop.workarounds import cpu_package_name  # noqa: E402

cpu_package_name.apply()  # also in the processes that vLLM starts: the CPU's build, to try this script

LOADS = HERE.parent / "simulate" / "loads.json"
LONGEST_S = 120.0  # of one load
# (requests at once, prompt tokens): kernels are compiled and memory is taken before anything is measured
WARM_UP = ((1, 200), (8, 200), (64, 200), (1, 600), (2, 1000), (8, 1024), (1, 4000))


def token_ids(arrivals: list[Arrival], seed: int, vocabulary: int) -> list[list[int]]:
    """Return prompts that share what the load says, of ids that the model has."""
    dice = random.Random(seed)
    ids: dict[int, int] = {}
    return [
        [ids.setdefault(one, dice.randrange(5, vocabulary)) for one in prompt]
        for prompt in prompts(arrivals)
    ]


class Client:
    """Sends requests to one engine and notes when their tokens come, in seconds since the load began."""

    def __init__(self, llm):
        self.llm, self.gaps_s, self.sent = llm, [], 0
        self.vocabulary = llm.vllm_config.model_config.get_vocab_size()

    async def one(self, arrival_s: float, ids: list[int], tokens: int, start: float) -> list:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        await asyncio.sleep(max(0.0, arrival_s - (time.perf_counter() - start)))
        began, first, last, made = time.perf_counter() - start, None, None, 0
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
            made += len(part.outputs[0].token_ids)
        return [round(began, 5), round(first, 5), round(last, 5), len(ids), made]

    async def load(self, arrivals: list[Arrival], seed: int) -> list[list]:
        self.gaps_s, ids = [], token_ids(arrivals, seed, self.vocabulary)
        start = time.perf_counter()
        jobs = (
            self.one(a.arrival_s, i, a.output_tokens, start)
            for a, i in zip(arrivals, ids, strict=True)
        )
        return await asyncio.wait_for(asyncio.gather(*jobs), LONGEST_S)


def summary(rows: list[list], gaps_s: list[float]) -> dict:
    """Return tokens/s and percentiles in ms."""

    def in_ms(name: str, values: list[float]) -> dict:
        found = percentiles(values)
        return {
            f"{name}_ms_{p}": found[p] and round(found[p] * 1e3, 2) for p in ("p50", "p95", "p99")
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
            one = sampling.clone()
            one.max_tokens = one.min_tokens = 1
            one.extra_args = {
                "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}
            }
            async for part in prefill.generate(prompt, one, request_id=f"prefill-{request_id}"):
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

    def one(number: int) -> AsyncLLM:
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

    engines = [one(number) for number in range(count)]
    return Servers(engines[options.prefill_replicas :], engines[: options.prefill_replicas])


async def record(options: argparse.Namespace) -> None:
    """Start the engines, run the loads one after the other, and write the record after each."""
    import vllm

    began = time.time()
    name = f"{options.model}-{hashlib.sha256(json.dumps(options.config).encode()).hexdigest()[:8]}"
    kept = Path(tempfile.gettempdir()) / "loads"  # vLLM finds what it compiled by the model's path
    llm = started(
        options,
        model_folder({"name": name, "model": options.model, "config": options.config}, kept),
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
        spec = {key: value for key, value in load.items() if key != "name"}
        try:
            rows = await client.load(drawn(**spec), spec.get("seed", 0))
            result = {**load, **summary(rows, client.gaps_s), "rows": rows}
        except Exception as error:  # one load that fails leaves the others
            result = {**load, "failed": f"{type(error).__name__}: {error}"[:500]}
        report["workloads"].append(result)
        print("LOAD", json.dumps({k: v for k, v in result.items() if k != "rows"}), flush=True)
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
    parser.add_argument("--loads", type=Path, default=LOADS)
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
        "--zero-biases", action="store_true", help="with --memory: so that tokens differ in experts"
    )
    options = parser.parse_args()
    options.loads = json.loads(options.loads.read_text())
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

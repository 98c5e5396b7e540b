"""Measure what a trace costs: one engine, its steps timed with a trace and without in turn.

    python benchmarks/trace_cost.py [--rounds 20] [--requests 1 16 64]

A round is a load of so many requests at once. Rounds with and without alternate in one process, and the medians of
their steps are compared in pairs, so that what else the machine does meets both. Prints a line for each load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from operator import truediv
from pathlib import Path

from workshop.engine.trace_writer import Recorder, Writer
from workshop.simulate.engine import CONFIG, ENVIRONMENT

TOKENS = 64  # of each answer


def steps_s(engine, requests: int, number: int) -> tuple[float, float]:
    """Return the medians of a load's steps, prefills left out: by the clock, and of this thread's processor time."""
    from vllm import SamplingParams

    sampling, times_s = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True), []
    for request in range(requests):
        engine.add_request(
            f"{number}-{request}", {"prompt_token_ids": [5 + request, *range(100, 150)]}, sampling
        )
    while engine.has_unfinished_requests():
        began = time.perf_counter(), time.thread_time()
        engine.step()
        times_s.append((time.perf_counter() - began[0], time.thread_time() - began[1]))
    return tuple(map(statistics.median, zip(*times_s[3:-1], strict=True)))


def without(scheduler) -> None:
    """Take a Recorder's wrappers off again."""
    pool = scheduler.kv_cache_manager.block_pool
    for owner in (scheduler, pool, pool.free_block_queue):
        for name in [name for name, value in vars(owner).items() if hasattr(value, "__wrapped__")]:
            delattr(owner, name)


def measured(engine, scheduler, file: Path, requests: int, rounds: int) -> dict:
    """Return the medians of steps with and without a trace; the first pair of rounds warms up."""
    took: dict[str, list[tuple[float, float]]] = {"with": [], "without": []}
    for number in range(2 * rounds + 2):
        traced = number % 4 in (1, 2)  # without, with, with, without, …
        if traced:
            writer = Writer(str(file))
            Recorder(scheduler, writer.write, time.monotonic)
        medians = steps_s(engine, requests, number)
        if traced:
            without(scheduler)
            writer.close()
        if number > 1:
            took["with" if traced else "without"].append(medians)
    clock_s, processor_s = ({key: [pair[i] for pair in took[key]] for key in took} for i in (0, 1))
    return {
        "requests": requests,
        "rounds": rounds,
        "tokens_per_s": {key: round(requests / statistics.median(clock_s[key])) for key in took},
        "processor_ms_a_step": {
            key: round(statistics.median(processor_s[key]) * 1e3, 3) for key in took
        },
        "slower_percent": {
            name: round(
                (statistics.median(map(truediv, seconds["with"], seconds["without"])) - 1) * 100, 2
            )
            for name, seconds in (("by the clock", clock_s), ("processor", processor_s))
        },
        "bytes_a_step": round(statistics.mean(map(len, file.read_bytes().splitlines()))),
    }


def main() -> None:
    """Start the engine, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64])
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from workshop.workarounds import cpu_package_name

    cpu_package_name.apply()
    from vllm import LLM

    engine = LLM(model=str(CONFIG), enforce_eager=True, max_model_len=2048).llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    with tempfile.TemporaryDirectory() as folder:
        for requests in options.requests:
            print(
                json.dumps(
                    measured(engine, scheduler, Path(folder) / "trace", requests, options.rounds)
                ),
                flush=True,
            )
    os._exit(0)  # vLLM's own threads are of no more use


if __name__ == "__main__":
    main()

"""Time a running engine: one stream, batches, and steps that prefill while others decode."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kernels import kernel_times


def prompt(number: int, tokens: int) -> dict:
    """Return a prompt of so many tokens, another one for each number."""
    return {"prompt_token_ids": [(7 * number + i) % 1000 + 10 for i in range(tokens)]}


def sampling(new_tokens: int):
    """Return vLLM's settings for exactly so many tokens."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)


def seconds(llm, prompts: int, prompt_tokens: int, new_tokens: int) -> float:
    """Return what so many prompts at once take."""
    batch = [prompt(number, prompt_tokens) for number in range(prompts)]
    begin = time.perf_counter()
    llm.generate(batch, sampling(new_tokens), use_tqdm=False)
    return time.perf_counter() - begin


def speeds(llm, batches: list[int], energy: Callable[[], float] | None = None) -> dict:
    """Measure the first token (32-token prompt), 256 tokens of one stream, and batches of 256-token prompts.

    With `energy`, which returns the joules that the GPUs have taken so far, also joules per generated token.
    """
    seconds(llm, 1, 32, 16)
    ttft = min(seconds(llm, 1, 32, 1) for _ in range(3))
    before = energy() if energy else 0.0
    runs = [round(256 / (seconds(llm, 1, 32, 257) - ttft), 2) for _ in range(2)]
    after = energy() if energy else 0.0
    result = {
        "ttft_ms_32": round(1000 * ttft, 2),
        "single_tok_s": max(runs),
        "single_tok_s_runs": runs,
    }
    if energy:
        result["single_joules_per_token"] = round((after - before) / (2 * 257), 4)
    for n in batches:
        seconds(llm, n, 256, 4)
        whole, first = seconds(llm, n, 256, 129), seconds(llm, n, 256, 1)
        result[f"batch{n}_tok_s"] = round(n * 128 / seconds(llm, n, 256, 128))
        result[f"batch{n}_decode_tok_s"] = round(n * 128 / (whole - first))
        if energy:
            before = energy()
            seconds(llm, n, 256, 128)
            result[f"batch{n}_joules_per_token"] = round((energy() - before) / (n * 128), 4)
    return result


def first_tokens(llm, lengths: list[int]) -> dict:
    """Measure the first token after a lone prompt of each length, in ms: the best of three."""
    result = {}
    for length in lengths:
        seconds(llm, 1, length, 1)
        best = min(seconds(llm, 1, length, 1) for _ in range(3))
        result[f"ttft_ms_{length}"] = round(1000 * best, 2)
    return result


@contextlib.contextmanager
def profiled(llm, folder: Path) -> Iterator[None]:
    """Trace what is done inside into the folder, which is emptied."""
    for file in folder.rglob("*.json"):
        file.unlink()
    llm.start_profile()
    yield
    llm.stop_profile()


def mixed_steps(
    llm, decoding: int, prompts: int, tokens: int, trace: Path | None, steps: int = 12
) -> dict:
    """Measure steps that all read `prompts` prompts of `tokens` tokens while `decoding` requests get one token each.

    Returns gaps_ms between the engine's answers and their median; with the profiler's folder also kernel_times of
    further steps: the profiler slows the host, not the GPU.
    """
    engine, sent = llm.llm_engine, itertools.count()

    def add(count: int, length: int, new_tokens: int) -> None:
        for number in itertools.islice(sent, count):
            engine.add_request(f"mixed-{number}", prompt(number, length), sampling(new_tokens))

    def run(count: int) -> list[float]:
        times = []
        for _ in range(count):
            add(prompts, tokens, 1)
            engine.step()
            times.append(time.perf_counter())
        return [1000 * (b - a) for a, b in itertools.pairwise(times)]

    add(decoding, 256, 200)
    for _ in range(12 if decoding else 0):  # until the first prompts are read
        engine.step()
    run(4)
    gaps = run(steps)
    result = {"step": [decoding, prompts, tokens], "ms": round(statistics.median(gaps), 3)}
    result["gaps_ms"] = [round(gap, 2) for gap in gaps]
    if trace:
        with profiled(llm, trace):
            run(steps)
        result["kernels"] = kernel_times(trace, steps - 4)
    while engine.has_unfinished_requests():
        engine.step()
    return result

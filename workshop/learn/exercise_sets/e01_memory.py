"""Exercises of notebook 01: how much memory a model needs, and where it goes."""

from __future__ import annotations

from dataclasses import fields

from workshop.learn.judging import Exercise, close_to, exactly, not_a_number
from workshop.learn.widgets.memory.case import Case, memory
from workshop.plan.choose import fewest
from workshop.plan.deployment import prepare

# Where the sliders stand when the exercise begins.
TIGHT = {"model": "llama-3.1-70b", "gpu": "h200", "gpus": 4, "context": 131072, "requests": 16}


def _gpus_for_405b(answer: object) -> str | None:
    if not isinstance(answer, dict) or set(answer) != {"H100", "A100"}:
        return 'give both, as {"H100": …, "A100": …}'
    for name, memory_gb in (("H100", 80), ("A100", 40)):
        number, exact = answer[name], 810 / memory_gb
        if problem := not_a_number(number, "GPUs"):
            return f"{name}: {problem}"
        if number == int(exact):
            return f"{number} {name}s hold {number * memory_gb} GB, and 810 GB are needed: round up"
        if number != int(number):
            return f"there is no part of a GPU: {number:g} {name}s cannot be bought"
        if number != int(exact) + 1:
            enough = "fewer are enough" if number > exact else "too few"
            return f"{number} {name}s have {number * memory_gb:,} GB; the weights are 810 GB: {enough}"
    return None


def _fewest_h100(answer: object) -> str | None:
    return exactly(fewest(prepare("llama-3.3-70b", "h100", max_model_len=65536)).gpus, "GPUs")(answer)


def _one_change(answer: object) -> str | None:
    answer = getattr(answer, "case", answer)  # of the sliders themselves
    if not isinstance(answer, Case):
        return "give sliders.case: what the controls say"
    start = Case(**TIGHT)
    changed = [f.name for f in fields(Case) if getattr(answer, f.name) != getattr(start, f.name)]
    if not changed:
        return "nothing is changed yet: some of the 16 requests have to wait"
    if len(changed) > 1:
        return f"these are {len(changed)} changes ({', '.join(changed)}); one is enough"
    if changed[0] in ("requests", "context", "model"):
        return f"a smaller {changed[0]} would do, but 16 requests of 131,072 tokens to this model are wanted"
    found = memory(answer)
    return None if found.state == "fits" else f"with that change {found.max_concurrency:.1f} requests fit, not 16"


EXERCISES = {
    "memory.weights_405b": Exercise(
        "GB of weights of Llama 3.1 405B in float16",
        close_to(810, "GB", digits=3),
        "405 billion weights, each of 16 bits. How many bytes are 16 bits?",
        "Multiply weights by the bytes of one. A billion bytes are one GB.",
        wrong={
            405: "that is one byte a weight; float16 has 16 bits",
            1620: "that is four bytes a weight: float32",
            754.4: "that is the number in GiB (2**30 bytes); the question asks for GB (10**9 bytes)",
            810e9: "that is in bytes; divide by 10**9",
            6480: "that is in gigabits",
        },
    ),
    "memory.gpus_405b": Exercise(
        "How many H100 (80 GB) and A100 (40 GB) hold them",
        _gpus_for_405b,
        "How many times do the 80 GB of one go into the GB of the cell before?",
        "A part of a GPU cannot be bought. Which function of math rounds up?",
    ),
    "memory.kv_bytes_per_token": Exercise(
        "KV-cache bytes of one token in Llama 3.1 8B",
        exactly(131072, "bytes"),
        "Each layer keeps K and V, each of shape [num_key_value_heads, head_dim], 2 bytes an element.",
        "Five factors. Two of them are a 2: one for K and V, one for the bytes. The cell above prints the others.",
        wrong={
            65536: "that is half: K or V alone, or one byte a number",
            524288: "that counts 32 heads; only the 8 KV heads are kept",
            262144: "K and V are already the factor 2",
            4096: "that is one layer; there are 32",
            128: "that is in KiB: the question asks for bytes",
            1048576: "that is in bits",
        },
    ),
    "memory.kv_request_70b": Exercise(
        "GiB of KV cache for 128,000 tokens of Llama 3.1 70B",
        close_to(39.0625, "GiB", digits=3),
        "First the bytes of one token, as in the exercise before, then times the tokens.",
        "One token takes 320 KiB. Divide the bytes once by 10**9 and once by 2**30: which gives the table's digits?",
        wrong={
            41.943: "that is in GB of 10**9 bytes",
            40.0: "that is for 131,072 tokens; the table took 128,000",
            41_943_040_000: "that is in bytes; divide by 2**30",
            312.5: "that counts all 64 heads; only the 8 KV heads are kept",
            19.53: "K and V, that is twice as much",
        },
    ),
    "memory.fewest_h100": Exercise(
        "The fewest H100 for Llama 3.3 70B with 65,536 tokens",
        _fewest_h100,
        "Weights take 66 GiB of each of 2 GPUs. One request needs 65,536 × 320 KiB: 10 GiB on each.",
        "Heads must be divided evenly by tensor parallelism. Layers need not be: try numbers between the powers of 2.",
        wrong={
            1: "one H100 has 80 GB, and the weights alone are 141",
            2: "the weights would fit, but not one request of 65,536 tokens beside them",
            4: "4 is the fewest for tensor parallelism; pipeline_parallel_size also splits into parts that are no power of 2",
            8: "8 are more than needed: the weights leave room on far fewer",
            16: "16 are more than needed: that is two nodes",
        },
    ),
    "memory.one_change": Exercise(
        "One change, and all 16 requests run at once",
        _one_change,
        "Move one control until the verdict turns green. Model, context and requests stay.",
        "The requests need more room than is left. Either there is more room, or a token needs less of it.",
    ),
}

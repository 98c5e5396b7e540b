"""Exercises of notebook 01: how much memory a model needs, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from workshop.learn.exercises import Exercise, close_to

# Where the sliders stand when the exercise begins.
TIGHT = {"model": "llama-3.1-70b", "gpu": "h200", "gpus": 4, "context": 131072, "requests": 16}


def _gpus_for_405b(answer: object) -> str | None:
    if not isinstance(answer, Mapping) or set(answer) != {"H100", "A100"}:
        return 'give both, as {"H100": …, "A100": …}'
    if not all(isinstance(number, int | float) for number in answer.values()):
        return "give both as numbers, without quotes"
    for name, memory_gb in (("H100", 80), ("A100", 40)):
        number, exact = answer[name], 810 / memory_gb
        if number == int(exact):
            return f"{number} {name}s hold {number * memory_gb} GB, and 810 GB are needed: round up"
        if isinstance(number, float) and not number.is_integer():
            return f"there is no part of a GPU: {number:g} {name}s cannot be bought"
        if number != int(exact) + 1:
            return (
                f"{number} {name}s have {number * memory_gb:,} GB; the weights are 810 GB: "
                f"{'fewer are enough' if number > exact else 'too few'}"
            )
    return None


def _fewest_h100(answer: object) -> str | None:
    from workshop.plan.choose import fewest
    from workshop.plan.deployment import prepare

    found = fewest(prepare("llama-3.3-70b", "h100", max_model_len=65536))
    if isinstance(answer, bool) or not isinstance(answer, int):
        return f"{answer!r} is not a number of GPUs"
    if answer == found.gpus:
        return None
    if answer == 4:
        return (
            "4 is the fewest for tensor parallelism; pipeline_parallel_size=3 gives each of 3 GPUs some of the layers"
        )
    if answer == 2:
        return "the weights would fit, but not one request of 65,536 tokens beside them"
    return f"{answer} is {'more than needed' if answer > found.gpus else 'too few'}"


def _one_change(answer: object) -> str | None:
    from workshop.learn.widgets.memory.case import Case, memory

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
    state = memory(answer).state
    return None if state == "fits" else f"with that change {memory(answer).max_concurrency:.1f} requests fit, not 16"


EXERCISES = {
    "memory.weights_405b": Exercise(
        "GB of weights of Llama 3.1 405B in float16",
        close_to(
            810,
            unit="GB",
            rel=0.004,
            near_misses={
                405: "that is one byte a weight; float16 has 16 bits",
                1620: "that is four bytes a weight: float32",
                754.4: "that is the number in GiB (2**30 bytes); the question asks for GB (10**9 bytes)",
                810e9: "that is in bytes; divide by 10**9",
                6480: "that is in gigabits",
            },
        ),
        ("405 billion weights, each of 16 bits. How many bytes are 16 bits?", "405e9 * 2 / 1e9"),
    ),
    "memory.gpus_405b": Exercise(
        "How many H100 (80 GB) and A100 (40 GB) hold them",
        _gpus_for_405b,
        ("Divide, then round up: math.ceil.", '{"H100": math.ceil(810 / 80), "A100": math.ceil(810 / 40)}'),
    ),
    "memory.kv_bytes_per_token": Exercise(
        "KV-cache bytes of one token in Llama 3.1 8B",
        close_to(
            131072,
            unit="bytes",
            rel=1e-6,
            near_misses={
                65536: "that is half: K or V alone, or one byte a number",
                524288: "that counts 32 heads; only the 8 KV heads are kept",
                262144: "K and V are already the factor 2",
                4096: "that is one layer; there are 32",
                128: "that is in KiB: the question asks for bytes",
                1048576: "that is in bits",
            },
        ),
        (
            "Each layer keeps K and V, each of shape [num_key_value_heads, head_dim], 2 bytes an element.",
            "2 * layers * kv_heads * head_dim * 2",
        ),
    ),
    "memory.kv_request_70b": Exercise(
        "GiB of KV cache for 128,000 tokens of Llama 3.1 70B",
        close_to(
            39.0625,
            unit="GiB",
            rel=0.001,
            near_misses={
                41.943: "that is in GB of 10**9 bytes",
                40.0: "that is for 131,072 tokens; the table took 128,000",
                41_943_040_000: "that is in bytes; divide by 2**30",
                312.5: "that counts all 64 heads; only the 8 KV heads are kept",
                19.53: "K and V, that is twice as much",
            },
        ),
        ("80 layers, 8 KV heads, head_dim 128, 2 bytes, K and V.", "2 * 80 * 8 * 128 * 2 * 128_000 / 2**30"),
    ),
    "memory.fewest_h100": Exercise(
        "The fewest H100 for Llama 3.3 70B with 65,536 tokens",
        _fewest_h100,
        (
            "Weights take 66 GiB of each of 2 GPUs. One request needs 65,536 × 320 KiB: 10 GiB on each.",
            "Try 3 GPUs: 3 does not divide the 64 heads, but it can divide the 80 layers: pipeline_parallel_size=3.",
        ),
    ),
    "memory.one_change": Exercise(
        "One change, and all 16 requests run at once",
        _one_change,
        (
            "Move one control until the verdict turns green. Model, context and requests stay.",
            "Half as many bytes a token hold twice as many tokens.",
        ),
    ),
}

"""Which flag to change for more context or more requests at once, with the effect that the planner computes."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

from inference_planner import advise as planned
from inference_planner import kv_cache
from inference_planner.attention import main_kind
from inference_planner.deployment import Deployment
from inference_planner.memory import fit

from workshop.engine.reconcile_case import GIB, Case, size_words

WORTH_PERCENT = 1.0  # less is not worth a flag
SPARE_GIB = 1.0  # left free beside the CUDA graphs when --gpu-memory-utilization is raised
NULL_BLOCKS = (
    1  # the block that stands for "none" is never given to a request: v1/core/block_pool.py
)
CPU_BLOCK_SIZE = 128  # tokens; vllm/platforms/cpu.py
ENOUGH_REQUESTS = 4  # fewer at once than this: offer a shorter context


@dataclass(frozen=True)
class Advice:
    """One change: the flag of `vllm serve` (or a variable), its value, and what it brings."""

    flag: str
    value: Any
    effect: str


def advise(case: Case) -> list[Advice]:
    """Return the changes that bring at least 1 %, the most effective first, those that need more ranks last.

    Effects start from the log's own numbers; the planner says what a change adds to them.
    """
    found = _on_cpu(case) if case.gpu is None else _on_gpu(case)
    worth = [item for item in found if item[0] >= WORTH_PERCENT]
    return [
        advice
        for _, advice in sorted(
            worth, key=lambda item: (item[1].flag.endswith("parallel-size"), -item[0])
        )
    ]


def _tokens(case: Case, after: Deployment) -> float:
    """KV tokens after a change: the log's memory plus the planned difference, at the planned bytes a token."""
    before, now = fit(case.base.deployment), fit(after)
    expected = before.available[before.tightest] / GIB
    said = case.log.available_kv_gib
    available = said if said is not None and case.stage.tightest else expected
    size = available + now.available[now.tightest] / GIB - expected
    if size <= 0:
        return 0.0
    tokens = case.log.kv_cache_tokens or available / _gib_per_token(case.base.deployment)
    return tokens * size / available * _gib_per_token(case.base.deployment) / _gib_per_token(after)


def _gib_per_token(d: Deployment) -> float:
    """GiB of one token on one GPU; from the capacity where it fits, else from the formula for a whole model."""
    f = fit(d)
    if f.fits:
        return f.available[f.tightest] / f.capacity.tokens / GIB
    kind = main_kind(d.model)
    share = kind.token_elements(d.model, d.tp) / kind.token_elements(d.model) / d.pp
    return kv_cache.kv_cache_bytes_per_token(d.model, d.settings.kv_cache_dtype) * share / GIB


def _brings(case: Case, flag: str, value: Any, tokens: float, note: str) -> tuple[float, Advice]:
    """Return a change that gives so many tokens of KV cache: the gain in percent, and what it says."""
    before, length = case.log.kv_cache_tokens, case.max_model_len
    now = f"{int(tokens):,} tokens of KV cache"
    if before:
        gain = (tokens / before - 1) * 100
        now += f" instead of {before:,} ({gain:+.0f} %)"
    else:
        gain = 100.0 if tokens >= length else 0.0
    at_once = f", {tokens / length:.2f} requests of {length:,} tokens at once"
    return gain, Advice(flag, value, f"{now}{at_once}{'; ' + note if note else ''}")


def _on_gpu(case: Case) -> list[tuple[float, Advice]]:
    if case.kv_bytes:
        measured = "vLLM measures what is free, instead of taking the bytes that were given"
        return [
            (math.inf, Advice("--kv-cache-memory-bytes", "leave it out", measured)),
            *_longer(case),
        ]
    return [*_shorter(case), *_changes(case), *_longer(case)]


def _changes(case: Case) -> list[tuple[float, Advice]]:
    """What the planner's table of changes brings this run."""
    d = case.base.deployment
    rules = (planned.kv_fp8, planned.small_batch, planned.eager, planned.weights_fp8)
    changes = [change for rule in rules for change in rule(d)]
    changes += planned.utilization(d, _highest_share(case))
    changes += itertools.islice(planned.more_gpus(d), 1)
    notes = [
        f"{change.note}, with {change.with_it}" if change.with_it else change.note
        for change in changes
    ]
    tokens = [_tokens(case, change.after) for change in changes]
    return [
        _brings(case, c.flag, c.value, *each)
        for c, *each in zip(changes, tokens, notes, strict=True)
    ]


def _highest_share(case: Case) -> float:
    """The largest --gpu-memory-utilization that leaves room for the CUDA graphs and a little more."""
    keep = (case.log.cuda_graph_gib or 0.0) + SPARE_GIB
    return min(planned.HIGH_UTILIZATION, math.floor((1 - keep / case.gpu.engine_gib) * 100) / 100)


def _shorter(case: Case) -> list[tuple[float, Advice]]:
    """A shorter context, where few requests of full length fit (or none, and the start failed)."""
    length, block = case.max_model_len, case.base.block_size
    tokens = case.log.kv_cache_tokens or _tokens(case, case.base.deployment)
    if tokens < length:
        return _longest(tokens, length, block)
    if tokens / length >= ENOUGH_REQUESTS or tokens < 2 * block:
        return []
    half = max(block, length // 2)
    effect = f"{tokens / half:.2f} requests of {half:,} tokens at once instead of {tokens / length:.2f} of {length:,}"
    return [(100.0, Advice("--max-model-len", half, effect))]


def _longest(tokens: float, length: int, block: int) -> list[tuple[float, Advice]]:
    """The longest request that fits, where one of full length does not."""
    fits = (int(tokens) // block - NULL_BLOCKS) * block
    said = f"the longest request that fits; one of {length:,} does not"
    return [(math.inf, Advice("--max-model-len", fits, said))] if fits > 0 else []


def _longer(case: Case) -> list[tuple[float, Advice]]:
    """A longer context, where the model can read more than it was started with and one request of it fits."""
    tokens, length = case.log.kv_cache_tokens, case.max_model_len
    longest = min(case.model.max_position_embeddings, (tokens or 0) // 16 * 16)
    if longest <= length:
        return []
    more = f"requests of up to {longest:,} tokens instead of {length:,}, {tokens / longest:.2f} of them at once"
    return [(min(99.0, (longest / length - 1) * 100), Advice("--max-model-len", longest, more))]


def _on_cpu(case: Case) -> list[tuple[float, Advice]]:
    length, found = case.max_model_len, []
    if case.kv_bytes:
        in_bytes = "kv_cache_memory_bytes" in case.log.args
        flag = "--kv-cache-memory-bytes" if in_bytes else "VLLM_CPU_KVCACHE_SPACE"
        value = case.kv_bytes * 2 if in_bytes else math.ceil(case.kv_bytes * 2 / GIB)
        if (tokens := case.log.kv_cache_tokens or case.capacity(case.kv_bytes).tokens) < length:
            found += _longest(tokens, length, CPU_BLOCK_SIZE)
        doubled = value if in_bytes else value * GIB
        found.append(
            _brings(
                case,
                flag,
                value,
                case.capacity(doubled).tokens,
                f"{size_words(doubled)} on each rank",
            )
        )
        tp = case.settings["tensor_parallel_size"] * 2
        if case.model.num_key_value_heads % tp == 0 and case.model.num_attention_heads % tp == 0:
            tokens, note = (
                case.capacity(case.kv_bytes, tp).tokens,
                "ranks keeps its share of the KV heads",
            )
            found.append(
                _brings(case, "--tensor-parallel-size", tp, tokens, f"each of {tp} {note}")
            )
    return [*found, *_longer(case)]

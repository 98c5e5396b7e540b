"""Advise which flag to change for more context or more requests at once, with its computed effect.

What can be changed is the planner's to say (`inference_planner.answer.advise`, `ranks.tp_problem`). This
module starts from the memory and tokens that the log measured, and says what each change brings.
"""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from inference_planner import refusals
from inference_planner.answer import advise as planned
from inference_planner.catalog.gpus import GIB
from inference_planner.memory.fit import fit
from inference_planner.model import kv_cache
from inference_planner.model.attention import main_kind
from inference_planner.releases import versions
from inference_planner.split import encoders
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import tp_problem

from workshop.engine.log.facts import EngineLog
from workshop.engine.reconcile.case import LoggedRun, size_words
from workshop.engine.reconcile.release import release_of

WORTH_PERCENT = 1.0  # a smaller gain is not worth a flag
SPARE_GIB = 1.0  # left free beside the CUDA graphs when --gpu-memory-utilization is raised
NULL_BLOCKS = 1  # vLLM's null block is never given to a request: v1/core/block_pool.py
CPU_BLOCK_SIZE = 128  # tokens; vllm/platforms/cpu.py
ENOUGH_REQUESTS = 4  # if fewer fit at once, a shorter context is advised


@dataclass(frozen=True)
class Advice:
    """One change: a flag of `vllm serve` or an environment variable, its value, and its effect."""

    flag: str
    value: Any
    effect: str


def advise(case: LoggedRun) -> list[Advice]:
    """Return the changes that bring at least WORTH_PERCENT.

    The most effective one is first, those that need more ranks are last. Effects start from the
    log's own numbers; the planner computes what a change adds to them.
    """
    changes = _on_cpu(case) if case.gpu is None else _on_gpu(case)
    worthwhile = []
    for change in changes:
        if change.gain_percent >= WORTH_PERCENT and agrees_with_log(case, change.advice):
            worthwhile.append(change)
    worthwhile.sort(key=_order)
    return [change.advice for change in worthwhile]


def agrees_with_log(case: LoggedRun, advice: Advice) -> bool:
    """Return False for advice that the log's own figures contradict.

    A length must fit into the tokens that vLLM counted, and a start that lacked memory gets no
    setting that needs more.
    """
    log = case.log
    value = advice.value
    if advice.flag == "--max-model-len":
        return value <= longest_length(log)
    if advice.flag == "--gpu-memory-utilization":
        used = log.gpu_memory_utilization
        return value <= _free_share(log) and (used is None or value > used)
    if advice.flag == "--max-num-seqs":
        return log.mamba_blocks is None or value <= log.mamba_blocks
    if advice.flag == "--max-num-batched-tokens":
        return log.max_num_batched_tokens is None or value < log.max_num_batched_tokens
    if advice.flag == "--kv-cache-dtype":
        return not (log.kv_cache_dtype or "").startswith("fp8")
    if advice.flag == "--quantization":
        return log.quantization is None
    if advice.flag == "--enforce-eager":
        return not log.enforce_eager and sets_graphs_aside(log)
    return True


def sets_graphs_aside(log: EngineLog) -> bool:
    """Return False if CUDA graphs took none of the KV cache's memory.

    Older releases capture them afterwards (`Version.graphs_are_profiled`), and so does a start whose
    log has their size and no estimate.
    """
    if log.cuda_graph_estimate_gib is not None:
        return True
    release = release_of(log)
    if release is not None and not versions.row_of(release).graphs_are_profiled:
        return False
    return log.cuda_graph_gib is None


def _free_share(log: EngineLog) -> float:
    """Return the share of the GPU's memory that was free when vLLM started: it takes no more."""
    free_gib = log.profile.get("free_gpu_memory_gib")
    total_gib = log.profile.get("total_gpu_memory_gib")
    if not free_gib or not total_gib:
        return 1.0
    return min(1.0, free_gib / total_gib)


def longest_length(log: EngineLog) -> float:
    """Return the tokens of the longest request that fits by the log's figures; inf without any."""
    limits = [math.inf]
    if log.estimated_max_model_len is not None:
        limits.append(log.estimated_max_model_len)
    elif log.kv_cache_tokens is not None:
        limits.append(log.kv_cache_tokens)
    if log.available_kv_gib is not None and log.available_kv_gib <= 0:
        limits.append(0)
    return min(limits)


@dataclass(frozen=True)
class _Gain:
    """A piece of advice, and how many percent it brings; inf where nothing works without it."""

    gain_percent: float
    advice: Advice


def _order(change: _Gain) -> tuple[bool, float]:
    return change.advice.flag.endswith("parallel-size"), -change.gain_percent


def _available_gib(case: LoggedRun) -> float:
    """Return the GiB of a rank's KV cache: the log's, or the plan's if another rank decided."""
    if case.log.available_kv_gib is not None and case.stage.tightest:
        return case.log.available_kv_gib
    planned_before = case.base.fit
    return planned_before.available[planned_before.tightest] / GIB


def _available_gib_after(case: LoggedRun, after: Deployment) -> float:
    """Return the GiB of a rank's KV cache after a change: the log's plus the planned difference."""
    planned_before = case.base.fit
    planned_after = fit(after)
    difference_bytes = (
        planned_after.available[planned_after.tightest]
        - planned_before.available[planned_before.tightest]
    )
    return _available_gib(case) + difference_bytes / GIB


def _tokens(case: LoggedRun, after: Deployment) -> float:
    """Return the KV tokens after a change.

    The memory is the log's plus the planned difference, the bytes of a token are the planned ones.
    """
    size_gib = _available_gib_after(case, after)
    if size_gib <= 0:
        return 0.0
    if case.log.needed_kv_gib:
        return size_gib / _needed_gib(case, case.log.needed_kv_gib, after) * case.max_model_len
    logged_tokens = _logged_tokens(case)
    available_gib = _available_gib(case)
    if not logged_tokens or available_gib <= 0:  # nothing to scale: the planned bytes a token alone
        return size_gib / _gib_per_token(after)
    growth = _gib_per_token(case.base.deployment) / _gib_per_token(after)
    return logged_tokens * size_gib / available_gib * growth


def _needed_gib(case: LoggedRun, logged_gib: float, after: Deployment) -> float:
    """Return the GiB of a request of full length after a change, by the log's figures.

    The error of such a start has two points: the GiB of a request of full length, and the longest
    request that fits. They show the part of a request that does not grow with its length (windows,
    states), and the part that does. Each changes by the factor that the plan has for it.

    Args:
        logged_gib: what a request of full length needs by the log.
    """
    before = case.base.deployment
    shorter = case.log.estimated_max_model_len or 0
    fitting_gib = case.log.available_kv_gib or 0.0
    if not 0 < shorter < case.max_model_len or not 0 < fitting_gib < logged_gib:
        return logged_gib * fit(after).needed / fit(before).needed
    length = case.max_model_len
    growing_gib = (logged_gib - fitting_gib) / (length - shorter) * length
    growing_gib = min(growing_gib, logged_gib)
    fixed_gib = logged_gib - growing_gib
    fixed_before, growing_before = _planned_parts(before, length)
    fixed_after, growing_after = _planned_parts(after, length)
    if fixed_before > 0:
        fixed_gib *= fixed_after / fixed_before
    if growing_before > 0:
        growing_gib *= growing_after / growing_before
    return fixed_gib + growing_gib


def _planned_parts(deployment: Deployment, length: int) -> tuple[int, int]:
    """Return the planned bytes of a request: those that a longer one needs as well, and others."""
    needed = fit(deployment.with_settings(max_model_len=length)).needed
    twice_as_long = fit(deployment.with_settings(max_model_len=2 * length)).needed
    growing = min(twice_as_long - needed, needed)
    return needed - growing, growing


def _logged_tokens(case: LoggedRun) -> int | None:
    """Return the tokens of the log's KV cache: counted, or estimated in the error that ended it."""
    return case.logged_tokens or case.log.estimated_max_model_len


def _gib_per_token(deployment: Deployment) -> float:
    """Return the GiB of one token on one GPU.

    They follow from the capacity if the plan fits, else from the formula of the whole model.
    """
    memory = fit(deployment)
    if memory.holds_a_request:
        return memory.available[memory.tightest] / memory.capacity.tokens / GIB
    kind = main_kind(deployment.model)
    share = (
        kind.token_elements(deployment.model, deployment.tp)
        / kind.token_elements(deployment.model)
        / deployment.pp
    )
    return (
        kv_cache.kv_cache_bytes_per_token(deployment.model, deployment.settings.kv_cache_dtype)
        * share
        / GIB
    )


def _brings(case: LoggedRun, flag: str, value: Any, tokens: float, note: str) -> _Gain:
    """Return a change after which the KV cache holds so many tokens."""
    before = case.logged_tokens
    if before and case.log.error is not None and before < case.max_model_len:
        before = None  # the start failed: what counts is whether one request fits
    length = case.max_model_len
    now = f"{int(tokens):,} tokens of KV cache"
    if before:
        gain = (tokens / before - 1) * 100
        now += f" instead of {before:,} ({gain:+.0f} %)"
    else:
        gain = 0.0
        if tokens >= length:
            gain = 100.0
    at_once = f", {tokens / length:.2f} requests of {length:,} tokens at once"
    effect = now + at_once
    if note:
        effect += f"; {note}"
    return _Gain(gain, Advice(flag, value, effect))


def _on_gpu(case: LoggedRun) -> list[_Gain]:
    if case.kv_bytes:
        measured = "vLLM measures what is free, instead of taking the bytes that were given"
        leave_out = Advice("--kv-cache-memory-bytes", "leave it out", measured)
        return [_Gain(math.inf, leave_out), *_longer(case)]
    if case.log.mamba_blocks is not None:
        return [*_fewer_requests(case.log.mamba_blocks), *_more_blocks(case)]
    return [*_shorter(case), *_changes(case), *_fewer_items(case), *_longer(case)]


def _fewer_requests(blocks: int) -> list[_Gain]:
    """Advise as many requests at once as there are Mamba blocks, if vLLM refused more."""
    if blocks < 1:
        return []
    effect = f"each running request needs one of the {blocks:,} Mamba blocks that the memory holds"
    return [_Gain(math.inf, Advice("--max-num-seqs", blocks, effect))]


def _more_blocks(case: LoggedRun) -> list[_Gain]:
    """Return the changes that give Mamba blocks more memory.

    Another length or KV dtype makes none of the blocks smaller. A change after which there are
    still fewer blocks than requests names the --max-num-seqs that goes with it.
    """
    more_memory = ("--gpu-memory-utilization", "--quantization", "--tensor-parallel-size")
    return [change for change in _changes(case) if change.advice.flag in more_memory]


def _changes(case: LoggedRun) -> list[_Gain]:
    """Return what the changes of the planner's table bring this run."""
    deployment = case.base.deployment
    rules = (planned.kv_fp8, planned.small_batch, planned.eager, planned.weights_fp8)
    changes: list[planned.Change] = []
    for rule in rules:
        changes += rule(deployment)
    changes += planned.utilization(deployment, _highest_share(case))
    if not deployment.gpu.unified_memory:  # the only GPU of its machine
        changes += itertools.islice(planned.more_gpus(deployment), 1)
    gains = []
    for change in changes:
        tokens = _tokens(case, change.after)
        gains.append(_brings(case, change.flag, change.value, tokens, _note(case, change)))
    return gains


def _note(case: LoggedRun, change: planned.Change) -> str:
    """Return what a change costs, where it runs, and the flags that belong to it."""
    after = change.after
    note = change.note
    if change.rule == "more_gpus" and after.dp > 1:
        note = f"on {after.gpus} GPUs, {after.replica_gpus} for each of the {after.dp} replicas"
    if change.with_it:
        note += f", with {change.with_it}"
    seqs = _seqs_that_start(case, after)
    if seqs < after.settings.max_num_seqs:
        note += f", with --max-num-seqs {seqs}, since each running request needs a Mamba block"
    return note


def _seqs_that_start(case: LoggedRun, after: Deployment) -> int:
    """Return max_num_seqs after a change, or the Mamba blocks if they are fewer.

    The blocks are the log's, times what the plan says that the change brings.
    """
    seqs = after.settings.max_num_seqs
    if not refusals.needs_state_blocks(after):
        return seqs
    blocks = case.log.mamba_blocks
    if blocks is None:
        started = case.log.error is None and case.log.kv_cache_tokens is not None
        if started or not refusals.exceeds_state_blocks(after):
            return seqs
        return refusals.seqs_that_start(after)
    before = _planned_blocks(case.base.deployment, _available_gib(case))
    if not before:
        return seqs
    growth = _planned_blocks(after, _available_gib_after(case, after)) / before
    return max(1, min(seqs, int(blocks * growth)))


def _planned_blocks(deployment: Deployment, available_gib: float) -> int:
    """Return the blocks that so much memory on each rank holds."""
    available_bytes = [round(max(0.0, available_gib) * GIB)] * deployment.pp
    layout = fit(deployment).layout
    return kv_cache.capacity(
        layout, deployment.stages, available_bytes, deployment.settings.max_model_len
    ).blocks


def _fewer_items(case: LoggedRun) -> Iterator[_Gain]:
    """Yield limits of images and videos in a prompt, which the profile run then does not encode."""
    deployment = case.base.deployment
    encoder = encoders.encoder(case.model, case.max_model_len)
    if encoder is None or case.model.text_only:
        return
    allowed = encoders.allowed_modalities(deployment.settings, encoder)
    limits = []
    if len(allowed) > 1 and "image" in allowed:
        others = dict.fromkeys(allowed, 0)
        limits.append((others | {"image": 1}, "prompts may then hold one image and nothing else"))
    if allowed:
        limits.append((dict.fromkeys(encoder.items, 0), "prompts may then hold text alone"))
    for counts, note in limits:
        after = deployment.with_settings(limit_mm_per_prompt=tuple(counts.items()))
        if encoders.skips_tower(after.model, after.settings):
            after = replace(after, model=replace(after.model, text_only=True))
        value = json.dumps(counts)
        tokens = _tokens(case, after)
        yield _brings(case, "--limit-mm-per-prompt", f"'{value}'", tokens, note)


def _too_short_for_images(case: LoggedRun, length: int) -> str:
    """Say that the largest image takes more tokens than a request of this length; else ""."""
    encoder = encoders.encoder(case.model, case.max_model_len)
    if encoder is None or case.model.text_only:
        return ""
    image = encoder.items.get("image")
    allowed = encoders.allowed_modalities(case.base.deployment.settings, encoder)
    if image is None or "image" not in allowed or image.tokens <= length:
        return ""
    return f"; too short for a large image, which takes {image.tokens:,} tokens"


def _highest_share(case: LoggedRun) -> float:
    """Return the largest --gpu-memory-utilization that leaves room for CUDA graphs and SPARE_GIB."""
    left_gib = (case.log.cuda_graph_gib or 0.0) + SPARE_GIB
    left_share = 1 - left_gib / case.card.engine_gib
    share = math.floor(min(left_share, _free_share(case.log)) * 100) / 100
    return min(planned.HIGH_UTILIZATION, share)


def _shorter(case: LoggedRun) -> list[_Gain]:
    """Advise a shorter context if few requests of full length fit, or none and the start failed."""
    length = case.max_model_len
    block = case.base.fit.layout.block_size
    tokens = _logged_tokens(case) or _tokens(case, case.base.deployment)
    if case.log.estimated_max_model_len:
        whole_blocks = case.log.estimated_max_model_len // block * block
        effect = f"the longest request that fits, as vLLM estimates; one of {length:,} does not"
        if not whole_blocks:
            return []
        effect += _too_short_for_images(case, whole_blocks)
        return [_Gain(math.inf, Advice("--max-model-len", whole_blocks, effect))]
    if tokens < length:
        return _longest(case, tokens, block)
    if tokens / length >= ENOUGH_REQUESTS or tokens < 2 * block:
        return []
    half = max(block, length // 2)
    effect = (
        f"{tokens / half:.2f} requests of {half:,} tokens at once "
        f"instead of {tokens / length:.2f} of {length:,}"
    )
    return [_Gain(100.0, Advice("--max-model-len", half, effect))]


def _longest(case: LoggedRun, tokens: float, block: int) -> list[_Gain]:
    """Advise the longest request that fits, if one of full length does not."""
    longest = (int(tokens) // block - NULL_BLOCKS) * block
    if longest <= 0:
        return []
    effect = f"the longest request that fits; one of {case.max_model_len:,} does not"
    if case.gpu is not None:
        effect += _too_short_for_images(case, longest)
    return [_Gain(math.inf, Advice("--max-model-len", longest, effect))]


def _longer(case: LoggedRun) -> list[_Gain]:
    """Advise a longer context if the model can read more, and one such request fits."""
    if case.log.error is not None:  # a start that failed is to start first
        return []
    tokens = case.log.kv_cache_tokens or 0
    length = case.max_model_len
    longest = min(case.model.max_position_embeddings, tokens // 16 * 16)
    if longest <= length:
        return []
    effect = (
        f"requests of up to {longest:,} tokens instead of {length:,}, "
        f"{tokens / longest:.2f} of them at once"
    )
    gain = min(99.0, (longest / length - 1) * 100)
    return [_Gain(gain, Advice("--max-model-len", longest, effect))]


def _on_cpu(case: LoggedRun) -> list[_Gain]:
    changes = []
    if case.kv_bytes:
        tokens = case.log.kv_cache_tokens or case.capacity(case.kv_bytes).tokens
        if tokens < case.max_model_len:
            changes += _longest(case, tokens, CPU_BLOCK_SIZE)
        changes.append(_twice_the_space(case, case.kv_bytes))
        changes += _twice_the_ranks(case, case.kv_bytes)
    return [*changes, *_longer(case)]


def _twice_the_space(case: LoggedRun, kv_bytes: int) -> _Gain:
    """Return what twice the bytes of KV cache on each rank bring; the variable takes whole GiB."""
    if "kv_cache_memory_bytes" in case.log.args:
        flag = "--kv-cache-memory-bytes"
        value = doubled = kv_bytes * 2
    else:
        flag = "VLLM_CPU_KVCACHE_SPACE"
        value = math.ceil(kv_bytes * 2 / GIB)
        doubled = value * GIB
    note = f"{size_words(doubled)} on each rank"
    return _brings(case, flag, value, case.capacity(doubled).tokens, note)


def _twice_the_ranks(case: LoggedRun, kv_bytes: int) -> list[_Gain]:
    """Return what twice the ranks bring, if the model can be split over them."""
    tp = case.settings["tensor_parallel_size"] * 2
    if tp > case.model.num_key_value_heads or tp_problem(case.model, tp):
        return []
    tokens = case.capacity(kv_bytes, tp).tokens
    note = f"each of {tp} ranks keeps its share of the KV heads"
    return [_brings(case, "--tensor-parallel-size", tp, tokens, note)]

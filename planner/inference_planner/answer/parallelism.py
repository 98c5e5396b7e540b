"""`plan()`: choose the split, and compute what fits, how fast it is, and the command."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

from inference_planner.answer import builds
from inference_planner.answer.advise import advise
from inference_planner.answer.choose import Choice, Sizes
from inference_planner.answer.command import command
from inference_planner.answer.plan_result import Plan
from inference_planner.answer.reasons import reasons
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.errors import BadInput
from inference_planner.ground.basis import ground
from inference_planner.memory.fit import fit
from inference_planner.refusals import check
from inference_planner.speed import roofline as speed
from inference_planner.split.communication import traffic
from inference_planner.split.deployment import DEFAULT_NETWORK, Deployment, prepare
from inference_planner.split.measured_start import Correction, Start
from inference_planner.split.ranks import ranks
from inference_planner.split.settings import CONTEXT_GIB, share_of_free

__all__ = ["FindSplit", "Plan", "check_keywords", "plan", "plan_of"]

FindSplit = Callable[[Deployment, Sizes], Choice]


def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU | None = None,
    *,
    gpu_memory_gib: float | None = None,
    free_gib: float | None = None,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    data_parallel_size: int | None = None,
    enable_expert_parallel: bool = False,
    decode_context_parallel_size: int | None = None,
    dtype: str | None = None,
    quantization: str | None = None,
    kv_cache_dtype: str | None = None,
    max_model_len: int | None = None,
    gpu_memory_utilization: float | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    enforce_eager: bool | None = None,
    enable_prefix_caching: bool | None = None,
    moe_backend: str | None = None,
    limit_mm_per_prompt: str | Mapping[str, Any] | None = None,
    language_model_only: bool | None = None,
    hf_overrides: str | Mapping[str, Any] | None = None,
    speculative_config: str | Mapping[str, Any] | None = None,
    spec_method: str | None = None,
    spec_model: str | None = None,
    spec_tokens: int | None = None,
    enable_lora: bool = False,
    max_loras: int | None = None,
    max_lora_rank: int | None = None,
    max_cpu_loras: int | None = None,
    fully_sharded_loras: bool = False,
    lora_dtype: str | None = None,
    vllm_version: str | None = None,
    usage: str | None = None,
    network: str | None = None,
    learned: Sequence[Start] = (),
    find_split: FindSplit = builds.choose,
    **unknown: object,
) -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    The names are vLLM's own, and None means vLLM's default.

    >>> from inference_planner import plan
    >>> p = plan("llama-3.1-70b", "h200", max_model_len=32768)
    >>> p.fits, p.gpus, p.tensor_parallel_size
    (True, 2, 2)

    Args:
        model: a catalog name, a folder or file with a config.json, or a ModelConfig.
        gpu: a name of the catalog (`list_gpus`), or a GPU; None with gpu_memory_gib.
        gpu_memory_gib: memory of one GPU in GiB as vLLM sees it. With a name it is that card with
            another size; without, bandwidth and link are unknown, and there are no speed figures.
        free_gib: GiB that are free on each GPU before vLLM starts. vLLM refuses to start if
            gpu_memory_utilization of all memory is more; None means that nothing else runs there.
        gpus_per_node: GPUs in one node; 8 if nothing is known of the hardware.
        nodes: nodes that may be used.
        data_parallel_size: replicas that share their experts, each with attention and a KV cache of
            its own. Tokens and concurrency are those of one replica, as vLLM prints them. Such
            plans were not measured.
        decode_context_parallel_size: ranks that share the tokens of a KV head which each of them
            would copy.
        max_model_len, max_num_batched_tokens: tokens.
        gpu_memory_utilization: share of the GPU's memory, above 0 and at most 1.
        enable_prefix_caching: None for vLLM's default. A hybrid's requests then hold further
            states.
        moe_backend: the kernels of experts (triton, marlin, cutlass, …), which lay out MXFP4
            weights; None: vLLM's choice.
        limit_mm_per_prompt: most images, videos and sounds in a prompt: {"image": 4, "video": 0},
            or such JSON as text. If none is allowed, vLLM does not load the encoder.
        language_model_only: allow none of them.
        hf_overrides: fields that replace those of config.json, as an object or as JSON;
            rope_scaling gives YaRN.
        speculative_config: how draft tokens are made, as vLLM takes it: {"method": "mtp",
            "num_speculative_tokens": 2}, or such JSON as text. The methods are those of
            `drafts.METHODS`.
        spec_method, spec_model, spec_tokens: vLLM's short flags for its method, model and
            num_speculative_tokens.
        enable_lora: make buffers for adapters, and graphs with and without them.
        max_loras: adapters in one batch; 1 by default.
        max_lora_rank: the largest rank of an adapter; 16 by default.
        max_cpu_loras: adapters in the CPU's memory.
        fully_sharded_loras: tensor parallelism splits both matrices of an adapter.
        lora_dtype: auto, float16 or bfloat16.
        vllm_version: whose formulas and defaults are used. Older releases, from 0.10 on, take those
            of the oldest.
        usage: "serve" (vllm serve) or "llm" (the LLM class): whose default of
            max_num_batched_tokens is taken.
        network: link between nodes; one of `communication.NETWORKS`.
        learned: what starts on this site measured; the workshop keeps them (`workshop reconcile LOG
            --keep`).
        find_split: finds the split of a deployment, from the formulas and the records; the workshop
            gives one that also asks vLLM's own classes.

    Raises:
        BadInput: an unknown name or keyword, a number out of range, or sizes that cannot split the
            model.
    """
    check_keywords(plan, unknown)
    deployment = prepare(
        model,
        gpu,
        gpu_memory_gib=gpu_memory_gib,
        free_gib=free_gib,
        dtype=dtype or "auto",
        quantization=quantization,
        network=network or DEFAULT_NETWORK,
        learned=learned,
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=max_model_len,
        gpu_memory_utilization=gpu_memory_utilization,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enforce_eager=enforce_eager,
        enable_prefix_caching=enable_prefix_caching,
        moe_backend=moe_backend,
        limit_mm_per_prompt=limit_mm_per_prompt,
        language_model_only=language_model_only,
        hf_overrides=hf_overrides,
        speculation={
            "speculative_config": speculative_config,
            "spec_method": spec_method,
            "spec_model": spec_model,
            "spec_tokens": spec_tokens,
        },
        lora={
            "enable_lora": enable_lora,
            "max_loras": max_loras,
            "max_lora_rank": max_lora_rank,
            "max_cpu_loras": max_cpu_loras,
            "fully_sharded_loras": fully_sharded_loras,
            "lora_dtype": lora_dtype,
        },
        vllm_version=vllm_version,
        usage=usage,
    )
    sizes = Sizes(
        gpus_per_node=gpus_per_node,
        nodes=nodes,
        tp=tensor_parallel_size,
        pp=pipeline_parallel_size,
        dp=data_parallel_size,
        ep=enable_expert_parallel,
        dcp=decode_context_parallel_size,
    )
    choice = find_split(deployment, sizes)
    notes = card_notes(choice.deployment, gpu_memory_gib)
    return plan_of(replace(choice, reasons=[*notes, *choice.reasons]))


def decode_terms(deployment: Deployment, measured: Correction | None) -> list[speed.Term]:
    """Return the terms of a decoding step, at the pace that a start on this site had."""
    terms = list(speed.decode_terms(deployment))
    if measured is None or measured.speed == 1.0:
        return terms
    return [replace(term, ms=term.ms / measured.speed) for term in terms]


def card_notes(deployment: Deployment, gpu_memory_gib: float | None) -> list[str]:
    """Return what a plan says of a card that differs from the catalog's.

    It was given by its memory, or is partly taken by another process.
    """
    gpu, free_gib = deployment.gpu, deployment.free_gib
    notes: list[str] = []
    if not gpu.has_known_speed:
        notes.append(
            "Only the memory of this card is known: there are no speed figures, "
            "and what it has kernels for was not checked."
        )
    elif gpu_memory_gib is not None:
        notes.append(
            f"This is {gpu.title} with {gpu.engine_gib:.2f} GiB, at its bandwidth and link."
        )
    if gpu.unified_memory and free_gib is None:
        notes.append(
            f"The CPU and the system use the same {gpu.engine_gib:.1f} GiB. vLLM starts only if "
            "its share of them is free: give --free-gib what the system shows as available."
        )
    if free_gib is not None:
        largest = share_of_free(gpu, free_gib)
        notes.append(
            f"{free_gib:g} of {gpu.engine_gib:.2f} GiB are free on each GPU, of which CUDA "
            f"itself takes up to {CONTEXT_GIB:g}. vLLM refuses to start if "
            f"gpu_memory_utilization asks for more than the rest: {largest:g} fits, and the plan "
            f"has {deployment.settings.gpu_memory_utilization:g}."
        )
    return notes


def check_keywords(function: Callable[..., object], unknown: Mapping[str, object]) -> None:
    """Raise BadInput for a keyword argument that a function does not have.

    The remedy names the nearest one.
    """
    if not unknown:
        return
    from difflib import get_close_matches

    parameters = signature(function).parameters.values()
    keywords = [
        parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY
    ]
    wrong = next(iter(unknown))
    nearest = get_close_matches(wrong, keywords, n=1, cutoff=0.5)
    remedy = f"Did you mean {nearest[0]}?" if nearest else f"Choose from: {', '.join(keywords)}."
    raise BadInput(f"{function.__name__}() has no argument {wrong!r}.", remedy)


def plan_of(choice: Choice) -> Plan:
    """Return the plan of a chosen split: its memory, speed, reasons, advice and command."""
    deployment = choice.deployment
    memory = fit(deployment)
    known_speed = deployment.gpu.has_known_speed
    result = Plan(
        choice=choice,
        fit=memory,
        communication=traffic(deployment) if known_speed else [],
        ranks=ranks(deployment, memory.loaded),
        ground=ground(deployment),
        refusals=check(deployment),
    )
    if memory.fits and result.has_speed:
        result = replace(
            result,
            decode=decode_terms(deployment, memory.measured),
            learners_at_once=speed.learners_at_once(deployment, memory.capacity.tokens),
        )
    return replace(
        result,
        reasons=reasons(result),
        advice=advise(result),
        command=command(result),
    )

"""The checks of vLLM's start-up that may refuse a deployment: would it start?

Each function names what vLLM prints and where (below vllm/), and finds out whether a deployment
meets it. A plan fits only if none finds anything. What vLLM refuses whatever the memory (sizes that
do not split the model, formats that the GPU has no kernels for) never becomes a deployment:
`choose` and `deployment_of` raise BadInput. Read from vLLM 0.32.0 and 0.33.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inference_planner.catalog.architectures import EAGLE3_OVER_STAGES, OVERFLOW_IN_FLOAT16
from inference_planner.catalog.gpus import GIB
from inference_planner.ground.basis import ground
from inference_planner.ground.intervals import capacities, spread, surely_holds_a_request
from inference_planner.memory.fit import fit, longest_context
from inference_planner.model import kv_cache
from inference_planner.model.attention import has_states
from inference_planner.model.drafts import EAGLE3
from inference_planner.releases.registries import lacks, registries
from inference_planner.speed.roofline import has_full_graphs
from inference_planner.split import free_memory, ranks
from inference_planner.split.compilation import FULL
from inference_planner.split.deployment import Deployment
from inference_planner.split.settings import DTYPES, batch_defaults

# How far the bytes for the KV cache may be off, when max_num_seqs is lowered: a quarter, and at
# least 1.5 GiB, or the interval. Public log: 556 blocks on an RTX PRO 6000 where the plan has 746
# (27B, recipes pull request 831).
UNCERTAIN_SHARE = 0.26
UNCERTAIN_BYTES = 3 * GIB // 2
GRAPH_STEP = 8  # batch sizes of CUDA graphs are multiples of it
# What the CUDA context takes at least before vLLM looks at the free memory: 46.99 of 47.37 GiB were
# free in a log. The plan itself leaves more (free_memory.CONTEXT_GIB); what is refused here cannot
# start.
LEAST_CONTEXT_BYTES = 37 * GIB // 100
# get_supported_act_dtypes in model_executor/layers/quantization; the other methods take both kinds
# of 16 bits.
BOTH_16_BITS = ("bfloat16", "float16")
ACTIVATION_DTYPES = {"mxfp4": ("bfloat16",), "compressed-tensors": (*BOTH_16_BITS, "float32")}


@dataclass(frozen=True)
class Finding:
    """A reason for which vLLM would not start, and the flag that avoids it; "" if no single one does."""

    what: str
    flag: str = ""


def check(deployment: Deployment) -> list[Finding]:
    """Return every reason for which vLLM would refuse to start this deployment.

    vLLM checks its arguments first. Its memory is looked at only if it would come so far.
    """
    return refused_arguments(deployment) or _findings(deployment, MEMORY_CHECKS)


def refused_arguments(deployment: Deployment) -> list[Finding]:
    """Return every reason for which vLLM would refuse the arguments, whatever the memory."""
    return _findings(deployment, ARGUMENT_CHECKS)


def _findings(
    deployment: Deployment, checks: tuple[Callable[[Deployment], Finding | None], ...]
) -> list[Finding]:
    return [finding for refusal in checks if (finding := refusal(deployment))]


# Blocks for states: layers with states need a block for each running request.


def needs_state_blocks(deployment: Deployment) -> bool:
    """Return True if vLLM compares max_num_seqs with its blocks: with states and full graphs."""
    return has_states(deployment.model) and deployment.settings.decode_graphs == FULL


def safe_state_blocks(deployment: Deployment) -> int:
    """Return the blocks of a hybrid model that are there even if the plan's memory is off."""
    memory = fit(deployment)
    available: list[int] = []
    for size in memory.available:
        lowest = min(size - round(size * UNCERTAIN_SHARE), size - UNCERTAIN_BYTES)
        available.append(max(lowest, size // 2))
    blocks = kv_cache.capacity(
        memory.layout, deployment.stages, available, deployment.settings.max_model_len
    ).blocks
    return min(blocks, _least_state_blocks(deployment))


def _least_state_blocks(deployment: Deployment) -> int:
    """Return the blocks at the low end of the memory's interval."""
    memory = fit(deployment)
    half_gib = spread(deployment, memory, ground(deployment)).available_gib
    return int(capacities(deployment, memory, half_gib).blocks.low)


def seqs_that_start(deployment: Deployment) -> int:
    """Return the max_num_seqs of the deployment, or a smaller one that surely has blocks.

    Fewer requests need fewer CUDA graphs, and leave room for more blocks: the larger number is
    tried as well.
    """
    seqs = deployment.settings.max_num_seqs
    if not needs_state_blocks(deployment) or seqs <= safe_state_blocks(deployment):
        return seqs
    least = _whole_graphs(safe_state_blocks(deployment))
    most = _whole_graphs(safe_state_blocks(deployment.with_settings(max_num_seqs=least)))
    middle = _whole_graphs((least + most) // 2)
    if middle <= safe_state_blocks(deployment.with_settings(max_num_seqs=middle)):
        return middle
    return least


def _whole_graphs(seqs: int) -> int:
    """Return the largest number of requests up to `seqs` that has a CUDA graph; at least 1."""
    if seqs > GRAPH_STEP:
        return seqs - seqs % GRAPH_STEP
    return max(1, seqs)


def with_seqs_that_start(deployment: Deployment) -> Deployment:
    """Return the deployment with a smaller max_num_seqs if vLLM's default exceeds its blocks.

    A max_num_seqs that the user gave is never changed, nor that of a deployment which does not fit
    anyway.
    """
    if deployment.settings.seqs_given or not needs_state_blocks(deployment):
        return deployment
    if not fit(deployment).holds_a_request:
        return deployment
    return deployment.with_settings(max_num_seqs=seqs_that_start(deployment))


def may_exceed_state_blocks(deployment: Deployment) -> bool:
    """Return True if max_num_seqs has its blocks, but not at the low end of the interval."""
    if not deployment.settings.version.needs_block_per_state or exceeds_state_blocks(deployment):
        return False
    seqs = deployment.settings.max_num_seqs
    return needs_state_blocks(deployment) and seqs > _least_state_blocks(deployment)


def lowered_from(deployment: Deployment) -> int:
    """Return vLLM's default of max_num_seqs if the plan lowered it; 0 if it did not."""
    chosen = deployment.settings
    _, default = batch_defaults(deployment.gpu, chosen.usage, chosen.version)
    default = min(default, chosen.max_num_batched_tokens)
    if chosen.seqs_given or not needs_state_blocks(deployment) or chosen.max_num_seqs >= default:
        return 0
    return default


def exceeds_state_blocks(deployment: Deployment) -> bool:
    """Return True if vLLM would refuse max_num_seqs, whoever chose it."""
    memory = fit(deployment)
    has_too_few = (
        memory.holds_a_request and deployment.settings.max_num_seqs > memory.capacity.blocks
    )
    return has_too_few and needs_state_blocks(deployment)


def _state_blocks(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "max_num_seqs … exceeds available Mamba cache blocks".

    Source: config/compilation.py CompilationConfig.resolve_cudagraph_mode_and_sizes.
    """
    if not deployment.settings.version.needs_block_per_state:
        return None
    if not exceeds_state_blocks(deployment):
        return None
    blocks = fit(deployment).capacity.blocks
    what = (
        f"max_num_seqs {deployment.settings.max_num_seqs:,} exceeds the {blocks:,} blocks of the cache, "
        f"and {deployment.model.name} needs one for the states of each running request"
    )
    return Finding(what, f"--max-num-seqs {seqs_that_start(deployment)}")


# Memory


def _no_memory(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "No available memory for the cache blocks".

    Source: v1/core/kv_cache_utils.py _check_enough_kv_cache_memory.
    """
    memory = fit(deployment)
    if memory.loads:
        return None
    stage = memory.tightest
    needed = (memory.weights[stage] + memory.overhead[stage]) / GIB
    allowed = memory.requested / GIB
    return Finding(
        f"weights and overhead need {needed:.1f} GiB of a GPU, and vLLM may use {allowed:.1f} GiB"
    )


def _no_request(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "To serve at least one request with the model's max seq len …".

    Source: v1/core/kv_cache_utils.py _check_enough_kv_cache_memory.
    """
    memory = fit(deployment)
    if memory.holds_a_request or not memory.loads:
        return None
    longest = longest_context(deployment, surely_holds_a_request)
    room = memory.available[memory.tightest] / GIB
    what = (
        f"one request of {deployment.settings.max_model_len:,} tokens needs "
        f"{memory.needed / GIB:.2f} GiB of KV cache, and {room:.2f} GiB are left for it"
    )
    return Finding(what, f"--max-model-len {longest}" if longest else "")


def room_for_cache(deployment: Deployment) -> int:
    """Return what is free beside weights, overhead and the given bytes of KV cache; below 0 if less."""
    memory = fit(deployment)
    used = max(map(sum, zip(memory.weights, memory.overhead, strict=True)))
    free = deployment.free_bytes - LEAST_CONTEXT_BYTES
    return free - used - deployment.settings.kv_cache_memory_bytes


def _given_cache(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "CUDA out of memory".

    Source: v1/worker/gpu_worker.py Worker.determine_available_memory skips the profile run.
    """
    asks_for = deployment.settings.kv_cache_memory_bytes
    room = asks_for + room_for_cache(deployment)
    if asks_for <= max(0, room):
        return None
    what = (
        f"kv_cache_memory_bytes asks for {asks_for / GIB:.2f} GiB, and beside weights and overhead "
        f"{max(0, room) / GIB:.2f} GiB are left on a GPU"
    )
    half_gib = spread(deployment, fit(deployment), ground(deployment)).room_gib
    surely_free = room - round(half_gib * GIB)
    return Finding(what, f"--kv-cache-memory-bytes {surely_free}" if surely_free > 0 else "")


def _not_free(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "Free memory on device … on startup is less than desired GPU
    memory utilization".

    Source: v1/worker/utils.py request_memory.
    """
    free = deployment.free_bytes - LEAST_CONTEXT_BYTES
    requested = fit(deployment).requested
    if requested <= free:
        return None
    share = free_memory.share_of_free(deployment.gpu, deployment.free_bytes / GIB)
    what = (
        f"gpu_memory_utilization {deployment.settings.gpu_memory_utilization:g} asks for "
        f"{requested / GIB:.2f} GiB, and at most {free / GIB:.2f} GiB of "
        f"{deployment.gpu.title} are free once CUDA has started"
    )
    if deployment.gpu.unified_memory and deployment.free_gib is None:
        what += ": its memory is the system's as well"
    return Finding(what, f"--gpu-memory-utilization {share:g}")


# Arguments


def _offline_replicas(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "LLM(data_parallel_size=…) is not supported for single-process
    usage".

    Source: entrypoints/llm.py LLM.__init__.
    """
    if deployment.settings.usage != "llm" or deployment.dp == 1:
        return None
    what = f"the LLM class does not start {deployment.dp} replicas in one process"
    return Finding(what, "--usage serve")


def _draft_split(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "Total number of attention heads … must be divisible by tensor
    parallel size".

    Source: config/speculative.py SpeculativeConfig._verify_args.
    """
    problem = _draft_problem(deployment, deployment.tp)
    if not problem:
        return None
    usable = (
        size
        for size in range(deployment.tp - 1, 0, -1)
        if not _draft_problem(deployment, size)
        and not ranks.tp_problem(deployment.model, size, deployment.experts_cut(size))
    )
    return Finding(problem, f"--tensor-parallel-size {next(usable, 1)}")


def _draft_problem(deployment: Deployment, tp: int) -> str:
    """Return why vLLM cannot split the draft over the ranks of the model, or ""."""
    draft = deployment.settings.draft
    if draft is None:
        return ""
    if draft.model:
        problem = ranks.tp_problem(draft.model, tp)
        return f"of the draft {draft.model.name}, {problem}" if problem else ""
    if draft.head and draft.head.heads % tp:
        return f"{tp} does not divide the draft's {draft.head.heads} attention heads"
    return ""


def _draft_over_stages(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "… does not support eagle3 with pipeline parallelism".

    Source: v1/worker/gpu/spec_decode/eagle/eagle3_utils.py
    verify_supports_aux_hidden_states_over_pp.
    """
    draft = deployment.settings.draft
    if draft is None or draft.method != EAGLE3 or deployment.pp == 1:
        return None
    if not deployment.settings.version.refuses_eagle3_over_stages:
        return None
    architecture = deployment.model.architecture
    # an architecture that no release has may come from a plug-in
    is_of_vllm = architecture in registries()["architectures"]
    if architecture in EAGLE3_OVER_STAGES or not is_of_vllm:
        return None
    what = (
        f"an EAGLE-3 head reads hidden states of several layers, and vLLM's class of "
        f"{deployment.model.name} does not send them from one pipeline stage to the next"
    )
    return Finding(what, "--pipeline-parallel-size 1")


def _draft_step_with_adapters(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "Consider increasing max_num_batched_tokens or decreasing
    num_speculative_tokens".

    Source: engine/arg_utils.py EngineArgs.create_engine_config.
    """
    if deployment.settings.adapters is None or deployment.settings.draft is None:
        return None
    width = deployment.settings.tokens_per_request
    needed = deployment.settings.max_num_seqs * width
    tokens = deployment.settings.max_num_batched_tokens
    if tokens >= needed:
        return None
    what = (
        f"with adapters, max_num_batched_tokens {tokens:,} must hold max_num_seqs "
        f"{deployment.settings.max_num_seqs:,} requests of {width} tokens each: {needed:,}"
    )
    return Finding(what, f"--max-num-seqs {max(1, tokens // width)}")


def _adapters_of_dealt_experts(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "Fused MoE LoRA does not support enable_expert_parallel=True
    together with fully_sharded_loras=True".

    Source: lora/layers/fused_moe.py FusedMoEWithLoRA._verify_ep_fs.
    """
    lora = deployment.settings.adapters
    if lora is None or not lora.fully_sharded or not deployment.ep or not deployment.model.moe:
        return None
    what = "adapters of experts cannot be fully sharded where whole experts are dealt out"
    return Finding(what, "--no-fully-sharded-loras")


def _full_graphs(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "CUDAGraphMode.FULL is not supported with … backend (support:
    AttentionCGSupport.NEVER)".

    Source: config/compilation.py CompilationConfig.resolve_cudagraph_mode_and_sizes.
    """
    if deployment.settings.mixed_graphs != FULL or has_full_graphs(deployment.model):
        return None
    return Finding(
        f"{deployment.model.name} has attention that no full CUDA graph captures.",
        "--compilation-config.cudagraph_mode=PIECEWISE",
    )


def _float16(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "The model type … does not support float16".

    Source: config/model.py _check_valid_dtype.
    """
    if (
        deployment.model.dtype != "float16"
        or deployment.model.model_type not in OVERFLOW_IN_FLOAT16
    ):
        return None
    flag = "--dtype bfloat16" if deployment.gpu.has_bfloat16 else "--dtype float32"
    return Finding(f"the numbers of {deployment.model.name} overflow in float16", flag)


def _activations(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "… is not supported for quantization method …".

    Source: config/vllm.py VllmConfig._get_quantization_config.
    """
    quantization = deployment.model.quantization
    if not quantization:
        return None
    usable = ACTIVATION_DTYPES.get(quantization.method, BOTH_16_BITS)
    if deployment.model.dtype in usable:
        return None
    flag = "--dtype half"
    if usable[0] == "bfloat16" and deployment.gpu.has_bfloat16:
        flag = "--dtype bfloat16"
    what = f"{quantization.method} weights are not multiplied in {deployment.model.dtype}"
    if DTYPES[flag.split()[1]] not in usable:
        flag = ""
    return Finding(what, flag)


def _cache_dtype(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with 'kv_cache_dtype="…" is incompatible with dtype="…"'.

    Source: config/vllm.py VllmConfig._reject_mismatched_float_kv_cache.
    """
    dtype = deployment.settings.kv_cache_dtype
    if dtype not in BOTH_16_BITS or dtype == deployment.model.dtype:
        return None
    if not deployment.settings.version.refuses_mixed_cache_dtype:
        return None
    what = f"a KV cache in {dtype} is refused for a model that runs in {deployment.model.dtype}"
    return Finding(what, "--kv-cache-dtype auto")


def _architecture(deployment: Deployment) -> Finding | None:
    """Find what vLLM refuses with "Model architectures … are not supported for now".

    Source: model_executor/models/registry.py _ModelRegistry._raise_for_unsupported.
    """
    problem = lacks(deployment.model.architecture, deployment.settings.vllm_version)
    # an architecture that no release has may come from a plug-in
    if not problem or problem.startswith("No vLLM"):
        return None
    return Finding(problem.removesuffix("."))


ARGUMENT_CHECKS = (
    _architecture,
    _float16,
    _activations,
    _cache_dtype,
    _offline_replicas,
    _draft_split,
    _draft_over_stages,
    _draft_step_with_adapters,
    _adapters_of_dealt_experts,
    _full_graphs,
)
MEMORY_CHECKS = (_not_free, _given_cache, _no_memory, _no_request, _state_blocks)

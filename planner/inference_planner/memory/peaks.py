"""The peak of vLLM's profile run on one rank, by the tensors that are live at it.

vLLM runs the model once on max_num_batched_tokens dummy tokens before it sizes the KV cache, and
keeps what that run needed at its peak: in the layer's graph, the sampler or the compiler. vLLM cuts
the compiled model at every attention call. The graph between two of them (o_proj, norm, MLP, norm,
qkv, rope) gets the attention output and the residual as arguments, which stay alive in the caller;
inside it the largest tensors are the MLP's. Sizes are elements a token on one rank; traced with
PyTorch's memory history on an H200 (benchmarks/gpu), model runner by model runner. Source: vLLM
0.25.1, v1/worker/gpu_worker.py determine_available_memory; of the shapes, model_executor/models.
"""

from collections.abc import Iterator

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, present
from inference_planner.catalog.gpus import GPU, MIB
from inference_planner.catalog.weight import VOCAB_PADDING
from inference_planner.model import drafts
from inference_planner.model.attention import (
    Peak,
    ProfileRun,
    Widths,
    ceil_div,
    has_states,
    kinds,
    main_kind,
)
from inference_planner.releases import platforms
from inference_planner.releases.versions import Version
from inference_planner.speed.kernels import has_marlin_experts
from inference_planner.split.deployment import Deployment
from inference_planner.split.encoders import encoder_run
from inference_planner.split.settings import Settings

# PyTorch's default on Hopper and newer (aten/src/ATen/cuda/CublasHandlePool.cpp)
CUBLAS_WORKSPACE = 32 * MIB
CUBLAS_WORKSPACE_OLDER = 8 * MIB
CUBLASLT_WORKSPACE = MIB  # for a product with a bias
SORTED_LOGIT_BYTES = 39  # of a sampler that sorts, with top_k and top_p: versions.py
SPARSE_CONTEXT = 40
LONG_CONTEXT = 262144  # above, 0.33.0 gathers two fifths of it
GUMBEL_BLOCK = 1024  # v1/worker/gpu/sample/gumbel.py: one maximum and its index for so many logits


def runner(model: ModelConfig, version: Version) -> int:
    """Return the model runner: 2 for dense decoders and a few MoE families, later for all.

    Source: config/vllm.py use_v2_model_runner of both tags.
    """
    if version.model_runner_v2_for_all:
        return 2
    if has_states(model) or not version.model_runner_v2_for_dense:
        return 1
    if model.moe and not model.traits.experts_in_runner_v2:
        return 1
    return 2


def compiles(settings: Settings) -> bool:
    """Return True if kernels are compiled within the profile run, not before, as in 0.32.0."""
    return settings.compiles and settings.version.compiles_in_profile_run


def workspace(model: ModelConfig, gpu: GPU, version: Version) -> int:
    """Return the scratch space that the first product takes from PyTorch's allocator.

    Under 0.32.0 it stands twice: one workspace was traced, and blocks that the allocator keeps in
    part are as large (0 to 20 MiB traced). 0.33.0 multiplies once before it starts to count
    (init_device).
    """
    if version.matrix_workspaces == 0:
        return 0
    size = CUBLAS_WORKSPACE if gpu.hopper_or_newer else CUBLAS_WORKSPACE_OLDER
    size *= version.matrix_workspaces
    if model.traits.qkv_bias:
        size += CUBLASLT_WORKSPACE
    return size


def moe_workspace(deployment: Deployment) -> int:
    """Return the bytes of two buffers of [tokens, chosen experts, width], kept once made.

    With data parallelism a rank's experts see the tokens of all replicas. gpt-oss' Triton kernels
    bring no workspace; Marlin's compute with its padded widths. Source:
    fused_moe/experts/{triton,marlin}_moe.py workspace_shapes.
    """
    model = deployment.model
    if not model.moe or has_triton_mxfp4(deployment):
        return 0
    cut = deployment.tp
    if deployment.expert_split:
        cut = deployment.expert_split.cut
    activation = model.moe.intermediate_size // cut
    hidden = model.hidden_size
    if model.traits.mxfp4_kernels:
        of_hidden, of_width = present(model.quantization).padding
        hidden = ceil_div(hidden, of_hidden) * of_hidden
        activation = ceil_div(activation, of_width) * of_width
    widths = max(activation, hidden) + max(2 * activation, hidden)
    tokens = deployment.dp * deployment.settings.max_num_batched_tokens
    return tokens * model.moe.experts_per_token * widths * DTYPE_BYTES[model.dtype]


def kept_workspace(deployment: Deployment) -> int:
    """Return the scratch space of experts and of sparse attention, which is one.

    An indexer gathers the keys of SPARSE_CONTEXT tokens for each that a request may have. On AMD's
    GPUs it also scores every token that a request may have for each of a step, and since 0.33.0 for
    each request alone (issue 55132). Source: v1/worker/workspace.py; get_max_prefill_buffer_size in
    v1/attention/backends/mla/indexer.py; v1/attention/ops/rocm_aiter_mla_sparse.py.
    """
    model, settings = deployment.model, deployment.settings
    length = settings.max_model_len
    rows = SPARSE_CONTEXT * length
    scored = settings.max_num_batched_tokens
    if settings.version.bounds_sparse_workspace:
        scored = min(scored, settings.max_num_seqs)
        if length > LONG_CONTEXT:
            rows = rows * 2 // 5
    sizes = [moe_workspace(deployment)]
    for kind in kinds(model):
        sizes.append(kind.workspace_bytes(model, rows))
        if platforms.name(deployment.gpu) == platforms.ROCM:
            sizes.append(scored * kind.graph_row_bytes(model, length))
    return max(sizes)


def has_triton_mxfp4(deployment: Deployment) -> bool:
    """Return True for gpt-oss' own 4-bit kernels: Triton's, or TensorRT-LLM's (not measured)."""
    return deployment.model.traits.mxfp4_kernels and not has_marlin_experts(deployment)


def _dense_mlp(model: ModelConfig, widths: Widths, mlp: int) -> int:
    """Return the elements at the MLP: the caller's output and residual, and its own tensors."""
    hidden = model.hidden_size
    if model.traits.gated_mlp:
        return 2 * hidden + widths.attn + 3 * mlp  # both halves of the gate, and their product
    if model.traits.parallel_block:  # qkv of the same input are ready, and wait for attention
        return 2 * hidden + 2 * (widths.q + widths.kv) + widths.kv + mlp
    # the input; the activation works in place, as the shape stays
    return 3 * hidden + widths.attn + mlp


def _layers(deployment: Deployment) -> Iterator[Peak]:
    """Yield the peaks of the graph between two calls of attention, and what some models add."""
    model, settings, tp = deployment.model, deployment.settings, deployment.tp
    widths = main_kind(model).widths(model, tp)
    hidden = model.hidden_size
    mlp = model.intermediate_size // tp
    tokens = settings.max_num_batched_tokens
    row_bytes = tokens * DTYPE_BYTES[model.dtype]  # of one element of every token
    scratch = kept_workspace(deployment)
    blas_workspace = workspace(model, deployment.gpu, settings.version)
    # inductor times new kernels with the L2 cache flushed
    flushed_cache = 0
    if compiles(settings):
        flushed_cache = deployment.gpu.l2_mib * MIB

    if not model.moe or len(model.moe.layers) < model.num_hidden_layers:
        elements = _dense_mlp(model, widths, mlp)
        size = row_bytes * elements + blas_workspace
        if model.traits.gated_mlp or model.traits.parallel_block:
            size += flushed_cache
        yield Peak("dense MLP", size, f"{tokens} tokens × {elements} elements")

    reduced = 5 if tp > 1 else 4  # an all-reduce writes its sum beside its input
    size = row_bytes * (reduced * hidden + widths.attn) + blas_workspace + flushed_cache
    parts = f"{tokens} tokens × ({reduced}·{hidden} + {widths.attn})"
    yield Peak("norm after attention", size, parts)

    elements = 3 * hidden + widths.attn + widths.q + 2 * widths.kv
    if model.traits.rope:
        elements += widths.q + widths.kv
    parts = "qkv, rotated q and k, residuals"
    if scratch:
        parts += ", the experts' workspace"
    yield Peak("attention", row_bytes * elements + scratch + blas_workspace, parts)

    if has_triton_mxfp4(deployment):
        chosen = model.experts.experts_per_token
        # each chosen expert has a middle and a result (gpt_oss_triton_kernels_moe.py)
        of_expert = model.experts.intermediate_size // tp + hidden
        size = row_bytes * (4 * hidden + chosen * of_expert) + blas_workspace
        yield Peak(
            "MXFP4 experts", size, f"{chosen} experts a token, what they hold and what they say"
        )
    if compiles(settings) and model.quantization and model.quantization.activation_bits == 8:
        parts = "example inputs of the kernels that quantize activations"
        size = tokens * max(7 * mlp + 4 * hidden, 13 * hidden)
        yield Peak("compiling the FP8 layer", size, parts)

    run = ProfileRun(
        tp,
        tokens,
        settings.max_num_seqs,
        settings.max_model_len,
        workspace_bytes=scratch + blas_workspace,
    )
    for kind in kinds(model):
        peak = kind.peak(model, run)
        if peak:
            yield peak


def _sampler(deployment: Deployment) -> Peak:
    """Return the peak of sampling: logits in 16 bit and, by version, 32; with V1, probabilities."""
    model, gpu, settings = deployment.model, deployment.gpu, deployment.settings
    requests = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    dtype_bytes = DTYPE_BYTES[model.dtype]
    logits = requests * model.vocab_size
    maxima = requests * -(-model.vocab_size // GUMBEL_BLOCK)
    hidden_states = (settings.max_num_batched_tokens + requests) * model.hidden_size
    base = hidden_states * dtype_bytes + maxima * 12
    base += workspace(model, gpu, settings.version) + kept_workspace(deployment)
    if settings.version.sampler_logits == "copy in 32 bit and rows of scratch":
        base += min(requests, gpu.sm_count) * model.vocab_size * 4  # a row for each multiprocessor
    if settings.version.sampler_logits == "sorted in 32 bit":
        parts = f"{requests} requests × {model.vocab_size} logits, sorted, with their places"
        size = hidden_states * dtype_bytes + logits * SORTED_LOGIT_BYTES
        return Peak("sampler", size, parts)
    if settings.version.sampler_logits == "16 bit alone":
        # in 32 bit only where a request asks for it (apply_sampling_params), and none does here
        parts = f"{requests} requests × {model.vocab_size} logits in 16 bit"
        copies = 1.0
        if deployment.tp > 1:
            parts += ": a rank's own, all ranks', and these side by side"
            copies = 2 + 1 / deployment.tp
        return Peak("sampler", base + round(logits * dtype_bytes * copies), parts)
    if runner(model, settings.version) == 2:
        parts = f"{requests} requests × {model.vocab_size} logits in 16 and 32 bit"
        return Peak("sampler", base + logits * (dtype_bytes + 4), parts)
    base += requests * model.hidden_size * dtype_bytes + gpu.sm_count * model.vocab_size * 4
    parts = f"{requests} requests × {model.vocab_size} logits, probabilities and noise in 32 bit"
    return Peak("sampler", base + logits * (dtype_bytes + 12), parts)


def _draft(deployment: Deployment, compiles_embedding: bool) -> Iterator[Peak]:
    """Yield the draft's peaks, beside the model's hidden states in the profile run.

    The draft's own graph puts the embedding and the hidden state side by side, both normalized
    (MTP; EAGLE-3 has the embedding beside what three layers said). Source:
    v1/worker/gpu/model_runner.py _dummy_run, which calls speculator.propose; models/qwen3_5_mtp.py.
    Runs on an H100: 0.2 GiB less were left beside MTP, 0.1 more beside EAGLE-3.
    """
    draft, model, settings = deployment.settings.draft, deployment.model, deployment.settings
    if draft is None or not draft.layers or not settings.version.counts_all_allocations:
        return
    hidden, intermediate, _ = drafts.width(model, draft)
    row_bytes = settings.max_num_batched_tokens * DTYPE_BYTES[model.dtype]
    model_hidden = model.hidden_size
    if draft.method == "eagle3":
        model_hidden += drafts.AUXILIARY_LAYERS * model.hidden_size
    widths = main_kind(model).widths(model, deployment.tp)
    elements = model_hidden + 2 * hidden + widths.attn + 3 * (intermediate // deployment.tp)
    size = row_bytes * elements + workspace(model, deployment.gpu, settings.version)
    yield Peak("draft", size, "the draft's MLP, beside the model's hidden states")
    shares_embedding = draft.method in ("mtp", "eagle", "eagle3")
    if shares_embedding and compiles_embedding:
        rows = -(-model.vocab_size // VOCAB_PADDING) * VOCAB_PADDING
        table = rows * model.hidden_size * DTYPE_BYTES[model.dtype]
        parts = "compiling the draft's embedding: an example table, both inputs side by side twice"
        yield Peak("draft's embedding", table + row_bytes * (4 * hidden + model_hidden), parts)


def _embedding_compile(model: ModelConfig, settings: Settings, tp: int) -> Peak:
    """Return the peak of timing the kernel that looks embeddings up, on a copy of the table.

    Inductor does so under 0.32.0, too, on one GPU. There the profile run of 8B on an H100 peaked at
    this size, to the MiB, with 512 and with 8,192 tokens a step; 70B on two H200 did not. A start
    that finds its kernels compiled does without, and has so much more KV cache.
    """
    rows = -(-model.vocab_size // VOCAB_PADDING) * VOCAB_PADDING // tp
    size = (
        (rows + 2 * settings.max_num_batched_tokens) * model.hidden_size * DTYPE_BYTES[model.dtype]
    )
    parts = f"an example table of {rows} × {model.hidden_size} and its output"
    return Peak("compiling the embedding", size, parts)


def candidates(deployment: Deployment, first: bool, last: bool) -> list[Peak]:
    """Return every candidate on a rank; the largest is what the profile run sees.

    Args:
        first, last: the rank is of the first, or of the last, pipeline stage.
    """
    model, settings = deployment.model, deployment.settings
    peaks = list(_layers(deployment))
    if last and not model.pooling:
        peaks.append(_sampler(deployment))
    # a multimodal model looks embeddings up outside of what is compiled
    embeds = encoder_run(model, settings, deployment.tp) is not None
    compiled = compiles(settings) or (deployment.tp == 1 and settings.compiles)
    compiles_embedding = compiled and not embeds
    if first and compiles_embedding:
        peaks.append(_embedding_compile(model, settings, deployment.tp))
    if last:
        peaks += _draft(deployment, compiles_embedding and deployment.tp == 1)
    # V1 makes the tensors that it receives inside the profile run
    if not first and runner(model, settings.version) == 1:
        received = (
            2 * settings.max_num_batched_tokens * model.hidden_size * DTYPE_BYTES[model.dtype]
        )
        peaks = [Peak(peak.name, peak.bytes + received, peak.parts) for peak in peaks]
    return peaks

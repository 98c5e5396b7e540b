"""The memory of a rank besides weights and KV cache, item by item, with reasons and sources.

vLLM runs the model once on max_num_batched_tokens dummy tokens before it sizes the KV cache, and
keeps what that run needed at its peak. Source: vLLM 0.25.1, v1/worker/gpu_worker.py
determine_available_memory.

The peak follows from the tensors that are live at it: the layer's graph, the sampler, the compiler.
vLLM cuts the compiled model at every attention call. The graph between two of them (o_proj, norm,
MLP, norm, qkv, rope) gets the attention output and the residual as arguments, which stay alive in
the caller; inside it the largest tensors are the MLP's. Sizes are elements a token on one rank;
traced with PyTorch's memory history on an H200 (benchmarks/gpu), model runner by model runner.
Source of the shapes: vLLM 0.25.1 model_executor/models/*.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

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
from inference_planner.releases.versions import Version
from inference_planner.speed.kernels import has_marlin_experts
from inference_planner.split.compilation import FULL, NONE, PIECEWISE
from inference_planner.split.deployment import Deployment
from inference_planner.split.encoders import LEFT_BY_ENCODER, EncoderRun, encoder_run
from inference_planner.split.settings import Settings

# Read with cudaMemGetInfo around each step on an H200 (CUDA 13.0, NCCL 2.28.9):
# benchmarks/gpu/measure_worker.py. the communicator that the first gather of logits opens; the same
# for 2 and 4 ranks
GATHER = 486 * MIB
GRAPHS_LEFT_OVER = 12 * MIB  # what capturing and dropping the trial graphs leaves behind, each rank

# PyTorch's default on Hopper and newer (aten/src/ATen/cuda/CublasHandlePool.cpp)
CUBLAS_WORKSPACE = 32 * MIB
CUBLAS_WORKSPACE_OLDER = 8 * MIB
CUBLASLT_WORKSPACE = MIB  # for a product with a bias
# half-empty blocks that gpt-oss' 4-bit experts leave (20b traced, 120b as many)
REPACKED_EXPERTS = 208 * MIB
SORTED_LOGIT_BYTES = 39  # of a sampler that sorts, with top_k and top_p: versions.py
GUMBEL_BLOCK = 1024  # v1/worker/gpu/sample/gumbel.py: one maximum and its index for so many logits


def runner(model: ModelConfig, version: Version) -> int:
    """Return the model runner: 2 for dense decoders and a few MoE families, later for all.

    Source: config/vllm.py use_v2_model_runner of both tags.
    """
    if version.model_runner_v2_for_all:
        return 2
    if has_states(model):
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
    experts_workspace = moe_workspace(deployment)
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
    if experts_workspace:
        parts += ", the experts' workspace"
    yield Peak("attention", row_bytes * elements + experts_workspace + blas_workspace, parts)

    if has_triton_mxfp4(deployment):
        yield _mxfp4_experts(model, tp, row_bytes, blas_workspace)
    if compiles(settings) and model.quantization and model.quantization.activation_bits == 8:
        parts = "example inputs of the kernels that quantize activations"
        size = tokens * max(7 * mlp + 4 * hidden, 13 * hidden)
        yield Peak("compiling the FP8 layer", size, parts)

    run = ProfileRun(
        tp,
        tokens,
        settings.max_num_seqs,
        settings.max_model_len,
        workspace_bytes=experts_workspace + blas_workspace,
    )
    for kind in kinds(model):
        peak = kind.peak(model, run)
        if peak:
            yield peak


def _mxfp4_experts(model: ModelConfig, tp: int, row_bytes: int, blas_workspace: int) -> Peak:
    """Return the peak of gpt-oss' experts, each with a middle and a result."""
    chosen = model.experts.experts_per_token
    width = model.experts.intermediate_size // tp
    elements = 4 * model.hidden_size + chosen * (width + model.hidden_size)
    parts = f"{chosen} experts a token, what they hold and what they say"
    return Peak("MXFP4 experts", row_bytes * elements + blas_workspace, parts)


def _sampler(deployment: Deployment) -> Peak:
    """Return the peak of sampling: logits in 16 bit and, by version, 32; with V1, probabilities.

    Model runner V1 adds probabilities and noise.
    """
    model, gpu, settings = deployment.model, deployment.gpu, deployment.settings
    requests = min(settings.max_num_seqs, settings.max_num_batched_tokens)
    dtype_bytes = DTYPE_BYTES[model.dtype]
    logits = requests * model.vocab_size
    maxima = requests * -(-model.vocab_size // GUMBEL_BLOCK)
    hidden_states = (settings.max_num_batched_tokens + requests) * model.hidden_size
    base = hidden_states * dtype_bytes + maxima * 12
    base += workspace(model, gpu, settings.version) + moe_workspace(deployment)
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


def draft_buffers(deployment: Deployment) -> int:
    """Return the bytes of a step's hidden states and, if so set, logits of the draft."""
    draft, model, settings = deployment.settings.draft, deployment.model, deployment.settings
    if draft is None or not draft.layers or not settings.version.counts_all_allocations:
        return 0
    hidden, _, vocabulary = drafts.width(model, draft)
    size = settings.max_num_batched_tokens * hidden * DTYPE_BYTES[model.dtype]
    if draft.keeps_logits:
        size += settings.max_num_seqs * draft.tokens * vocabulary * 4
    return size


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


GRAPH_SPLITS = 32  # config/attention.py, flash_attn_max_num_splits_for_cuda_graph
# driver memory of one more graph, measured (24 layers: 4 MiB)
FULL_GRAPH = 2 * MIB
PIECEWISE_GRAPH = 6 * MIB
PIECEWISE_GRAPH_OF_FEW_LAYERS = 4 * MIB
FEW_LAYERS = 28
# Of a hybrid model, whose layers with states are cut out of the graphs as attention is: 0.61 GiB
# for 35 sizes (Qwen3.8-27B, 64 layers, TP 2 on L20, 0.28.0)
PIECEWISE_GRAPH_OF_STATES = 16 * MIB
MORE_OF_8_BITS = 11 * MIB  # kernels that quantize activations: 0.97 GiB for the same in FP8
# Under 0.32.0, read from 24 records with 16 to 80 layers, TP 1 and 2 (120 MiB off at most):
LAYER_GRAPHS = 9 * MIB  # a layer's pieces in 51 sizes
# Of a hybrid model: 10.3 (Qwen3-Next, H200), 11.4 (Qwen3.8-27B, TP 2 on L20), and Nemotron Nano,
# whose layers are halves
LAYER_GRAPHS_OF_STATES = 11 * MIB
# Where shared experts run beside the routed ones, on a stream of their own, whose blocks the pool
# keeps apart: one run on two H100 (GLM-4.5-Air). What a kind of attention adds is in its module.
LAYER_GRAPHS_OF_SHARED_EXPERTS = 23 * MIB
# what the largest pieces compute with, and what a run before a capture leaves
CAPTURED_BESIDE = 80 * MIB


def graph_estimate(deployment: Deployment, layers: int) -> int:
    """Return what vLLM sets aside for the CUDA graphs of a rank with so many layers.

    The first full graph of decoding, of at most max_num_seqs requests, holds FlashAttention's
    partial sums (`_partial_sums`). Model runner V1 adds so much a graph, from 0.21.0 on; V2 sets
    nothing aside before 0.29.0. From then on it captures all pieces and two full graphs, and takes
    the second for all others: 1 MiB each, since capturing it first hands back what the run before it took. Those
    are partial sums again (`_times_summed_again`). With adapters every size is captured twice, with
    and without them.
    Source: profile_cudagraph_memory in v1/worker/gpu_model_runner.py and, for 0.32.0,
    v1/worker/gpu/cudagraph_utils.py.
    """
    model, settings = deployment.model, deployment.settings
    graph_sizes = settings.graph_sizes
    if not graph_sizes:
        return 0
    has_full = settings.decode_graphs == FULL
    has_pieces = PIECEWISE in (settings.decode_graphs, settings.mixed_graphs)
    has_pieces |= settings.mixed_graphs == FULL and not _captures_mixed_steps(deployment)
    decode_sizes = settings.decode_graph_sizes
    largest = decode_sizes[-1]
    request_bytes = _partial_sums(deployment) if has_full else 0
    cases = 2 if settings.adapters else 1
    if runner(model, settings.version) == 1:
        if not settings.version.graphs_are_profiled:
            return 0
        full_graph = FULL_GRAPH if has_full else 0
        piece = PIECEWISE_GRAPH
        if has_states(model):
            piece = PIECEWISE_GRAPH_OF_STATES
            if model.quantization and model.quantization.activation_bits == 8:
                piece += MORE_OF_8_BITS
        elif model.num_hidden_layers <= FEW_LAYERS:
            piece = PIECEWISE_GRAPH_OF_FEW_LAYERS
        graph = full_graph + (piece if has_pieces else 0)
        return largest * request_bytes + full_graph + graph * (cases * len(graph_sizes) - 1)
    if not settings.version.graphs_are_estimated:
        return 0
    second = largest
    if cases == 1 and len(decode_sizes) > 1:
        second = decode_sizes[-2]
    partial_sums = (largest + _times_summed_again(deployment) * second) * request_bytes
    full_graphs = (cases * len(decode_sizes) - 1) * MIB if has_full else 0
    layer_bytes = _layer_graphs(model) if has_pieces else 0
    pieces = layers * cases * len(graph_sizes) * layer_bytes // 51
    return partial_sums + CAPTURED_BESIDE + full_graphs + pieces + _draft_graphs(deployment)


def _captures_mixed_steps(deployment: Deployment) -> bool:
    """Return True if a step that prefills can be captured as a whole; else vLLM captures pieces.

    FlashAttention 3 can, FlashAttention 2 and FlashInfer cannot, nor can latents and states.
    Source: _cudagraph_support in v1/attention/backends (0.32.0).
    """
    keys = {kind.key for kind in kinds(deployment.model)}
    return deployment.gpu.is_hopper and keys <= {"full", "sliding"}


def _draft_graphs(deployment: Deployment) -> int:
    """Return the bytes of a draft's own graphs, all of which vLLM captures to estimate them.

    They are the pieces of its layers, a full graph for each of the model's, and, for the second and
    later draft tokens, one for each number of requests, of which the largest holds partial sums.
    EAGLE-3 also has each full graph of the model return the hidden states of three layers. Three
    runs on H100 (0.32.0) are met within 35 MiB.
    Source: v1/worker/gpu/spec_decode/target_dependent_ar (0.32.0).
    """
    draft, model, settings = deployment.settings.draft, deployment.model, deployment.settings
    if draft is None or not draft.layers:
        return 0
    decode_sizes = settings.decode_graph_sizes
    full_graphs = len(decode_sizes)
    partial_sums = 0
    if draft.tokens > 1:
        request_counts = [size for size in settings.graph_sizes if size <= settings.max_num_seqs]
        full_graphs += len(request_counts)
        partial_sums = max(request_counts, default=1) * _partial_sums(deployment)
    pieces = draft.layers * len(settings.graph_sizes) * _layer_graphs(model) // 51
    states = 0
    if draft.method == "eagle3":
        state_bytes = drafts.AUXILIARY_LAYERS * model.hidden_size * DTYPE_BYTES[model.dtype]
        states = len(decode_sizes) * decode_sizes[-1] * state_bytes
    return pieces + full_graphs * MIB + partial_sums + states


def _partial_sums(deployment: Deployment) -> int:
    """Return the bytes of a request's partial sums in a full graph: splits × heads × width × 4.

    FlashAttention 3, which runs on Hopper alone, splits each request of a graph GRAPH_SPLITS times.
    With MLA the width is that of the latent. Source: v1/attention/backends/flash_attn.py and
    mla/flashattn_mla.py (aot_schedule).
    """
    if not deployment.gpu.is_hopper:
        return 0
    heads = deployment.model.num_attention_heads // deployment.tp
    return GRAPH_SPLITS * heads * main_kind(deployment.model).summed_width(deployment.model) * 4


def _layer_graphs(model: ModelConfig) -> int:
    """Return the bytes that the pieces of one layer take in 51 sizes."""
    if has_states(model):
        return LAYER_GRAPHS_OF_STATES
    if not _has_shared_stream(model):
        return LAYER_GRAPHS
    return LAYER_GRAPHS_OF_SHARED_EXPERTS + main_kind(model).shared_stream_graph_bytes


def _has_shared_stream(model: ModelConfig) -> bool:
    """Return True if shared experts run on a stream of their own; in hybrids none was seen."""
    return bool(model.moe and model.moe.shared_intermediate_size and not has_states(model))


def _has_mrope(model: ModelConfig) -> bool:
    """Return True if positions have time, height and width of an image or a video."""
    text = model.raw.get("text_config")
    places: list[Mapping[str, object]] = [model.raw]
    if isinstance(text, dict):
        places.append(cast("Mapping[str, object]", text))
    for place in places:
        for name in ("rope_scaling", "rope_parameters"):
            rope = place.get(name)
            if isinstance(rope, dict) and "mrope_section" in rope:
                return True
    return False


def _times_summed_again(deployment: Deployment) -> int:
    """Return how often the second full graph holds partial sums under 0.32.0.

    Twice where layers keep more beside them (latents, norms of q and k, positions in three
    dimensions, several ranks), but once beside a stream of shared experts and in dense hybrids
    (Qwen3.5 27B, two runs), and not at all where splits are not planned (windows that differ).
    """
    model = deployment.model
    if any(model.layer_windows):
        return 0
    if main_kind(model).graphs_keep_more:
        return 2
    is_dense_hybrid = has_states(model) and not model.moe and deployment.settings.draft is None
    if _has_shared_stream(model) or is_dense_hybrid:
        return 1
    keeps_more = model.traits.qk_norm or model.traits.gated_attention or _has_mrope(model)
    return 2 if keeps_more or deployment.tp > 1 else 1


def request_states(model: ModelConfig, settings: Settings) -> int:
    """Return the bytes of the tables that model runner V2 keeps for its requests.

    They are counts of every token, two bit masks, and small buffers. 0.25.1 does not count them
    when it sizes the KV cache; 0.32.0 counts everything that is allocated.
    Source: v1/worker/gpu/sample/penalties.py, structured_outputs.py; small buffers measured.
    """
    if not settings.version.counts_all_allocations:
        return 0
    counts = 4 * model.vocab_size
    masks = 2 * 4 * -(-model.vocab_size // 32)
    return settings.max_num_seqs * (counts + masks) + 18 * MIB


@dataclass(frozen=True)
class Overhead:
    """One item: bytes on one rank, why it is there, and where the number comes from."""

    name: str
    bytes: int
    reason: str
    source: str


def overheads(deployment: Deployment, stage: int) -> Iterator[Overhead]:
    """Yield the overhead items of one rank of pipeline stage `stage`."""
    is_last = stage == deployment.pp - 1
    encoder = (
        encoder_run(deployment.model, deployment.settings, deployment.tp) if stage == 0 else None
    )
    yield _activations(deployment, stage, encoder)
    if encoder:
        yield from _of_encoder(deployment, encoder)
    yield _cuda_modules(deployment)
    if is_last:
        yield from _gather_buffers(deployment)
    yield from _cuda_graphs(deployment, stage)
    yield from _repacked_experts(deployment)
    if is_last:
        yield from _draft_buffers(deployment)
    yield from _request_states(deployment)


def _activations(deployment: Deployment, stage: int, encoder: EncoderRun | None) -> Overhead:
    """Return the peak of the profile run: a layer's, the sampler's, or the encoder's."""
    is_last = stage == deployment.pp - 1
    peak = max(candidates(deployment, stage == 0, is_last), key=lambda candidate: candidate.bytes)
    of_layers = f"peak of the profile run: {peak.name} ({peak.parts})"
    source = "shapes of vLLM 0.25.1's layers; live tensors traced on H200"
    if encoder is None:
        return Overhead("activations", peak.bytes, of_layers, source)
    items = f"{encoder.items} × {encoder.modality} of {encoder.tokens:,} tokens"
    beside_outputs = peak.bytes + encoder.output_bytes
    if encoder.peak_bytes >= beside_outputs:
        of_encoder = f"peak of the profile run: encoding {items}"
        measured = f"{encoder.source}; one run on an H100"
        return Overhead("activations", encoder.peak_bytes, of_encoder, measured)
    both = f"{of_layers}, beside the embeddings of {items}"
    return Overhead("activations", beside_outputs, both, source)


def _of_encoder(deployment: Deployment, encoder: EncoderRun) -> Iterator[Overhead]:
    """Yield what an encoder needs besides its peak."""
    tokens = deployment.settings.max_num_batched_tokens
    yield Overhead(
        "input embeddings",
        encoder.buffer_bytes,
        f"embeddings of {tokens} tokens, which the encoder's are put into",
        "v1/worker/gpu/mm/encoder_runner.py (0.32.0)",
    )
    yield Overhead(
        "encoder",
        LEFT_BY_ENCODER,
        "kernels and blocks that the encoder's first run leaves",
        "one run on an H100 (0.32.0)",
    )


def _cuda_modules(deployment: Deployment) -> Overhead:
    """Return the modules that CUDA loads after vLLM has begun to count."""
    version = deployment.settings.version
    size = version.kernels_at_profile_bytes
    reason = "modules that CUDA loads when a kernel is used for the first time"
    if deployment.replica_gpus == 1:
        size += version.kernels_at_load_bytes
    else:
        reason += " (with several ranks, most are loaded before vLLM starts to count)"
    return Overhead("CUDA kernels", size, reason, "cudaMemGetInfo around the profile run, H200")


def _gather_buffers(deployment: Deployment) -> Iterator[Overhead]:
    """Yield the buffers for the logits of tensor-parallel ranks, where vLLM opens them so late."""
    if deployment.tp > 1 and deployment.settings.version.gather_opens_communicator:
        reason = "buffers that the first gather of logits over the tensor-parallel ranks opens"
        source = "cudaMemGetInfo around the profile run, H200, NCCL 2.28.9"
        yield Overhead("NCCL", GATHER, reason, source)


def _cuda_graphs(deployment: Deployment, stage: int) -> Iterator[Overhead]:
    """Yield what vLLM sets aside for CUDA graphs, if it does."""
    size = graph_estimate(deployment, len(deployment.stages[stage]))
    if not size:
        return
    settings = deployment.settings
    kinds_of_graphs = (settings.decode_graphs, settings.mixed_graphs)
    graphs = len(settings.graph_sizes) * len({*kinds_of_graphs} - {NONE})
    reason = f"vLLM sets aside what it estimates for {graphs} graphs"
    source = f"profile_cudagraph_memory ({settings.vllm_version})"
    if runner(deployment.model, settings.version) == 1:
        size += GRAPHS_LEFT_OVER * deployment.tp
    else:
        source += "; from the source, ±15 %"
    yield Overhead("CUDA graphs", size, reason, source)


def _repacked_experts(deployment: Deployment) -> Iterator[Overhead]:
    """Yield what packing MXFP4 experts leaves, in releases that count all allocations."""
    if deployment.model.traits.mxfp4_kernels and deployment.settings.version.counts_all_allocations:
        reason = "blocks that packing the 4-bit experts leaves half empty"
        source = "allocator traced on H200 and H100"
        yield Overhead("repacked experts", REPACKED_EXPERTS, reason, source)


def _draft_buffers(deployment: Deployment) -> Iterator[Overhead]:
    """Yield the buffers of speculative decoding, which are on the last pipeline stage."""
    size = draft_buffers(deployment)
    if size:
        reason = "hidden states of a step, which the draft reads"
        yield Overhead("draft", size, reason, "v1/worker/gpu/spec_decode (0.32.0)")


def _request_states(deployment: Deployment) -> Iterator[Overhead]:
    """Yield the tables of requests, which a pooling model does not have."""
    size = request_states(deployment.model, deployment.settings)
    if size and not deployment.model.pooling:
        reason = f"token counts and masks of {deployment.settings.max_num_seqs} requests"
        source = "v1/worker/gpu/sample (0.32.0), counted since memory is taken from cudaMemGetInfo"
        yield Overhead("request states", size, reason, source)

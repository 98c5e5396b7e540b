"""What a rank needs besides weights and KV cache, item by item, each with its reason and source.

vLLM runs the model once on max_num_batched_tokens dummy tokens before it sizes the KV cache, and keeps what that
run needed at its peak. Source: vLLM 0.25.1, v1/worker/gpu_worker.py determine_available_memory.

The peak follows from the tensors that are live at it: the layer's graph, the sampler, the compiler. vLLM cuts the
compiled model at every attention call. The graph between two of them (o_proj, norm, MLP, norm, qkv, rope) gets the
attention output and the residual as arguments, which stay alive in the caller; inside it the largest tensors are the
MLP's. Sizes are elements a token on one rank; traced with PyTorch's memory history on an H200 (benchmarks/gpu), model
runner by model runner. Source of the shapes: vLLM 0.25.1 model_executor/models/*.py.
"""

# m model, d deployment, s settings, w widths, h hidden size, t tokens, e bytes of one, r requests, v vocabulary, o overhead
from collections.abc import Iterator
from dataclasses import dataclass

from inference_planner.attention import Peak, ProfileRun, Widths, has_states, kinds, main_kind
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.gpus import GPU, MIB
from inference_planner.deployment import Deployment
from inference_planner.ranks import partition_layers
from inference_planner.settings import Settings
from inference_planner.versions import Version
from inference_planner.weight import VOCAB_PADDING

# Read with cudaMemGetInfo around each step on an H200 (CUDA 13.0, NCCL 2.28.9): benchmarks/gpu/measure_worker.py.
# the communicator that the first gather of logits opens; the same for 2 and 4 ranks
GATHER = 486 * MIB
GRAPHS_LEFT_OVER = 12 * MIB  # what capturing and dropping the trial graphs leaves behind, each rank

# PyTorch's default on Hopper and newer (aten/src/ATen/cuda/CublasHandlePool.cpp)
CUBLAS_WORKSPACE = 32 * MIB
CUBLAS_WORKSPACE_OLDER = 8 * MIB
CUBLASLT_WORKSPACE = MIB  # for a product with a bias
# half-empty blocks that gpt-oss' 4-bit experts leave (20b traced, 120b as many)
REPACKED_EXPERTS = 208 * MIB
GUMBEL_BLOCK = 1024  # v1/worker/gpu/sample/gumbel.py: one maximum and its index for so many logits


def runner(m: ModelConfig, version: Version) -> int:
    """Return the model runner: 2 for dense decoders and a few MoE families, 1 for the rest; in 0.32.0 always 2.

    Source: config/vllm.py use_v2_model_runner of both tags.
    """
    if version.model_runner_v2_for_all:
        return 2
    if has_states(m):
        return 1
    return 1 if m.moe and not m.traits.experts_in_runner_v2 else 2


def compiles(s: Settings) -> bool:
    """True where kernels are compiled, and timed, within the profile run; 0.32.0 does so before it, but for the embedding's."""
    return not s.enforce_eager and s.version.compiles_in_profile_run


def workspace(m: ModelConfig, gpu: GPU, version: Version) -> int:
    """Bytes of the matrix library's scratch space, taken from PyTorch's allocator by the first product.

    Under 0.32.0 it stands twice: one workspace was traced, and blocks that the allocator keeps in part are as large (0 to
    20 MiB traced). 0.33.0 multiplies once before it starts to count (init_device).
    """
    if version.matrix_workspaces == 0:
        return 0
    plain = CUBLAS_WORKSPACE if gpu.hopper_or_newer else CUBLAS_WORKSPACE_OLDER
    return plain * version.matrix_workspaces + (CUBLASLT_WORKSPACE if m.traits.qkv_bias else 0)


def moe_workspace(d: Deployment) -> int:
    """Bytes of the fused experts' workspaces: two buffers of [tokens, chosen experts, width], kept once made.

    With data parallelism a rank's experts see the tokens of all replicas. gpt-oss' MXFP4 kernels on Hopper bring no
    workspace. Source: fused_moe/experts/triton_moe.py workspace_shapes.
    """
    m, s, experts = d.model, d.settings, d.expert_split
    if not m.moe or m.traits.mxfp4_kernels:
        return 0
    act, h = m.moe.intermediate_size // (experts.cut if experts else d.tp), m.hidden_size
    each = max(act, h) + max(2 * act, h)
    return (
        d.dp * s.max_num_batched_tokens * m.experts.experts_per_token * each * DTYPE_BYTES[m.dtype]
    )


def _dense_mlp(m: ModelConfig, w: Widths, mlp: int) -> int:
    """The caller's attention output and residual, the new residual, and the MLP's own tensors."""
    h = m.hidden_size
    if m.traits.gated_mlp:
        return 2 * h + w.attn + 3 * mlp  # both halves of the gate, and their product
    if m.traits.parallel_block:  # qkv of the same input are ready, and wait for attention
        return 2 * h + 2 * (w.q + w.kv) + w.kv + mlp
    return 3 * h + w.attn + mlp  # the input; the activation works in place, as the shape stays


def _layers(d: Deployment) -> Iterator[Peak]:
    """The graph between two calls of attention, at its largest and at both ends, and what only some models have."""
    m, gpu, s, tp = d.model, d.gpu, d.settings, d.tp
    w, h, mlp = main_kind(m).widths(m, tp), m.hidden_size, m.intermediate_size // tp
    t, e = s.max_num_batched_tokens, DTYPE_BYTES[m.dtype]
    experts, blas = moe_workspace(d), workspace(m, gpu, s.version)
    # inductor times new kernels with the L2 cache flushed
    timing = gpu.l2_mib * MIB if compiles(s) else 0
    if not m.moe or len(m.moe.layers) < m.num_hidden_layers:
        timed = timing if m.traits.gated_mlp or m.traits.parallel_block else 0
        each = _dense_mlp(m, w, mlp)
        yield Peak("dense MLP", t * e * each + blas + timed, f"{t} tokens × {each} elements")
    reduced = 5 if tp > 1 else 4  # an all-reduce writes its sum beside its input
    size = t * e * (reduced * h + w.attn) + blas + timing
    yield Peak("norm after attention", size, f"{t} tokens × ({reduced}·{h} + {w.attn})")
    tail = 3 * h + w.attn + w.q + 2 * w.kv + (w.q + w.kv if m.traits.rope else 0)
    parts = "qkv, rotated q and k, residuals" + (", the experts' workspace" if experts else "")
    yield Peak("attention", t * e * tail + experts + blas, parts)
    # gpt_oss_triton_kernels_moe.py: each chosen expert's middle and result
    if m.traits.mxfp4_kernels:
        k, act = m.experts.experts_per_token, m.experts.intermediate_size // tp
        parts = f"{k} experts a token, what they hold and what they say"
        yield Peak("MXFP4 experts", t * e * (4 * h + k * (act + h)) + blas, parts)
    if compiles(s) and m.quantization and m.quantization.activation_bits == 8:
        parts = "example inputs of the kernels that quantize activations"
        yield Peak("compiling the FP8 layer", t * max(7 * mlp + 4 * h, 13 * h), parts)
    run = ProfileRun(tp, t, s.max_num_seqs, s.max_model_len, workspace_bytes=experts + blas)
    for kind in kinds(m):
        if peak := kind.peak(m, run):
            yield peak


def _sampler(d: Deployment) -> Peak:
    """Logits of max_num_seqs requests, in 16 bit and again in 32; model runner V1 adds probabilities and noise."""
    m, gpu, s = d.model, d.gpu, d.settings
    r, v, t = min(s.max_num_seqs, s.max_num_batched_tokens), m.vocab_size, s.max_num_batched_tokens
    e, h = DTYPE_BYTES[m.dtype], m.hidden_size
    base = (
        (t + r) * h * e
        + workspace(m, gpu, s.version)
        + moe_workspace(d)
        + r * -(-v // GUMBEL_BLOCK) * 12
    )
    # a row for each multiprocessor
    if s.version.sampler_logits == "copy in 32 bit and rows of scratch":
        base += min(r, gpu.sm_count) * v * 4
    if s.version.sampler_logits == "16 bit alone":
        # in 32 bit only where a request asks for it (apply_sampling_params), and none does here
        parts = "" if d.tp == 1 else ": a rank's own, all ranks', and these side by side"
        size = r * v * e * (2 + 1 / d.tp if d.tp > 1 else 1)
        return Peak("sampler", base + round(size), f"{r} requests × {v} logits in 16 bit{parts}")
    if runner(m, s.version) == 2:
        return Peak(
            "sampler", base + r * v * (e + 4), f"{r} requests × {v} logits in 16 and 32 bit"
        )
    base += r * h * e + gpu.sm_count * v * 4
    return Peak(
        "sampler",
        base + r * v * (e + 12),
        f"{r} requests × {v} logits, probabilities and noise in 32 bit",
    )


def _embedding_compile(m: ModelConfig, s: Settings, tp: int) -> Peak:
    """Inductor times the kernel that looks embeddings up on a copy of the table: also under 0.32.0, on one GPU.

    There the profile run of 8B on an H100 peaked at this size, to the MiB, with 512 and with 8,192 tokens a step; 70B
    on two H200 did not. A start that finds its kernels compiled does without, and has so much more KV cache.
    """
    rows, h = -(-m.vocab_size // VOCAB_PADDING) * VOCAB_PADDING // tp, m.hidden_size
    size = (rows + 2 * s.max_num_batched_tokens) * h * DTYPE_BYTES[m.dtype]
    return Peak("compiling the embedding", size, f"an example table of {rows} × {h} and its output")


def candidates(d: Deployment, first: bool, last: bool) -> list[Peak]:
    """Return every candidate on a rank; the largest is what the profile run sees."""
    m, s, out = d.model, d.settings, list(_layers(d))
    if last:
        out.append(_sampler(d))
    if first and (compiles(s) or (d.tp == 1 and not s.enforce_eager)):
        out.append(_embedding_compile(m, s, d.tp))
    # V1 makes the tensors that it receives inside the profile run
    if not first and runner(m, s.version) == 1:
        received = 2 * s.max_num_batched_tokens * m.hidden_size * DTYPE_BYTES[m.dtype]
        out = [Peak(p.name, p.bytes + received, p.parts) for p in out]
    return out


GRAPH_SPLITS = 32  # config/attention.py, flash_attn_max_num_splits_for_cuda_graph
# driver memory of one more graph, measured (24 layers: 4 MiB)
FULL_GRAPH, PIECEWISE_GRAPH = 2 * MIB, 6 * MIB
# Under 0.32.0, read from 24 records with 16 to 80 layers, TP 1 and 2 (120 MiB off at most):
LAYER_GRAPHS = 9 * MIB  # a layer's pieces in 51 sizes
# what the largest pieces compute with, and what a run before a capture leaves
CAPTURED_BESIDE = 80 * MIB


def graph_estimate(d: Deployment, layers: int) -> int:
    """What vLLM sets aside for CUDA graphs before it sizes the KV cache; `layers` are those of the rank.

    The first full graph of decoding, of at most max_num_seqs requests, holds FlashAttention's partial sums: 32 splits ×
    requests × heads × head_dim in 32 bit. Model runner V1 adds so much a graph; V2 sets nothing aside in 0.25.1. In
    0.32.0 it captures all pieces and two full graphs, and takes the second for all others: 1 MiB each, since capturing it
    first hands back what the run before it took. Those are partial sums again, and are counted so: twice where layers
    keep more beside them (norms of q and k, several ranks), not at all where splits are not planned (windows that differ,
    latents, GPUs before Hopper).
    Source: profile_cudagraph_memory in v1/worker/gpu_model_runner.py and, for 0.32.0, v1/worker/gpu/cudagraph_utils.py.
    """
    m, s, tp = d.model, d.settings, d.tp
    if s.enforce_eager or not s.graph_sizes:
        return 0
    sizes = [size for size in s.graph_sizes if size <= s.max_num_seqs] or s.graph_sizes[:1]
    a_request = GRAPH_SPLITS * (m.num_attention_heads // tp) * m.head_dim * 4
    if runner(m, s.version) == 1:
        each = FULL_GRAPH + (PIECEWISE_GRAPH if m.num_hidden_layers > 28 else 4 * MIB)
        return sizes[-1] * a_request + 2 * MIB + each * (len(s.graph_sizes) - 1)
    if not s.version.graphs_are_estimated:
        return 0
    planned = d.gpu.hopper_or_newer and main_kind(m).plans_splits and not any(m.layer_windows)
    again = planned * (2 if m.traits.qk_norm or m.traits.gated_attention or tp > 1 else 1)
    sums = (sizes[-1] + again * sizes[-2:][0]) * a_request
    return (
        sums
        + CAPTURED_BESIDE
        + (len(sizes) - 1) * MIB
        + layers * len(s.graph_sizes) * LAYER_GRAPHS // 51
    )


def request_states(m: ModelConfig, s: Settings) -> int:
    """Tables that model runner V2 keeps for its requests: counts of every token, two bit masks, and small buffers.

    0.25.1 does not count them when it sizes the KV cache; 0.32.0 counts everything that is allocated.
    Source: v1/worker/gpu/sample/penalties.py, structured_outputs.py; small buffers measured.
    """
    if not s.version.counts_all_allocations:
        return 0
    return s.max_num_seqs * (4 * m.vocab_size + 2 * 4 * -(-m.vocab_size // 32)) + 18 * MIB


@dataclass(frozen=True)
class Overhead:
    """One item: bytes on one rank, why it is there, and where the number comes from."""

    name: str
    bytes: int
    reason: str
    source: str


def overheads(d: Deployment, stage: int) -> Iterator[Overhead]:
    """Yield the overhead items of one rank of pipeline stage `stage`."""
    m, s, tp = d.model, d.settings, d.tp
    first, last, alone = stage == 0, stage == d.pp - 1, d.replica_gpus == 1
    peak = max(candidates(d, first, last), key=lambda p: p.bytes)
    loaded = "" if alone else " (with several ranks, most are loaded before vLLM starts to count)"
    reason = f"peak of the profile run: {peak.name} ({peak.parts})"
    yield Overhead(
        "activations",
        peak.bytes,
        reason,
        "shapes of vLLM 0.25.1's layers; live tensors traced on H200",
    )
    kernels = s.version.kernels_at_profile_bytes
    if alone:
        kernels += s.version.kernels_at_load_bytes
    reason = f"modules that CUDA loads when a kernel is used for the first time{loaded}"
    yield Overhead("CUDA kernels", kernels, reason, "cudaMemGetInfo around the profile run, H200")
    if tp > 1 and last and s.version.gather_opens_communicator:
        reason = "buffers that the first gather of logits over the tensor-parallel ranks opens"
        yield Overhead(
            "NCCL", GATHER, reason, "cudaMemGetInfo around the profile run, H200, NCCL 2.28.9"
        )
    if graphs := graph_estimate(d, len(partition_layers(m.num_hidden_layers, d.pp)[stage])):
        old = runner(m, s.version) == 1
        kept, doubt = (GRAPHS_LEFT_OVER * tp, "") if old else (0, "; from the source, ±15 %")
        reason = f"vLLM sets aside what it estimates for {2 * len(s.graph_sizes)} graphs"
        source = f"profile_cudagraph_memory ({s.vllm_version}){doubt}"
        yield Overhead("CUDA graphs", graphs + kept, reason, source)
    if m.traits.mxfp4_kernels and s.version.counts_all_allocations:
        reason = "blocks that packing the 4-bit experts leaves half empty"
        yield Overhead(
            "repacked experts", REPACKED_EXPERTS, reason, "allocator traced on H200 and H100"
        )
    if states := request_states(m, s):
        reason = f"token counts and masks of {s.max_num_seqs} requests"
        source = "v1/worker/gpu/sample (0.32.0), counted since memory is taken from cudaMemGetInfo"
        yield Overhead("request states", states, reason, source)

"""The memory of a rank besides weights and KV cache, item by item, with reasons and sources."""

from collections.abc import Iterator
from dataclasses import dataclass

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, present
from inference_planner.catalog.gpus import MIB
from inference_planner.memory.graphs import graph_estimate
from inference_planner.memory.peaks import candidates, runner
from inference_planner.model import drafts
from inference_planner.split.compilation import NONE
from inference_planner.split.deployment import Deployment
from inference_planner.split.encoders import LEFT_BY_ENCODER, EncoderRun, encoder_run
from inference_planner.split.settings import Settings

# Read with cudaMemGetInfo around each step on an H200 (CUDA 13.0, NCCL 2.28.9):
# benchmarks/gpu/measure_worker.py. It is the same for 2 and 4 ranks, and, with NCCL 2.30.7, for two
# H100 that quantize a 70B while it loads (0.33.0).
COMMUNICATOR = 486 * MIB
GRAPHS_LEFT_OVER = 12 * MIB  # what capturing and dropping the trial graphs leaves behind, each rank
# Where CPU and GPU share the memory, vLLM counts what the machine has available, so that a start's own
# processes count (utils/mem_utils.py, MemorySnapshot): 1.8, 1.8 and 2.6 GiB in three logs of a GB10,
# 0.11.0 to 0.27.1 (benchmarks/accuracy).
HOST_MEMORY = 2150 * MIB
# half-empty blocks that gpt-oss' 4-bit experts leave (20b traced, 120b as many)
REPACKED_EXPERTS = 208 * MIB
# Where ranks cut and pad each expert: gpt-oss-120b on two H100 (0.33.0), by PyTorch's counters
# 0.60 GiB in such blocks, and 0.10 in the roundings of the tensors
REPACKED_EXPERTS_OF_RANKS = 716 * MIB
# Of a model with chunked attention: Llama 4 Scout on four H100 (0.33.0) had so much more at the peak
# of its profile run than its tensors explain. What it is was not traced.
CHUNKED_ATTENTION = 1130 * MIB

# Names of overheads that other modules look for: those that a log of vLLM tells apart.
ACTIVATIONS = "activations"
GRAPHS = "CUDA graphs"
KERNELS = "CUDA kernels"


@dataclass(frozen=True)
class Overhead:
    """One item: bytes on one rank, why it is there, and where the number comes from."""

    name: str
    bytes: int
    reason: str
    source: str


def overheads(deployment: Deployment, stage: int) -> Iterator[Overhead]:
    """Yield the overhead items of one rank of pipeline stage `stage`."""
    model, settings = deployment.model, deployment.settings
    is_last = stage == deployment.pp - 1
    encoder: EncoderRun | None = None
    if stage == 0 and not settings.skip_mm_profiling:
        encoder = encoder_run(model, settings, deployment.tp)
    yield _activations(deployment, stage, encoder)
    if encoder:
        yield from _of_encoder(deployment, encoder)
    yield _cuda_modules(deployment)
    if deployment.gpu.hides_memory:
        reason = "memory of the engine's processes, which the GPU shares"
        yield Overhead("host memory", HOST_MEMORY, reason, "three public logs of a GB10")
    if deployment.tp > 1:
        yield from _communicator(deployment, is_last)
    yield from _cuda_graphs(deployment, stage)
    if not settings.version.counts_all_allocations:
        return
    if model.traits.mxfp4_kernels:
        reason = "blocks that packing the 4-bit experts leaves half empty"
        source = "allocator traced on H200 and H100"
        size = REPACKED_EXPERTS
        if deployment.tp > 1:
            source = "gpt-oss-120b on two H100, 0.33.0"
            size = REPACKED_EXPERTS_OF_RANKS
        yield Overhead("repacked experts", size, reason, source)
    if any(model.layer_chunks):
        reason = "more than the tensors of chunked attention's layers explain; not traced"
        source = "one start of Llama 4 Scout on four H100, 0.33.0"
        yield Overhead("chunked attention", CHUNKED_ATTENTION, reason, source)
    if is_last and settings.draft and settings.draft.layers:
        reason = "hidden states of a step, which the draft reads"
        size = _draft_buffers(model, settings, settings.draft)
        yield Overhead("draft", size, reason, "v1/worker/gpu/spec_decode (0.32.0)")
    if not model.pooling:
        reason = f"token counts and masks of {settings.max_num_seqs} requests"
        source = "v1/worker/gpu/sample (0.32.0), counted since memory is taken from cudaMemGetInfo"
        yield Overhead("request states", _request_states(model, settings), reason, source)


def _communicator(deployment: Deployment, is_last: bool) -> Iterator[Overhead]:
    """Yield the buffers of what tensor-parallel ranks open beside their first communicator.

    Ranks that quantize weights to FP8 agree on the largest of them while they load. Where FP8 has a
    scale for each block of weights, they need not. Source: quantization/utils/quant_utils.py
    amax_for_tp_weight_quant, which model_executor/layers/quantization/online/fp8.py calls (0.32.0).
    """
    quantization = deployment.model.quantization
    is_online_fp8 = quantization and quantization.online and quantization.method == "fp8"
    if is_online_fp8 and not present(quantization).block:
        reason = "buffers that agreeing on the scales of weights opens, while they are loaded"
        source = "Llama 3.1 70B with --quantization fp8 on two H100, 0.33.0"
        yield Overhead("NCCL", COMMUNICATOR, reason, source)
    elif is_last and deployment.settings.version.gather_opens_communicator:
        reason = "buffers that the first gather of logits over the tensor-parallel ranks opens"
        source = "cudaMemGetInfo around the profile run, H200, NCCL 2.28.9"
        yield Overhead("NCCL", COMMUNICATOR, reason, source)
    size = deployment.settings.version.fused_all_reduce_bytes
    if size and _fuses_all_reduce(deployment):
        reason = "buffers of FlashInfer's all-reduce, which vLLM fuses with the norm after it"
        yield Overhead(
            "fused all-reduce", size, reason, "flashinfer/comm/mnnvl.py (0.6.4 to 0.6.8)"
        )


def _fuses_all_reduce(deployment: Deployment) -> bool:
    """Return True if vLLM fuses an all-reduce with the norm after it, over tensor-parallel ranks alone.

    Source: vLLM 0.17.0, config/vllm.py enable_allreduce_rms_fusion. FlashInfer has 2, 4 or 8 ranks
    (config/compilation.py, PassConfig.flashinfer_max_size).
    """
    is_split_alone = deployment.pp == 1 and deployment.dp == 1 and deployment.tp in (2, 4, 8)
    has_kernels = deployment.gpu.compute_capability in ("9.0", "10.0", "10.3")
    return is_split_alone and has_kernels and deployment.settings.compiles


def _activations(deployment: Deployment, stage: int, encoder: EncoderRun | None) -> Overhead:
    """Return the peak of the profile run: a layer's, the sampler's, or the encoder's."""
    is_last = stage == deployment.pp - 1
    peak = max(candidates(deployment, stage == 0, is_last), key=lambda candidate: candidate.bytes)
    of_layers = f"peak of the profile run: {peak.name} ({peak.parts})"
    source = "shapes of vLLM 0.25.1's layers; live tensors traced on H200"
    if encoder is None:
        return Overhead(ACTIVATIONS, peak.bytes, of_layers, source)
    items = f"{encoder.items} × {encoder.modality} of {encoder.tokens:,} tokens"
    beside_outputs = peak.bytes + encoder.output_bytes
    if encoder.peak_bytes >= beside_outputs:
        of_encoder = f"peak of the profile run: encoding {items}"
        measured = f"{encoder.source}; one run on an H100"
        return Overhead(ACTIVATIONS, encoder.peak_bytes, of_encoder, measured)
    both = f"{of_layers}, beside the embeddings of {items}"
    return Overhead(ACTIVATIONS, beside_outputs, both, source)


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
    return Overhead(KERNELS, size, reason, "cudaMemGetInfo around the profile run, H200")


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
    yield Overhead(GRAPHS, size, reason, source)


def _draft_buffers(model: ModelConfig, settings: Settings, draft: drafts.Draft) -> int:
    """Return the bytes of a step's hidden states and, if so set, logits of the draft."""
    hidden, _, vocabulary = drafts.width(model, draft)
    size = settings.max_num_batched_tokens * hidden * DTYPE_BYTES[model.dtype]
    if draft.keeps_logits:
        size += settings.max_num_seqs * draft.tokens * vocabulary * 4
    return size


def _request_states(model: ModelConfig, settings: Settings) -> int:
    """Return the bytes of the tables that model runner V2 keeps for its requests.

    They are counts of every token, two bit masks, and small buffers. 0.25.1 does not count them
    when it sizes the KV cache; 0.32.0 counts everything that is allocated.
    Source: v1/worker/gpu/sample/penalties.py, structured_outputs.py; small buffers measured.
    """
    counts = 4 * model.vocab_size
    masks = 2 * 4 * -(-model.vocab_size // 32)
    return settings.max_num_seqs * (counts + masks) + 18 * MIB

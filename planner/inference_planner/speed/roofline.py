"""Predict speed by roofline.

A step takes the time of weights and KV cache over the memory bandwidth, arithmetic over FLOP/s,
messages, and launches.

The constants are a least-squares fit to 23 runs of vLLM 0.25.1 on 1 to 4 H200 (data/runs): 14
models, dense, MoE, MLA and sliding window, 16 bit and FP8, TP and PP. Largest error there 4 %. What
differs with the GPU's generation and with the kernel that vLLM takes for the weights is a row of
kernels.py; other GPUs take Hopper's shares.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from inference_planner.catalog.architectures import LAYER_US_OF_CLASS
from inference_planner.catalog.config import ModelConfig
from inference_planner.catalog.gpus import GPU
from inference_planner.catalog.weight import ExpertSplit
from inference_planner.errors import BadInput
from inference_planner.model.attention import grouped
from inference_planner.model.kv_cache import kv_dtype_bytes
from inference_planner.model.weights import (
    active_parameters,
    embedding_weights,
    head_weights,
    parts,
    tensor_bytes,
    weight_bytes,
)
from inference_planner.releases import attention_backends
from inference_planner.releases.versions import Version
from inference_planner.speed.kernels import (
    BITS_16,
    DENSE,
    FP8_BLOCKS,
    card,
    dense_kernel,
    experts_kernel,
    kernel,
    products_share,
)
from inference_planner.split.communication import traffic
from inference_planner.split.compilation import FULL, NONE
from inference_planner.split.deployment import Deployment
from inference_planner.split.ranks import offloaded_bytes

MATMUL_SHARE = 0.70  # of the peak FLOP/s that large products reach on an H100
LAYER_US = 26.4  # small kernels of a layer: norms, rope, cache write, attention of a short context
MOE_LAYER_US = 20.0  # routing and gathering of experts
PREFILL_STEP_MS = 4.0  # a first token also waits for the request to be taken in and scheduled
FP8_LAYER_US = 8.4  # quantizing activations
EXTRA_NORMS_US = 11.7  # Gemma's two more norms
STEP_MS = 0.34  # scheduling, sampling, the head's small kernels
# Python from a step's answers to the next step's first kernel: six loads of 8B on one H100 (0.25.1)
HOST_STEP_MS = 2.35
# Of releases whose GPUs wait for it: 60 public points of Qwen3 32B on two and eight H100 (0.12)
AWAITED_HOST_STEP_MS = 1.7
EAGER_LAYER_MS = 0.28  # launching a layer's kernels one by one from Python, without CUDA graphs
# What a layer takes longer where vLLM captures only the pieces between attention: Llama 4 Scout on
# four H100 (0.33.0), whose chunked attention has no full graphs, decodes 51.6 tokens/s.
PIECES_LAYER_MS = 0.277
# of a layer, for one more request: 70B FP8 (0.25.1) and 8B (0.32.0), up to 256 of them
REQUEST_LAYER_US = 0.27
# How unevenly tokens choose experts: the squared coefficient of variation of how often each is
# chosen; 0 would be evenly. 500 public points of gpt-oss, MiniMax M2.5 and Kimi K2.5 (docs/speed.md)
EXPERTS_VARIATION = 0.6
QUESTION_TOKENS = 300  # of a learner
FIRST_TOKEN_S = 5.0  # that a learner waits at most


@dataclass(frozen=True)
class Term:
    """One part of the time of a step, in ms, with its source and how far it may be off."""

    name: str
    ms: float
    source: str
    uncertainty: str


@dataclass(frozen=True)
class ReadBytes:
    """Bytes that a step reads on a rank of every stage; `plain`: 16 bit, and the head."""

    plain: int
    quantized: int
    experts: int


@lru_cache(maxsize=512)
def _read_bytes(model: ModelConfig, tp: int, split: ExpertSplit | None) -> ReadBytes:
    plain = 0
    quantized = 0
    experts = 0
    for count, part in parts(model, tp, split):
        size = count * part.bytes
        if part.weight.is_expert:
            experts += size
        elif part.is_quantized:
            quantized += size
        else:
            plain += size
    head = [next(embedding_weights(model))] if model.tie_word_embeddings else head_weights(model)
    for weight in head:
        plain += sum(tensor_bytes(model, weight, 0, tp))
    scale = model.exact.scale if model.exact else 1
    return ReadBytes(int(plain * scale), int(quantized * scale), int(experts * scale))


def _small_kernels_ms(deployment: Deployment) -> float:
    model = deployment.model
    gpu = deployment.gpu
    layers = model.num_hidden_layers
    us = layers * (LAYER_US + LAYER_US_OF_CLASS.get(model.architecture, 0.0))
    if model.moe:
        us += len(model.moe.layers) * MOE_LAYER_US
    us += sum(len(of_kind) * kind.kernels_us(model) for kind, _, of_kind in grouped(model))
    if model.traits.norms == 4:
        us += layers * EXTRA_NORMS_US
    if model.moe and model.quantization and model.quantization.method == "mxfp4":
        us += len(model.moe.layers) * deployment.settings.version.mxfp4_layer_us
    if model.quantization and model.quantization.activation_bits == 8:
        us += layers * FP8_LAYER_US
    read = _read_bytes(model, 1, None)
    quantized_share = read.quantized / max(1, read.plain + read.quantized)
    us += layers * quantized_share * dense_kernel(model, gpu).measurement.layer_us
    experts = experts_kernel(model, gpu, deployment.settings.moe_backend)
    if experts:
        layer_us = experts.measurement.layer_us
        if experts.weights == FP8_BLOCKS:
            layer_us += deployment.settings.version.fp8_blocks_layer_us
        us += len(model.experts.layers) * layer_us
    return us / 1e3 * card(gpu).small_kernels


def peak_tflops(model: ModelConfig, gpu: GPU) -> float:
    """Return the products' peak: FP8's with 8-bit activations, else that of 16 bit."""
    if model.quantization and model.quantization.activation_bits == 8 and gpu.fp8_tflops:
        return gpu.fp8_tflops
    return gpu.bf16_tflops


@lru_cache(maxsize=1024)
def decode_terms(
    deployment: Deployment, *, batch: int = 1, tokens_each: int = 1, context: int = 160
) -> tuple[Term, ...]:
    """Return the terms of a step of `tokens_each` new tokens of `batch` requests, all stages.

    batch: of each replica. context: tokens of a request so far, which are read once for all of its
    new ones.
    """
    if not deployment.gpu.has_known_speed:
        raise BadInput(
            f"The memory bandwidth of a {deployment.gpu.title} is unknown, and so is its speed.",
            "Name the nearest card, too: --gpu with --gpu-memory.",
        )
    model, settings = deployment.model, deployment.settings
    tokens = batch * tokens_each
    read = _read_bytes(model, deployment.tp, deployment.expert_split)
    terms = [
        _dense_term(deployment, read, tokens),
        *_expert_terms(deployment, read, tokens),
        *_cache_terms(deployment, batch, context),
        Term("small kernels", _small_kernels_ms(deployment), "fitted per layer on H200", "±15 %"),
    ]
    for message in traffic(deployment, tokens):
        source = f"{message.count} × {message.bytes_each / 1e3:.0f} kB over {message.link}"
        doubt = "±20 % on NVLink, a factor of 2 elsewhere"
        terms.append(Term(message.what, message.ms, source, doubt))
    requests = model.num_hidden_layers * REQUEST_LAYER_US / 1e3 * (batch - 1)
    source = "scheduling, sampling, each request's share; fitted"
    terms.append(Term("step", STEP_MS + requests, source, "±20 %"))
    if not settings.version.schedules_ahead:
        source = "the GPUs wait for it: no asynchronous scheduling"
        terms.append(Term("host", host_step_ms(settings.version), source, "±30 %"))
    terms += _offload_terms(deployment)
    if settings.decode_graphs == NONE:
        launches = model.num_hidden_layers * EAGER_LAYER_MS + STEP_MS
        launches -= sum(term.ms for term in terms)
        name = "launches without CUDA graphs"
        terms.append(Term(name, max(0.0, launches), "one run on H200", "±40 %"))
    elif not has_full_decode_graphs(deployment) and tokens_each <= settings.tokens_per_request:
        pieces = model.num_hidden_layers * PIECES_LAYER_MS
        source = "chunked attention: one run on H100"
        terms.append(Term("CUDA graphs in pieces", pieces, source, "±40 %"))
    return tuple(terms)


def _bytes_per_ms(gpu: GPU) -> float:
    """Return the peak of the memory."""
    return gpu.bandwidth_gb_s * 1e6


def _dense_term(deployment: Deployment, read: ReadBytes, tokens: int) -> Term:
    """Return the time of dense weights, or of their arithmetic where that takes longer."""
    model, gpu = deployment.model, deployment.gpu
    peak = _bytes_per_ms(gpu)
    tflops = peak_tflops(model, gpu)
    dense_kernels = dense_kernel(model, gpu)
    plain_ms = read.plain / peak / kernel(DENSE, BITS_16, gpu).bandwidth_share
    memory = plain_ms + read.quantized / peak / dense_kernels.bandwidth_share
    of_peak = MATMUL_SHARE * products_share(gpu)
    compute = 2 * active_parameters(model) * tokens / deployment.tp / (tflops * 1e9 * of_peak)
    if memory < compute:
        return Term("arithmetic", compute, f"{of_peak:.0%} of {tflops:.0f} TFLOP/s", "±5 %")
    dense = read.plain + read.quantized
    source = (
        f"{dense / 1e9:.1f} GB at {dense / peak / memory:.0%} of "
        f"{gpu.bandwidth_gb_s:.0f} GB/s ({dense_kernels.name})"
    )
    return Term("weights", memory, source, "±5 %")


def _expert_terms(deployment: Deployment, read: ReadBytes, tokens: int) -> Iterator[Term]:
    """Yield the time of the experts that so many tokens choose, if there are any."""
    model = deployment.model
    used = experts_kernel(model, deployment.gpu, deployment.settings.moe_backend)
    if not used or not read.experts:
        return
    size = read.experts * chosen_experts(model.experts.token_share, tokens * deployment.dp)
    doubt = "a factor of 2: the busiest rank decides" if deployment.ep else "±10 %"
    reached = f"{used.bandwidth_share:.0%} of the bandwidth ({used.name})"
    source = f"{size / 1e9:.1f} GB of the chosen experts at {reached}"
    ms = size / _bytes_per_ms(deployment.gpu) / used.bandwidth_share
    yield Term("experts", ms, source, doubt)


def chosen_experts(of_one: float, tokens: int, variation: float = EXPERTS_VARIATION) -> float:
    """Return the share of the experts that so many tokens choose, if one chooses the share `of_one`.

    How often each expert is chosen follows a gamma distribution of this squared coefficient of
    variation, so how many tokens choose it a negative binomial one. With 0 all are alike.
    """
    idle = 1 - of_one
    if not variation:
        return 1 - idle**tokens
    further = (tokens - 1) * (1 - idle**variation)
    return 1 - idle * (1 + further) ** (-1 / variation)


def _cache_terms(deployment: Deployment, batch: int, context: int) -> Iterator[Term]:
    """Yield the times of the requests' KV cache and states."""
    model, gpu, tp = deployment.model, deployment.gpu, deployment.tp
    peak = _bytes_per_ms(gpu)
    share = kernel(DENSE, BITS_16, gpu).bandwidth_share
    element_bytes = kv_dtype_bytes(model, deployment.settings.kv_cache_dtype)
    kv = 0
    states = 0
    for kind, size, layers in grouped(model):
        token_bytes = kind.read_bytes(model, tp, element_bytes)
        kv += batch * len(layers) * token_bytes * kind.cached_tokens(context, size)
        of_kind = kind.states(model, tp)
        if of_kind:  # every step reads and writes them
            states += 2 * batch * len(layers) * of_kind.bytes
    yield Term("KV cache", kv / peak / share, f"{kv / 1e6:.0f} MB read", "±10 %")
    if states:
        source = f"{states / 1e6:.0f} MB read and written"
        yield Term("states", states / peak / share, source, "±10 %")


def _offload_terms(deployment: Deployment) -> Iterator[Term]:
    """Yield the time of weights in the host's memory."""
    gpu = deployment.gpu
    offloaded = sum(offloaded_bytes(deployment, stage) for stage in range(deployment.pp))
    if offloaded and not gpu.unified_memory:
        source = f"{offloaded / 1e9:.1f} GB over PCIe at {host_gb_s(gpu):g} GB/s"
        ms = offloaded / 1e6 / host_gb_s(gpu)
        yield Term("offloaded weights", ms, source, "a factor of 2")


def host_step_ms(version: Version) -> float:
    """Return Python's time from a step's answers to the next step's first kernel."""
    return HOST_STEP_MS if version.schedules_ahead else AWAITED_HOST_STEP_MS


def host_gb_s(gpu: GPU) -> float:
    """Return 10**9 bytes a second from the host: 80 % of PCIe 3, 4 or 5 x16, not measured."""
    if gpu.capability < 8:
        return 12.0
    return 25.0 if gpu.capability < 9 else 50.0


def has_full_graphs(model: ModelConfig) -> bool:
    """Return False where vLLM captures no whole decoding step of the model in a CUDA graph."""
    return all(attention_backends.has_full_graphs(kind.key) for kind, _, _ in grouped(model))


def has_full_decode_graphs(deployment: Deployment) -> bool:
    """Return True if a decoding step is captured as a whole."""
    return deployment.settings.decode_graphs == FULL and has_full_graphs(deployment.model)


def decode_tokens_per_s(deployment: Deployment) -> float:
    """Return decoded tokens a second of a single stream."""
    return 1e3 / sum(t.ms for t in decode_terms(deployment))


def bandwidth_limit_tokens_per_s(model: ModelConfig, gpu: GPU, gpus: int) -> float:
    """Return tokens/s of one stream if only reading all weights took time."""
    return gpus * gpu.bandwidth_gb_s * 1e9 / weight_bytes(model)


def _prefill_step_ms(deployment: Deployment, tokens: int) -> float:
    """Return the time of a step that reads so many tokens of prompts."""
    terms = decode_terms(deployment, tokens_each=tokens, context=0)
    return sum(term.ms for term in terms if term.name not in ("states", "step")) + PREFILL_STEP_MS


def learners_at_once(deployment: Deployment, kv_cache_tokens: int) -> int:
    """Return how many may ask QUESTION_TOKENS at once, and see a first token in time.

    Prompts are read max_num_batched_tokens at a time, or in one smaller step where that takes too
    long; all that ask have a place in the batch and in the KV cache. kv_cache_tokens: of one
    replica.
    """
    settings = deployment.settings
    tokens = settings.max_num_batched_tokens
    full_steps = int(FIRST_TOKEN_S * 1e3 / _prefill_step_ms(deployment, tokens))
    read = full_steps * tokens // QUESTION_TOKENS
    if not full_steps:
        numbers = range(1, tokens // QUESTION_TOKENS + 1)
        read = bisect_right(
            numbers,
            FIRST_TOKEN_S * 1e3,
            key=lambda number: _prefill_step_ms(deployment, number * QUESTION_TOKENS),
        )
    return deployment.dp * min(read, settings.max_num_seqs, kv_cache_tokens // QUESTION_TOKENS)

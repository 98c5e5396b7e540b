"""Which rank holds what: layers, heads and KV heads, and the bytes of its weights.

Source: vLLM 0.25.1, distributed/utils.py get_pp_indices and model_executor/layers/linear.py.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from workshop.errors import BadInput
from workshop.plan.allocator import Allocator
from workshop.plan.attention import main_kind
from workshop.plan.catalog.config import DTYPE_BYTES, ModelConfig
from workshop.plan.catalog.gpus import GPU, MIB
from workshop.plan.deployment import Deployment
from workshop.plan.kv_cache import kv_dtype_bytes
from workshop.plan.weights import (
    Weight,
    embedding_weights,
    head_weights,
    layer_kind,
    layer_weights,
    tensor_bytes,
)

DEEP_GEMM_WORKSPACE = 32 * MIB  # PyTorch's cuBLAS workspace on Hopper


@dataclass(frozen=True)
class Rank:
    """One GPU of the plan. Bytes are of weights alone; layers is the half-open range of decoder layers."""

    rank: int
    node: int
    tp_rank: int
    pp_rank: int
    layers: range
    heads: int
    kv_heads: int
    weight_bytes: int
    has_embedding: bool
    has_head: bool


def partition_layers(num_layers: int, pp: int) -> list[range]:
    """Return each stage's layers: the rest goes to the stages before the last, from the second last back.

    The last stage already has the final norm and lm_head; with few extra layers the first is spared as well.
    Source: get_pp_indices (VLLM_PP_LAYER_PARTITION overrides it).
    """
    counts = [num_layers // pp] * pp
    for i in range(2, num_layers % pp + 2):
        counts[-i] += 1
    starts = [sum(counts[:i]) for i in range(pp)]
    return [range(s, s + c) for s, c in zip(starts, counts, strict=True)]


def tp_problem(m: ModelConfig, tp: int) -> str:
    """Return why this tensor parallel size cannot be used, or an empty string."""
    if m.num_attention_heads % tp:
        return f"{tp} does not divide the {m.num_attention_heads} attention heads"
    if problem := main_kind(m).split_problem(m, tp):
        return problem
    if -(-m.vocab_size // 64) * 64 % tp:
        return f"{tp} does not divide the vocabulary, padded to {-(-m.vocab_size // 64) * 64}"
    widths = [m.intermediate_size] if not m.moe or len(m.moe.layers) < m.num_hidden_layers else []
    if m.moe:
        widths += [w for w in (m.moe.intermediate_size, m.moe.shared_intermediate_size) if w]
    bad = next((w for w in widths if w % tp), None)
    if bad is not None:
        return f"{tp} does not divide the MLP's width {bad}"
    return _block_problem(m, widths, tp)


def _block_problem(m: ModelConfig, widths: list[int], tp: int) -> str:
    """Block-wise FP8 cannot cut a block: each rank's width must be a multiple of the block."""
    q = m.quantization
    if q is None or not q.block or tp == 1:
        return ""
    bad = next((w for w in widths if w // tp % q.block[0]), None)
    return f"an MLP of width {bad} on {tp} ranks would cut its {q.block[0]}-wide FP8 blocks" if bad else ""


def check_sizes(m: ModelConfig, tp: int, pp: int) -> None:
    """Raise BadInput where the model cannot be split so; the sizes that can are named."""
    problem = tp_problem(m, tp)
    if problem:
        usable = [str(t) for t in range(1, 33) if not tp_problem(m, t)]
        raise BadInput(
            f"tensor_parallel_size {tp} cannot split {m.name}: {problem}.",
            f"Choose from: {', '.join(usable)}. Or pipeline parallelism, which splits by layers.",
        )
    if pp > m.num_hidden_layers:
        raise BadInput(
            f"pipeline_parallel_size {pp} is more than the {m.num_hidden_layers} layers of {m.name}.",
            f"Give at most {m.num_hidden_layers}.",
        )


def rope_bytes(m: ModelConfig) -> int:
    """Bytes of the cos/sin tables: [positions, rotary_dim] each, shared by all layers, on every rank."""
    each = 4 if m.traits.rope_float32 else DTYPE_BYTES[m.dtype]
    return sum(positions * dim for positions, dim in m.rope_tables) * each


def stage_weights(m: ModelConfig, stage: int, pp: int) -> tuple[list[Weight], list[Weight]]:
    """Return what a pipeline stage holds besides layers: (before them, after them)."""
    before = embedding_weights(m) if stage == 0 else []
    after = head_weights(m) if stage == pp - 1 else []
    if stage == pp - 1 and pp > 1 and m.tie_word_embeddings:
        before = [embedding_weights(m)[0]]  # the tied lm_head needs the table on the last stage too
    return before, after


@lru_cache(maxsize=4096)
def _layer_tensors(m: ModelConfig, index: int, tp: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each tensor of a layer on one rank: (of attention, which come before the rope table; the others)."""
    mine: tuple[list[int], list[int]] = ([], [])
    for w in layer_weights(m, index):
        mine[0 if w.name.startswith("self_attn") else 1].extend(tensor_bytes(m, w, index, tp))
    return tuple(mine[0]), tuple(mine[1])


@lru_cache(maxsize=256)
def stand_ins(m: ModelConfig) -> tuple[int, ...]:
    """For each layer an earlier one with the same tensors, so that each kind is worked out once.

    Layers that a quantisation's ignore list names by number stand for themselves.
    """
    ignore = m.quantization.ignore if m.quantization else ()
    named = {int(n) for pattern in ignore if "layers" in pattern for n in re.findall(r"(?<!\d)\d{1,4}(?!\d)", pattern)}
    first: dict[tuple[bool, bool], int] = {}
    return tuple(i if i in named else first.setdefault(layer_kind(m, i), i) for i in range(m.num_hidden_layers))


@lru_cache(maxsize=512)
def whole_bytes(m: ModelConfig) -> int:
    """Bytes of all weights on one GPU, without rounding: a lower bound of what the ranks hold together."""
    count = Counter(stand_ins(m))
    total = sum(n * sum(map(sum, _layer_tensors(m, i, 1))) for i, n in count.items())
    return total + sum(sum(tensor_bytes(m, w, 0, 1)) for w in (*embedding_weights(m), *head_weights(m)))


def _build_rope(m: ModelConfig, table: tuple[int, int], memory: Allocator) -> None:
    """The cos/sin table is made in 32 bit and kept in 16: angles, cosines, sines, both, and the result."""
    positions, dim = table
    half = positions * dim * 2
    angles, cosines, sines = memory.alloc(half), memory.alloc(half), memory.alloc(half)
    both = memory.alloc(2 * half)
    for block in (angles, cosines, sines):
        memory.free(block)
    if m.traits.rope_float32:
        return
    memory.alloc(positions * dim * DTYPE_BYTES[m.dtype])
    memory.free(both)


@lru_cache(maxsize=1024)
def stage_bytes(m: ModelConfig, tp: int, pp: int, stage: int, deep_gemm: bool = False) -> int:
    """Return the bytes that loading keeps on one rank of a stage: what vLLM prints as "Model loading took".

    Weights, scales and rope tables in the blocks that PyTorch's allocator hands out for them (see allocator.py);
    deep_gemm: FP8 weights, an FP8 KV cache or MLA on Hopper and newer load DeepGEMM, whose handle takes a workspace.
    """
    memory = Allocator()
    late = main_kind(m).deep_gemm  # loaded with the attention, after the first rope table
    if deep_gemm and not late:
        memory.alloc(DEEP_GEMM_WORKSPACE)
    before, after = stage_weights(m, stage, pp)
    for w in before:
        for size in tensor_bytes(m, w, 0, tp):
            memory.alloc(size)
    tables, same = list(m.rope_tables), stand_ins(m)
    for i in partition_layers(m.num_hidden_layers, pp)[stage]:
        attention, rest = _layer_tensors(m, same[i], tp)
        for size in attention:
            memory.alloc(size)
        if tables and (len(tables) == len(m.rope_tables) or not m.layer_windows[i]):
            _build_rope(m, tables.pop(0), memory)  # the second one, if any, is that of the full-attention layers
            if deep_gemm and late:
                memory.alloc(DEEP_GEMM_WORKSPACE)
        for size in rest:
            memory.alloc(size)
    for w in after:
        for size in tensor_bytes(m, w, 0, tp):
            memory.alloc(size)
    return memory.allocated


def loads_deep_gemm(m: ModelConfig, gpu: GPU, kv_cache_dtype: str) -> bool:
    """True where vLLM 0.25.1 initialises DeepGEMM while loading (vllm/utils/deep_gemm.py)."""
    q = m.quantization
    fp8 = (q is not None and q.weight_bits == q.activation_bits == 8) or kv_dtype_bytes(m, kv_cache_dtype) == 1
    return gpu.hopper_or_newer and (fp8 or main_kind(m).deep_gemm)


def ranks(d: Deployment) -> list[Rank]:
    """Return every rank in vLLM's order: tensor ranks of the first stage, then of the next."""
    m, tp, pp, out = d.model, d.tp, d.pp, []
    deep_gemm = loads_deep_gemm(m, d.gpu, d.settings.kv_cache_dtype)
    for stage, layers in enumerate(partition_layers(m.num_hidden_layers, pp)):
        weight_bytes = stage_bytes(m, tp, pp, stage, deep_gemm)
        for t in range(tp):
            number = stage * tp + t
            out.append(
                Rank(
                    number,
                    number // d.gpus_per_node,
                    t,
                    stage,
                    layers,
                    m.num_attention_heads // tp,
                    main_kind(m).kv_heads(m, tp),
                    weight_bytes,
                    stage == 0,
                    stage == pp - 1,
                )
            )
    return out

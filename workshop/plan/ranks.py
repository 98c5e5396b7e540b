"""Which rank holds what: layers, heads and KV heads, and the bytes of its weights.

Source: vLLM 0.25.1, distributed/utils.py get_pp_indices and model_executor/layers/linear.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from workshop.errors import BadInput
from workshop.plan.catalog.config import DTYPE_BYTES, ModelConfig
from workshop.plan.weights import (
    Weight,
    embedding_weights,
    head_weights,
    layer_weights,
    layers_by_kind,
    tensor_bytes,
)


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
    if not m.mla:
        kv = m.num_key_value_heads
        if kv >= tp and kv % tp:
            return f"{tp} does not divide the {kv} KV heads"
        if kv < tp and tp % kv:
            return f"{tp} is not a multiple of the {kv} KV heads, so they cannot be copied evenly"
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
        raise BadInput(f"tensor_parallel_size {tp} cannot split {m.name}: {problem}.",
                       f"Choose from: {', '.join(usable)}. Or pipeline parallelism, which splits by layers.")
    if pp > m.num_hidden_layers:
        raise BadInput(f"pipeline_parallel_size {pp} is more than the {m.num_hidden_layers} layers of {m.name}.",
                       f"Give at most {m.num_hidden_layers}.")


@lru_cache(maxsize=2048)
def layer_bytes(m: ModelConfig, index: int, tp: int) -> int:
    """Bytes of one decoder layer on one rank, MLA's absorbed copies included."""
    total = sum(sum(tensor_bytes(m, w, index, tp)) for w in layer_weights(m, index))
    return total + absorbed_bytes(m, tp)


def absorbed_bytes(m: ModelConfig, tp: int) -> int:
    """MLA multiplies kv_b_proj into query and output for decoding: W_UV is kept once more, laid out for it.

    Source: vllm/model_executor/layers/attention/mla_attention.py process_weights_after_loading (0.25.1).
    """
    if not m.mla:
        return 0
    copied = m.mla.v_head_dim + m.mla.qk_nope_head_dim
    return m.num_attention_heads // tp * copied * m.mla.kv_lora_rank * DTYPE_BYTES[m.dtype]


def rope_bytes(m: ModelConfig) -> int:
    """Bytes of the cos/sin tables: [positions, rotary_dim] each, shared by all layers, on every rank."""
    return sum(positions * dim for positions, dim in m.rope_tables) * DTYPE_BYTES[m.dtype]


def stage_weights(m: ModelConfig, stage: int, pp: int) -> tuple[list[Weight], list[Weight]]:
    """Return what a pipeline stage holds besides layers: (before them, after them)."""
    before = embedding_weights(m) if stage == 0 else []
    after = head_weights(m) if stage == pp - 1 else []
    if stage == pp - 1 and pp > 1 and m.tie_word_embeddings:
        before = [embedding_weights(m)[0]]      # the tied lm_head needs the table on the last stage too
    return before, after


@lru_cache(maxsize=1024)
def stage_bytes(m: ModelConfig, tp: int, pp: int, stage: int) -> int:
    """Return the weight bytes of one rank of a pipeline stage: layers, embedding or head, rope tables."""
    layers = partition_layers(m.num_hidden_layers, pp)[stage]
    before, after = stage_weights(m, stage, pp)
    total = sum(sum(tensor_bytes(m, w, 0, tp)) for w in (*before, *after)) + rope_bytes(m)
    if m.quantization and m.quantization.ignore:      # layers may differ: some are left in 16 bit
        return total + sum(layer_bytes(m, i, tp) for i in layers)
    return total + sum(n * layer_bytes(m, i, tp) for i, n in layers_by_kind(m, layers))


def ranks(m: ModelConfig, tp: int, pp: int, gpus_per_node: int) -> list[Rank]:
    """Return every rank in vLLM's order: tensor ranks of the first stage, then of the next."""
    out = []
    for stage, layers in enumerate(partition_layers(m.num_hidden_layers, pp)):
        weight_bytes = stage_bytes(m, tp, pp, stage)
        for t in range(tp):
            number = stage * tp + t
            out.append(Rank(number, number // gpus_per_node, t, stage, layers, m.num_attention_heads // tp,
                            1 if m.mla else max(1, m.num_key_value_heads // tp), weight_bytes, stage == 0,
                            stage == pp - 1))
    return out

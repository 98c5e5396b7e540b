"""Every weight of a model: its shape, how tensor parallelism splits it, and the bytes it takes when quantized.

The layers are listed as vLLM builds them (fused qkv_proj and gate_up_proj, experts as w13 and w2), in the order in
which it creates them. Source: vLLM 0.25.1, model_executor/models/*.py and layers/linear.py.
"""

# m model, w weight, h hidden size, e experts, n how many, q quantization, i layer
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from inference_planner import attention
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, Quantization, present
from inference_planner.module_patterns import ModulePatterns
from inference_planner.weight import ExpertSplit, Weight


def _dense_mlp(m: ModelConfig, width: int, prefix: str = "mlp") -> Iterator[Weight]:
    h, bias, ways = m.hidden_size, m.traits.mlp_bias, 2 if m.traits.gated_mlp else 1
    up = f"{prefix}.gate_up_proj" if ways == 2 else f"{prefix}.up_proj"
    yield Weight(up, ways * width, h, "column", quantizable=True, bias=bias, shards=ways)
    yield Weight(f"{prefix}.down_proj", h, width, "row", quantizable=True, bias=bias)


def _moe_mlp(m: ModelConfig) -> Iterator[Weight]:
    h, e = m.hidden_size, m.experts
    n, width = e.num_experts, e.intermediate_size
    ways = 2 if m.traits.gated_mlp else 1
    yield Weight("mlp.gate", n, h, bias=e.router_bias)
    yield Weight(
        "mlp.experts.w13", ways * width, h, "column", copies=n, quantizable=True, shards=ways
    )
    yield Weight("mlp.experts.w2", h, width, "row", copies=n, quantizable=True)
    if m.traits.mlp_bias:  # gpt-oss: a bias for every expert, in 32 bit beside 4-bit weights
        each = 4 if m.quantization else 0
        yield Weight("mlp.experts.w13_bias", 2 * width, 1, "column", copies=n, bytes_each=each)
        yield Weight("mlp.experts.w2_bias", h, 1, copies=n, bytes_each=each)
    if e.shared_intermediate_size:
        yield from _dense_mlp(m, e.shared_intermediate_size, "mlp.shared_experts")
    if e.shared_gate:
        yield Weight("mlp.shared_expert_gate", 1, h)


@lru_cache(maxsize=4096)
def layer_weights(m: ModelConfig, index: int) -> tuple[Weight, ...]:
    """Return the weights of decoder layer `index`."""
    mixer = attention.kind_of(m, index).weights(m)
    mlp = _moe_mlp(m) if m.moe and index in m.moe.layers else _dense_mlp(m, m.intermediate_size)
    norms = (
        Weight(f"norm{i}", m.hidden_size, bias=m.traits.norm_bias) for i in range(m.traits.norms)
    )
    return *mixer, *mlp, *norms


@lru_cache(maxsize=256)
def stand_ins(m: ModelConfig) -> tuple[int, ...]:
    """For each layer an earlier one with the same tensors, so that each kind is worked out once.

    Layers that a quantization's ignore list names by number stand for themselves.
    """
    ignore = m.quantization.ignore if m.quantization else ()
    named = {
        int(n)
        for pattern in ignore
        if "layers" in pattern
        for n in re.findall(r"(?<!\d)\d{1,4}(?!\d)", pattern)
    }
    first: dict[tuple[attention.Attention, bool], int] = {}
    return tuple(
        i
        if i in named
        else first.setdefault((attention.kind_of(m, i), bool(m.moe and i in m.moe.layers)), i)
        for i in range(m.num_hidden_layers)
    )


def embedding_weights(m: ModelConfig) -> Iterator[Weight]:
    """The input table, and learned positions where the family has them."""
    yield Weight("embed_tokens", m.vocab_size, m.hidden_size, "vocab")
    if m.traits.learned_positions:
        yield Weight("embed_positions", m.traits.learned_positions, m.hidden_size)
    if m.per_layer_input:
        rows, columns = m.per_layer_input[0], m.per_layer_input[1] * m.num_hidden_layers
        yield Weight("embed_tokens_per_layer", rows, columns, "vocab")
        # to it, and into and out of each layer
        yield Weight("per_layer_projections", 3 * columns, m.hidden_size)


def head_weights(m: ModelConfig) -> Iterator[Weight]:
    """Final norm and lm_head; a tied lm_head takes nothing of its own."""
    if m.traits.final_norm:
        yield Weight("norm", m.hidden_size, bias=m.traits.norm_bias)
    if not m.tie_word_embeddings:
        head = bool(m.quantization and m.quantization.head)
        yield Weight(
            "lm_head",
            m.vocab_size,
            m.hidden_size,
            "vocab",
            bias=m.traits.lm_head_bias,
            quantizable=head,
        )


@lru_cache(maxsize=1024)
def parameters(m: ModelConfig) -> int:
    """Return the number of parameters, as published: tied embeddings once, no padding, no quantization scales."""
    total = sum(w.elements() for w in (*embedding_weights(m), *head_weights(m)))
    return total + sum(
        n * sum(w.elements() for w in layer_weights(m, i)) for i, n in Counter(stand_ins(m)).items()
    )


@lru_cache(maxsize=1024)
def active_parameters(m: ModelConfig) -> int:
    """Return the parameters that one token uses: the chosen experts instead of all."""
    if not m.moe:
        return parameters(m)
    idle = m.moe.num_experts - m.moe.experts_per_token
    each = (3 if m.traits.gated_mlp else 2) * m.moe.intermediate_size * m.hidden_size
    if m.traits.mlp_bias:
        each += 2 * m.moe.intermediate_size + m.hidden_size
    return parameters(m) - len(m.moe.layers) * idle * each


def ignored(patterns: tuple[str, ...], layer: int, name: str) -> bool:
    """Return True where the quantization config leaves the module in 16 bit.

    Raises BadInput for patterns that would be searched for longer than LONGEST_SEARCH_S.
    """
    return _module_patterns(patterns).match(layer, name)


@lru_cache(maxsize=64)
def _module_patterns(patterns: tuple[str, ...]) -> ModulePatterns:
    return ModulePatterns(patterns)


def is_quantized(m: ModelConfig, w: Weight, layer: int) -> bool:
    """True where this weight is stored in the quantization's bits."""
    q = m.quantization
    if q is None or not w.quantizable:
        return False
    if q.experts_only and not w.name.startswith("mlp.experts"):
        return False
    return not (q.ignore and ignored(q.ignore, layer, w.name))


def tensor_bytes(
    m: ModelConfig, w: Weight, layer: int, tp: int, experts: ExpertSplit | None = None
) -> list[int]:
    """Return the bytes of each tensor that vLLM allocates for this weight on the fullest rank: weight, scales, bias."""
    if experts and w.name.startswith("mlp.experts"):
        w, tp = replace(w, copies=-(-w.copies // experts.dealt)), experts.cut
    elif experts and w.name.startswith("mlp.shared_experts"):
        tp = experts.shared
    rows, cols = w.shape_on_rank(tp)
    each = DTYPE_BYTES[m.dtype]
    bias = [w.bias_on_rank(tp) * each] if w.bias else []
    if is_quantized(m, w, layer):
        decoded = [rows * cols * each] if w.has_decoded_copy else []
        q = present(m.quantization)
        if q.eight and ignored(q.eight, layer, w.name):
            q = replace(q, method="modelopt", weight_bits=8, group_size=-1)
        return _quantized_bytes(q, w, rows, cols, each) + bias + decoded
    return [w.copies * rows * cols * (w.bytes_each or each), *bias]


@lru_cache(maxsize=4096)
def layer_tensors(
    m: ModelConfig, index: int, tp: int, experts: ExpertSplit | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of each tensor of a layer on one rank: (of attention, which come before the rope table; the others)."""
    mine: tuple[list[int], list[int]] = ([], [])
    for w in layer_weights(m, index):
        mine[0 if w.name.startswith("self_attn") else 1].extend(
            tensor_bytes(m, w, index, tp, experts)
        )
    return tuple(mine[0]), tuple(mine[1])


@lru_cache(maxsize=512)
def whole_bytes(m: ModelConfig) -> int:
    """Return the bytes of all weights as stored: quantized ones in their bits with scales, the others in the dtype.

    A lower bound of what the ranks hold together: nothing is copied or rounded up.
    """
    total = sum(n * sum(map(sum, layer_tensors(m, i, 1))) for i, n in Counter(stand_ins(m)).items())
    total += sum(sum(tensor_bytes(m, w, 0, 1)) for w in (*embedding_weights(m), *head_weights(m)))
    return int(total * m.exact.scale) if m.exact else total


def _mxfp4_bytes(w: Weight, rows: int, cols: int) -> list[int]:
    """Experts in MXFP4 on Hopper: a rank's width padded to 64, one scale byte for 32 inputs, its rows padded to 256.

    Source: fused_moe/oracle/mxfp4.py (0.25.1); the layout of the scales was read from a loaded gpt-oss-20b.
    """
    if w.split == "row":
        cols = -(-cols // 64) * 64
    else:
        rows = 2 * (-(-rows // 128) * 64)
    scales = -(-rows // 256) * 256 * -(-cols // 32)
    return [w.copies * rows * cols // 2, w.copies * scales]


def _quantized_bytes(
    q: Quantization, w: Weight, rows: int, cols: int, scale_bytes: int
) -> list[int]:
    """Weight bytes and scale bytes of [copies, rows, cols] in this quantization's layout."""
    if q.method == "mxfp4":
        return _mxfp4_bytes(w, rows, cols)
    out = [math.ceil(w.copies * rows * cols * q.weight_bits / 8)]
    if q.block:
        blocks = -(-rows // q.block[0]) * -(-cols // q.block[1])
        return [*out, w.copies * blocks * 4]
    if q.group_size > 0:
        groups = rows * -(-cols // q.group_size)
        out.append(w.copies * groups * (1 if q.method == "modelopt_fp4" else scale_bytes))
        if q.zero_points:
            out.append(math.ceil(w.copies * groups * q.weight_bits / 8))
        return out
    scales = rows if q.group_size == 0 else w.shards
    return [*out, w.copies * scales * 4]

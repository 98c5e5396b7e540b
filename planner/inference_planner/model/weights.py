"""Every weight of a model, and the bytes that it takes.

A weight has a shape, a way in which tensor parallelism splits it, and scales when it is quantized.

The layers are listed as vLLM builds them (fused qkv_proj and gate_up_proj, experts as w13 and w2),
in the order in which it creates them. Source: vLLM 0.25.1, model_executor/models/*.py and
layers/linear.py.
"""

# m model, w weight, q quantization
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, Quantization, present
from inference_planner.catalog.module_patterns import ModulePatterns
from inference_planner.catalog.tower import tower_weights
from inference_planner.catalog.weight import ExpertSplit, Weight
from inference_planner.model import attention


def _dense_mlp(m: ModelConfig, width: int, prefix: str = "mlp") -> Iterator[Weight]:
    hidden = m.hidden_size
    bias = m.traits.mlp_bias
    name = f"{prefix}.up_proj"
    shards = 1
    if m.traits.gated_mlp:
        name = f"{prefix}.gate_up_proj"
        shards = 2
    yield Weight(name, shards * width, hidden, "column", quantizable=True, bias=bias, shards=shards)
    yield Weight(f"{prefix}.down_proj", hidden, width, "row", quantizable=True, bias=bias)


def _moe_mlp(m: ModelConfig) -> Iterator[Weight]:
    hidden = m.hidden_size
    experts = m.experts
    copies = experts.num_experts
    width = experts.intermediate_size
    shards = 2 if m.traits.gated_mlp else 1
    yield Weight("mlp.gate", copies, hidden, bias=experts.router_bias)
    yield Weight(
        "mlp.experts.w13",
        shards * width,
        hidden,
        "column",
        copies=copies,
        quantizable=True,
        shards=shards,
    )
    yield Weight("mlp.experts.w2", hidden, width, "row", copies=copies, quantizable=True)
    if m.traits.mlp_bias:  # gpt-oss: a bias for every expert, in 32 bit beside 4-bit weights
        bias_bytes = 4 if m.quantization else 0
        yield Weight(
            "mlp.experts.w13_bias", 2 * width, 1, "column", copies=copies, bytes_each=bias_bytes
        )
        yield Weight("mlp.experts.w2_bias", hidden, 1, copies=copies, bytes_each=bias_bytes)
    if experts.shared_intermediate_size:
        yield from _dense_mlp(m, experts.shared_intermediate_size, "mlp.shared_experts")
    if experts.shared_gate:
        yield Weight("mlp.shared_expert_gate", 1, hidden)


def layer_weights(m: ModelConfig, index: int) -> tuple[Weight, ...]:
    """Return the weights of decoder layer `index`."""
    return _weights_of_kind(m, attention.kind_of(m, index), _has_experts(m, index))


def _has_experts(m: ModelConfig, index: int) -> bool:
    return bool(m.moe and index in m.moe.layers)


@lru_cache(maxsize=1024)
def _weights_of_kind(
    m: ModelConfig, kind: attention.Attention, has_experts: bool
) -> tuple[Weight, ...]:
    """Return the weights of a decoder layer with this attention, with experts or without."""
    weights = list(kind.weights(m))
    if has_experts:
        weights += _moe_mlp(m)
    else:
        weights += _dense_mlp(m, m.intermediate_size)
    for number in range(m.traits.norms):
        weights.append(Weight(f"norm{number}", m.hidden_size, bias=m.traits.norm_bias))
    return tuple(weights)


@lru_cache(maxsize=256)
def stand_ins(m: ModelConfig) -> tuple[int, ...]:
    """Return for each layer the first one with the same tensors.

    Each kind of layer is so computed once. Layers are of one kind if they have the same attention
    and MLP, and the quantization stores the same modules of them in the same bits.
    """
    first_layers: dict[tuple[attention.Attention, bool, tuple[bool, ...]], int] = {}
    layers: list[int] = []
    for layer in range(m.num_hidden_layers):
        experts = _has_experts(m, layer)
        kind = (attention.kind_of(m, layer), experts, _named_modules(m, layer))
        layers.append(first_layers.setdefault(kind, layer))
    return tuple(layers)


def _named_modules(m: ModelConfig, layer: int) -> tuple[bool, ...]:
    """Return for each module of a layer if a list of the quantization config names it.

    There are two lists: of modules in 16 bit, and of modules in 8 bits beside those in 4.
    """
    q = m.quantization
    if q is None:
        return ()
    named: list[bool] = []
    for patterns in filter(None, (q.ignore, q.eight)):
        module_patterns = _module_patterns(patterns)
        for w in layer_weights(m, layer):
            if w.quantizable:
                named.append(module_patterns.match(layer, w.name))
    return tuple(named)


def embedding_weights(m: ModelConfig) -> Iterator[Weight]:
    """Yield the input table, and learned positions where the family has them."""
    yield Weight("embed_tokens", m.vocab_size, m.hidden_size, "vocab")
    if m.traits.learned_positions:
        yield Weight("embed_positions", m.traits.learned_positions, m.hidden_size)
    if m.per_layer_input:
        rows, columns_of_layer = m.per_layer_input
        columns = columns_of_layer * m.num_hidden_layers
        yield Weight("embed_tokens_per_layer", rows, columns, "vocab")
        # to it, and into and out of each layer
        yield Weight("per_layer_projections", 3 * columns, m.hidden_size)


def head_weights(m: ModelConfig) -> Iterator[Weight]:
    """Yield the final norm and lm_head; a tied lm_head takes nothing of its own."""
    if m.traits.final_norm:
        yield Weight("norm", m.hidden_size, bias=m.traits.norm_bias)
    if not m.tie_word_embeddings and not m.pooling:  # adapters.py deletes a pooling model's lm_head
        quantizable = bool(m.quantization and m.quantization.head)
        yield Weight(
            "lm_head",
            m.vocab_size,
            m.hidden_size,
            "vocab",
            bias=m.traits.lm_head_bias,
            quantizable=quantizable,
        )


@lru_cache(maxsize=1024)
def parameters(m: ModelConfig) -> int:
    """Return the number of parameters, as published.

    Tied embeddings count once. Padding and scales of quantization do not count.
    """
    total = 0
    for w in (*embedding_weights(m), *head_weights(m)):
        total += w.elements()
    for layer, count in Counter(stand_ins(m)).items():
        total += count * sum(w.elements() for w in layer_weights(m, layer))
    return total


@lru_cache(maxsize=1024)
def active_parameters(m: ModelConfig) -> int:
    """Return the parameters that one token uses: the chosen experts instead of all."""
    if not m.moe:
        return parameters(m)
    idle_experts = m.moe.num_experts - m.moe.experts_per_token
    matrices = 3 if m.traits.gated_mlp else 2
    expert_parameters = matrices * m.moe.intermediate_size * m.hidden_size
    if m.traits.mlp_bias:
        expert_parameters += 2 * m.moe.intermediate_size + m.hidden_size
    return parameters(m) - len(m.moe.layers) * idle_experts * expert_parameters


def ignored(patterns: tuple[str, ...], layer: int, name: str) -> bool:
    """Return True if the quantization config leaves the module in 16 bit.

    Raises BadInput for patterns that would be searched for longer than LONGEST_SEARCH_S.
    """
    return _module_patterns(patterns).match(layer, name)


@lru_cache(maxsize=64)
def _module_patterns(patterns: tuple[str, ...]) -> ModulePatterns:
    return ModulePatterns(patterns)


def is_quantized(m: ModelConfig, w: Weight, layer: int) -> bool:
    """Return True if this weight is stored in the quantization's bits."""
    q = m.quantization
    if q is None or not w.quantizable:
        return False
    if q.experts_only and not w.name.startswith("mlp.experts"):
        return False
    return not (q.ignore and ignored(q.ignore, layer, w.name))


def tensor_bytes(
    m: ModelConfig, w: Weight, layer: int, tp: int, experts: ExpertSplit | None = None
) -> list[int]:
    """Return the bytes of each tensor that vLLM allocates for this weight on the fullest rank.

    They are the weight, its scales and its bias.
    """
    if experts and w.name.startswith("mlp.experts"):
        w = replace(w, copies=-(-w.copies // experts.dealt))
        tp = experts.cut
    elif experts and w.name.startswith("mlp.shared_experts"):
        tp = experts.shared
    rows, cols = w.shape_on_rank(tp)
    dtype_bytes = DTYPE_BYTES[m.dtype]
    bias: list[int] = []
    if w.bias:
        bias.append(w.bias_on_rank(tp) * dtype_bytes)
    if not is_quantized(m, w, layer):
        element_bytes = w.bytes_each or dtype_bytes
        return [w.copies * rows * cols * element_bytes, *bias]
    q = present(m.quantization)
    if q.eight and ignored(q.eight, layer, w.name):
        q = replace(q, method="modelopt", weight_bits=8, group_size=-1)
    tensors = _quantized_bytes(q, w, rows, cols, dtype_bytes) + bias
    if w.has_decoded_copy:
        tensors.append(rows * cols * dtype_bytes)
    return tensors


@lru_cache(maxsize=4096)
def layer_tensors(
    m: ModelConfig, index: int, tp: int, experts: ExpertSplit | None = None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each tensor of a layer on one rank: (of attention, the others).

    Those of attention come before the rope table.
    """
    attention_tensors: list[int] = []
    other_tensors: list[int] = []
    for w in layer_weights(m, index):
        tensors = tensor_bytes(m, w, index, tp, experts)
        if w.name.startswith("self_attn"):
            attention_tensors += tensors
        else:
            other_tensors += tensors
    return tuple(attention_tensors), tuple(other_tensors)


@lru_cache(maxsize=512)
def whole_bytes(m: ModelConfig) -> int:
    """Return the bytes of all weights as stored.

    Quantized weights are in their bits with scales, the others in the dtype.

    A lower bound of what the ranks hold together: nothing is copied or rounded up.
    """
    total = 0
    for layer, count in Counter(stand_ins(m)).items():
        attention_tensors, other_tensors = layer_tensors(m, layer, 1)
        total += count * (sum(attention_tensors) + sum(other_tensors))
    for w in (*tower_weights(m), *embedding_weights(m), *head_weights(m)):
        total += sum(tensor_bytes(m, w, 0, 1))
    if m.exact:
        return int(total * m.exact.scale)
    return total


def _mxfp4_bytes(padding: tuple[int, int], w: Weight, rows: int, cols: int) -> list[int]:
    """Return the bytes of experts in MXFP4: (weights, scales). One byte scales 32 inputs.

    On Hopper the rows of the scales are padded to 256.

    Source: fused_moe/oracle/mxfp4.py (0.25.1); the layout of the scales was read from a loaded
    gpt-oss-20b.
    """
    hidden, width = padding
    if w.split == "row":
        cols = -(-cols // width) * width
        rows = -(-rows // hidden) * hidden
    else:
        rows = 2 * (-(-rows // (2 * width)) * width)
        cols = -(-cols // hidden) * hidden
    scale_rows = rows
    if hidden == 1:
        scale_rows = -(-rows // 256) * 256
    scales = scale_rows * -(-cols // 32)
    return [w.copies * rows * cols // 2, w.copies * scales]


def _quantized_bytes(
    q: Quantization, w: Weight, rows: int, cols: int, scale_bytes: int
) -> list[int]:
    """Return the weight bytes and scale bytes of [copies, rows, cols] in this quantization."""
    if q.method == "mxfp4":
        return _mxfp4_bytes(q.padding, w, rows, cols)
    tensors = [math.ceil(w.copies * rows * cols * q.weight_bits / 8)]
    if q.block:
        block_rows, block_cols = q.block
        blocks = -(-rows // block_rows) * -(-cols // block_cols)
        tensors.append(w.copies * blocks * 4)
        return tensors
    if q.group_size > 0:
        groups = rows * -(-cols // q.group_size)
        if q.method == "modelopt_fp4":
            scale_bytes = 1
        scale_bytes = q.scale_bytes or scale_bytes
        tensors.append(w.copies * groups * scale_bytes)
        if q.zero_points:
            tensors.append(math.ceil(w.copies * groups * q.weight_bits / 8))
        return tensors
    scales = rows if q.group_size == 0 else w.shards
    tensors.append(w.copies * scales * 4)
    return tensors

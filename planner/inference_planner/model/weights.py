"""Every weight of a model, and what it costs: memory, bytes to read, arithmetic.

A weight has a shape, a way in which tensor parallelism splits it, and scales when it is quantized.
`parts` is the one walk over layers: parameters, bytes of a rank, adapters, and the roofline and the
simulator's clock with it, are sums over what it yields.

The layers are listed as vLLM builds them (fused qkv_proj and gate_up_proj, experts as w13 and w2),
in the order in which it creates them. Source: vLLM 0.25.1, model_executor/models/*.py and
layers/linear.py.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig, Quantization, present
from inference_planner.catalog.module_patterns import ModulePatterns
from inference_planner.catalog.tower import tower_weights
from inference_planner.catalog.weight import ExpertSplit, Weight
from inference_planner.model import attention


def _dense_mlp(model: ModelConfig, width: int, prefix: str = "mlp") -> Iterator[Weight]:
    hidden = model.hidden_size
    bias = model.traits.mlp_bias
    name = f"{prefix}.up_proj"
    shards = 1
    if model.traits.gated_mlp:
        name = f"{prefix}.gate_up_proj"
        shards = 2
    yield Weight(name, shards * width, hidden, "column", quantizable=True, bias=bias, shards=shards)
    yield Weight(f"{prefix}.down_proj", hidden, width, "row", quantizable=True, bias=bias)


def _moe_mlp(model: ModelConfig) -> Iterator[Weight]:
    hidden = model.hidden_size
    experts = model.experts
    copies = experts.num_experts
    width = experts.intermediate_size
    shards = 2 if model.traits.gated_mlp else 1
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
    if model.traits.mlp_bias:  # gpt-oss: a bias for every expert, in 32 bit beside 4-bit weights
        bias_bytes = 4 if model.quantization else 0
        yield Weight(
            "mlp.experts.w13_bias", 2 * width, 1, "column", copies=copies, bytes_each=bias_bytes
        )
        yield Weight("mlp.experts.w2_bias", hidden, 1, copies=copies, bytes_each=bias_bytes)
    if experts.shared_intermediate_size:
        yield from _dense_mlp(model, experts.shared_intermediate_size, "mlp.shared_experts")
    if experts.shared_gate:
        yield Weight("mlp.shared_expert_gate", 1, hidden)


@dataclass(frozen=True)
class Part:
    """One weight of a layer, with what one rank needs for it.

    Attributes:
        tensors: bytes of each tensor that vLLM allocates: the weight, its scales, its bias. A
            decoding step reads all of them, but of the experts only those that are chosen.
        is_quantized: it is stored in the quantization's bits.
        used_elements: of the whole model, those that one token multiplies and adds (2 operations
            each): all of them, or those of the chosen experts.
    """

    weight: Weight
    tensors: tuple[int, ...]
    is_quantized: bool
    used_elements: int

    @property
    def bytes(self) -> int:
        return sum(self.tensors)


def parts(
    model: ModelConfig,
    tp: int = 1,
    experts: ExpertSplit | None = None,
    layers: Sequence[int] | None = None,
) -> Iterator[tuple[int, Part]]:
    """Yield each part of the layers as one of `tp` ranks has it: (layers with an equal one, part).

    Args:
        layers: those of a pipeline stage; None: all of the model.
    """
    representatives = stand_ins(model)
    if layers is not None:
        representatives = tuple(representatives[layer] for layer in layers)
    for layer, count in Counter(representatives).items():
        for part in layer_parts(model, layer, tp, experts):
            yield count, part


@lru_cache(maxsize=4096)
def layer_parts(
    model: ModelConfig, layer: int, tp: int = 1, experts: ExpertSplit | None = None
) -> tuple[Part, ...]:
    """Return the parts of one decoder layer, in the order in which vLLM creates them."""
    of_layer: list[Part] = []
    for w in layer_weights(model, layer):
        used_elements = w.elements()
        if w.is_expert:
            used_elements = used_elements // w.copies * model.experts.experts_per_token
        tensors = tuple(tensor_bytes(model, w, layer, tp, experts))
        of_layer.append(Part(w, tensors, is_quantized(model, w, layer), used_elements))
    return tuple(of_layer)


def layer_weights(model: ModelConfig, index: int) -> tuple[Weight, ...]:
    """Return the weights of decoder layer `index`."""
    return _weights_of_kind(model, attention.kind_of(model, index), _has_experts(model, index))


def _has_experts(model: ModelConfig, index: int) -> bool:
    return bool(model.moe and index in model.moe.layers)


@lru_cache(maxsize=1024)
def _weights_of_kind(
    model: ModelConfig, kind: attention.Attention, has_experts: bool
) -> tuple[Weight, ...]:
    """Return the weights of a decoder layer with this attention, with experts or without."""
    weights = list(kind.weights(model))
    if has_experts:
        weights += _moe_mlp(model)
    else:
        weights += _dense_mlp(model, model.intermediate_size)
    for number in range(model.traits.norms):
        weights.append(Weight(f"norm{number}", model.hidden_size, bias=model.traits.norm_bias))
    return tuple(weights)


@lru_cache(maxsize=256)
def stand_ins(model: ModelConfig) -> tuple[int, ...]:
    """Return for each layer the first one with the same tensors.

    Each kind of layer is so computed once. Layers are of one kind if they have the same attention
    and MLP, and the quantization stores the same modules of them in the same bits.
    """
    first_layers: dict[tuple[attention.Attention, bool, tuple[bool, ...]], int] = {}
    layers: list[int] = []
    for layer in range(model.num_hidden_layers):
        experts = _has_experts(model, layer)
        kind = (attention.kind_of(model, layer), experts, _named_modules(model, layer))
        layers.append(first_layers.setdefault(kind, layer))
    return tuple(layers)


def _named_modules(model: ModelConfig, layer: int) -> tuple[bool, ...]:
    """Return for each module if the list of 16 bits, or of 8 beside 4, names it."""
    quantization = model.quantization
    if quantization is None:
        return ()
    named: list[bool] = []
    for patterns in filter(None, (quantization.ignore, quantization.eight)):
        module_patterns = _module_patterns(patterns)
        for w in layer_weights(model, layer):
            if w.quantizable:
                named.append(module_patterns.match(layer, w.name))
    return tuple(named)


def embedding_weights(model: ModelConfig) -> Iterator[Weight]:
    """Yield the input table, and learned positions where the family has them."""
    yield Weight("embed_tokens", model.vocab_size, model.hidden_size, "vocab")
    if model.traits.learned_positions:
        yield Weight("embed_positions", model.traits.learned_positions, model.hidden_size)
    if model.per_layer_input:
        rows, columns_of_layer = model.per_layer_input
        columns = columns_of_layer * model.num_hidden_layers
        yield Weight("embed_tokens_per_layer", rows, columns, "vocab")
        # to it, and into and out of each layer
        yield Weight("per_layer_projections", 3 * columns, model.hidden_size)


def head_weights(model: ModelConfig) -> Iterator[Weight]:
    """Yield the final norm and lm_head; a tied lm_head takes nothing of its own."""
    if model.traits.final_norm:
        yield Weight("norm", model.hidden_size, bias=model.traits.norm_bias)
    # adapters.py deletes a pooling model's lm_head.
    if not model.tie_word_embeddings and not model.pooling:
        quantizable = bool(model.quantization and model.quantization.head)
        yield Weight(
            "lm_head",
            model.vocab_size,
            model.hidden_size,
            "vocab",
            bias=model.traits.lm_head_bias,
            quantizable=quantizable,
        )


def end_weights(model: ModelConfig) -> tuple[Weight, ...]:
    """Return what stands before and after the layers."""
    return (*embedding_weights(model), *head_weights(model))


@lru_cache(maxsize=1024)
def parameters(model: ModelConfig) -> int:
    """Return the parameters as published: tied embeddings once, no padding, no scales."""
    ends = sum(w.elements() for w in end_weights(model))
    return ends + sum(count * part.weight.elements() for count, part in parts(model))


@lru_cache(maxsize=1024)
def active_parameters(model: ModelConfig) -> int:
    """Return the parameters that one token uses: the chosen experts instead of all."""
    ends = sum(w.elements() for w in end_weights(model))
    return ends + sum(count * part.used_elements for count, part in parts(model))


@lru_cache(maxsize=64)
def _module_patterns(patterns: tuple[str, ...]) -> ModulePatterns:
    return ModulePatterns(patterns)


def is_quantized(model: ModelConfig, weight: Weight, layer: int) -> bool:
    """Return True if this weight is stored in the quantization's bits."""
    quantization = model.quantization
    if quantization is None or not weight.quantizable:
        return False
    if quantization.experts_only and not weight.is_expert:
        return False
    return not _module_patterns(quantization.ignore).match(layer, weight.name)


def tensor_bytes(
    model: ModelConfig, weight: Weight, layer: int, tp: int, experts: ExpertSplit | None = None
) -> list[int]:
    """Return the bytes of weight, scales and bias, as allocated on the fullest rank."""
    weight, tp = weight.distributed(tp, experts)
    rows, cols = weight.shape_on_rank(tp)
    dtype_bytes = DTYPE_BYTES[model.dtype]
    bias: list[int] = []
    if weight.bias:
        bias.append(weight.bias_on_rank(tp) * dtype_bytes)
    if not is_quantized(model, weight, layer):
        element_bytes = weight.bytes_each or dtype_bytes
        return [weight.copies * rows * cols * element_bytes, *bias]
    quantization = present(model.quantization)
    if _module_patterns(quantization.eight).match(layer, weight.name):
        quantization = replace(quantization, method="modelopt", weight_bits=8, group_size=-1)
    tensors = _quantized_bytes(quantization, weight, rows, cols, dtype_bytes) + bias
    if weight.has_decoded_copy:
        tensors.append(rows * cols * dtype_bytes)
    return tensors


def text_bytes(model: ModelConfig, tp: int = 1) -> int:
    """Return the bytes of all weights but an encoder's on one of `tp` ranks."""
    ends = sum(sum(tensor_bytes(model, w, 0, tp)) for w in end_weights(model))
    return ends + sum(count * part.bytes for count, part in parts(model, tp))


@lru_cache(maxsize=512)
def weight_bytes(model: ModelConfig) -> int:
    """Return the bytes of all weights as stored, in their bits with scales.

    A lower bound of what the ranks hold together: nothing is copied or rounded up.
    """
    total = text_bytes(model)
    for w in tower_weights(model):
        total += sum(tensor_bytes(model, w, 0, 1))
    if model.exact:
        return int(total * model.exact.scale)
    return total


def _mxfp4_bytes(padding: tuple[int, int], weight: Weight, rows: int, cols: int) -> list[int]:
    """Return the bytes of experts in MXFP4: (weights, scales). One byte scales 32 inputs.

    On Hopper the rows of the scales are padded to 256.

    Source: fused_moe/oracle/mxfp4.py (0.25.1); the layout of the scales was read from a loaded
    gpt-oss-20b.
    """
    hidden, width = padding
    if weight.split == "row":
        cols = -(-cols // width) * width
        rows = -(-rows // hidden) * hidden
    else:
        rows = 2 * (-(-rows // (2 * width)) * width)
        cols = -(-cols // hidden) * hidden
    scale_rows = rows
    if hidden == 1:
        scale_rows = -(-rows // 256) * 256
    scales = scale_rows * -(-cols // 32)
    return [weight.copies * rows * cols // 2, weight.copies * scales]


def _quantized_bytes(
    quantization: Quantization, weight: Weight, rows: int, cols: int, scale_bytes: int
) -> list[int]:
    """Return the weight bytes and scale bytes of [copies, rows, cols] in this quantization."""
    if quantization.method == "mxfp4":
        return _mxfp4_bytes(quantization.padding, weight, rows, cols)
    tensors = [math.ceil(weight.copies * rows * cols * quantization.weight_bits / 8)]
    if quantization.block:
        block_rows, block_cols = quantization.block
        blocks = -(-rows // block_rows) * -(-cols // block_cols)
        tensors.append(weight.copies * blocks * 4)
        return tensors
    if quantization.group_size > 0:
        groups = rows * -(-cols // quantization.group_size)
        scale_bytes = quantization.scale_bytes or scale_bytes
        tensors.append(weight.copies * groups * scale_bytes)
        if quantization.zero_points:
            tensors.append(math.ceil(weight.copies * groups * quantization.weight_bits / 8))
        return tensors
    scales = rows if quantization.group_size == 0 else weight.shards
    tensors.append(weight.copies * scales * 4)
    return tensors

"""LoRA: the buffers that vLLM makes when it loads a model, for adapters or without any.

Each linear layer gets a buffer A of [max_loras, rank, inputs] and B of [max_loras, outputs, rank];
a product that joins several (qkv, gate and up) has an A for each. Source: vLLM 0.32.0,
lora/layers/*.py create_lora_weights. One run on an H100 (8B, 4 adapters of rank 32): 0.690 GiB, of
which 0.688 are these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from inference_planner.catalog.architectures import ADAPTS_EMBEDDINGS
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.weight import ExpertSplit, Weight
from inference_planner.errors import BadInput
from inference_planner.model.weights import parts
from inference_planner.request import FALLBACKS, PlanRequest

NO_LINEAR_LAYERS = ("mamba.A", "mamba.D")  # matrices and vectors that no product takes


@dataclass(frozen=True)
class Adapters:
    """vLLM's settings of LoRA.

    Attributes:
        max_loras: adapters in one batch, each with a slot in the GPU's memory.
        max_lora_rank: the largest rank of an adapter; buffers have it whatever the adapters have.
        max_cpu_loras: adapters kept in the CPU's memory; None: max_loras.
        fully_sharded: tensor parallelism splits both matrices of an adapter.
        dtype: of the buffers; "auto" is the model's.
    """

    max_loras: int = FALLBACKS["max_loras"]
    max_lora_rank: int = FALLBACKS["max_lora_rank"]
    max_cpu_loras: int | None = None
    fully_sharded: bool = False
    dtype: str = FALLBACKS["lora_dtype"]


def checked(request: PlanRequest) -> Adapters | None:
    """Return the settings of LoRA, or None without enable_lora.

    Raises BadInput: a setting without enable_lora, or a maximum below another one.
    """
    values: dict[str, Any] = {
        "max_loras": request.max_loras,
        "max_lora_rank": request.max_lora_rank,
        "max_cpu_loras": request.max_cpu_loras,
        "fully_sharded": request.fully_sharded_loras or None,
        "dtype": request.lora_dtype,
    }
    values = {name: value for name, value in values.items() if value is not None}
    if not request.enable_lora:
        if values:
            raise BadInput(
                "Settings of LoRA are given, and adapters are not enabled.", "Add --enable-lora."
            )
        return None
    adapters = Adapters(**values)
    if adapters.max_cpu_loras is not None and adapters.max_cpu_loras < adapters.max_loras:
        raise BadInput(
            f"max_cpu_loras {adapters.max_cpu_loras} is less than max_loras {adapters.max_loras}.",
            "Every adapter of a batch is kept in the CPU's memory "
            "as well: raise it, or leave it out.",
        )
    return adapters


def flags(adapters: Adapters) -> dict[str, str]:
    """Return the flags of `vllm serve`, without those that vLLM would take anyway."""
    defaults = Adapters()
    values: dict[str, str] = {"--enable-lora": ""}
    if adapters.max_loras != defaults.max_loras:
        values["--max-loras"] = str(adapters.max_loras)
    if adapters.max_lora_rank != defaults.max_lora_rank:
        values["--max-lora-rank"] = str(adapters.max_lora_rank)
    if adapters.max_cpu_loras is not None:
        values["--max-cpu-loras"] = str(adapters.max_cpu_loras)
    if adapters.fully_sharded:
        values["--fully-sharded-loras"] = ""
    if adapters.dtype != defaults.dtype:
        values["--lora-dtype"] = adapters.dtype
    return values


def buffer_bytes(
    model: ModelConfig,
    adapters: Adapters,
    tp: int,
    layers: range,
    experts: ExpertSplit | None = None,
) -> int:
    """Return the bytes of the adapters' buffers on one rank that has these layers of the model."""
    elements = 0
    for count, part in parts(model, layers=layers):
        weight = part.weight
        # a matrix that multiplies its input
        is_linear = weight.cols > 1 and weight.split != "vocab"
        if is_linear and weight.name not in NO_LINEAR_LAYERS:
            elements += count * _pair(model, weight, adapters, tp, experts)
    if model.architecture in ADAPTS_EMBEDDINGS:
        elements += _embedding_pairs(model, adapters, layers)
    dtype = model.dtype if adapters.dtype == "auto" else adapters.dtype
    return adapters.max_loras * elements * DTYPE_BYTES[dtype]


def _pair(
    model: ModelConfig, weight: Weight, adapters: Adapters, tp: int, experts: ExpertSplit | None
) -> int:
    """Return the elements of A and B that one adapter has for a linear layer, on one rank."""
    rank = adapters.max_lora_rank
    slices = weight.shards
    if weight.is_expert and model.traits.mxfp4_kernels:
        slices = 1  # gate and up come as one (FusedMoE3DWithLoRA)
    weight, tp = weight.distributed(tp, experts)
    rows, columns = weight.shape_on_rank(tp)
    rank_of_a = rank
    if adapters.fully_sharded and weight.split in ("column", "qkv"):
        rank_of_a = -(-rank // tp)
    if adapters.fully_sharded and weight.split == "row":
        rows = -(-rows // tp)
    return weight.copies * (slices * rank_of_a * columns + rows * rank)


def _embedding_pairs(model: ModelConfig, adapters: Adapters, layers: range) -> int:
    """Return the elements of embed_tokens' and lm_head's buffers, whole on every rank."""
    one_pair = (model.vocab_size + model.hidden_size) * adapters.max_lora_rank
    pairs = 0
    is_last = layers.stop == model.num_hidden_layers
    if layers.start == 0:
        pairs += 1
    if is_last:
        pairs += 1
    # lm_head is the embedding once more, with a pair of its own.
    if is_last and model.tie_word_embeddings:
        pairs += 1
    return pairs * one_pair

"""Other memory calculators, from their published formulas, side by side with the planner.

Each returns GiB for one request of `context` tokens in 16 bit. What a calculator does not count is
None.
"""

from dataclasses import dataclass

from inference_planner.catalog import load_gpu, load_model
from inference_planner.catalog.config import DTYPE_BYTES, ModelConfig
from inference_planner.catalog.gpus import GIB, GPU, MIB
from inference_planner.memory.fit import fit
from inference_planner.model.kv_cache import kv_bytes_for_context, kv_cache_bytes_per_token
from inference_planner.model.weights import parameters
from inference_planner.split.deployment import prepare


@dataclass(frozen=True)
class Estimate:
    """One calculator's answer in GiB, and what it leaves out."""

    calculator: str
    weights_gib: float | None
    kv_cache_gib: float | None
    overhead_gib: float | None
    why_different: str
    source: str

    @property
    def total_gib(self) -> float | None:
        parts = (self.weights_gib, self.kv_cache_gib, self.overhead_gib)
        counted = [part for part in parts if part is not None]
        if not counted:
            return None
        return sum(counted)


Sizes = tuple[float | None, float | None, float | None]


def _gib(weights: float | None, kv_cache: float | None, overhead: float | None) -> Sizes:
    """Return three sizes in GiB; None stays None."""
    return _one_gib(weights), _one_gib(kv_cache), _one_gib(overhead)


def _one_gib(size: float | None) -> float | None:
    return None if size is None else size / GIB


def hf_model_memory_usage(model: ModelConfig, context: int) -> Estimate:
    """Weights in the dtype, and a fifth more for inference."""
    weights = parameters(model) * DTYPE_BYTES[model.dtype]
    why = (
        "a fifth of the weights stands for everything else: right "
        "for short contexts, wrong for long ones"
    )
    source = "accelerate, docs/source/usage_guides/model_size_estimator.md"
    return Estimate("HF model-memory-usage", *_gib(weights, None, 0.2 * weights), why, source)


def gpu_poor(model: ModelConfig, context: int) -> Estimate:
    """Weights with four square matrices of attention a layer, KV of all query heads, 650 MB."""
    h, layers = model.hidden_size, model.num_hidden_layers
    count = model.vocab_size * h * 2 + layers * (4 * h * h + 3 * model.intermediate_size * h)
    why = (
        "knows no grouped-query attention: K and V of every query head, in "
        "the weights too; always three MLP matrices"
    )
    sizes = _gib(count * 2, 2 * 2 * context * h * layers, 650 * MIB)
    return Estimate("gpu_poor", *sizes, why, "RahulSChand/gpu_poor, src/App.js, the vLLM choice")


def nyxkrage(model: ModelConfig, context: int) -> Estimate:
    """llama.cpp's buffers for a batch of 512, beside a KV cache that knows grouped queries."""
    batch = 512
    inputs = batch + model.hidden_size * batch + batch + context * batch + context + batch
    compute = (context / 1024 * 2 + 0.75) * model.num_attention_heads * MIB
    kv = (
        2
        * model.hidden_size
        / (model.num_attention_heads / model.num_key_value_heads)
        * model.num_hidden_layers
        * context
        * 2
    )
    why = (
        "made for llama.cpp, whose scratch space grows with the "
        "context; head_dim taken as hidden / heads"
    )
    source = "huggingface.co/spaces/NyxKrage/LLM-Model-VRAM-Calculator, index.html"
    return Estimate(
        "LLM Model VRAM Calculator", *_gib(parameters(model) * 2, kv, inputs + compute), why, source
    )


def llm_explorer(model: ModelConfig, context: int) -> Estimate:
    """The size of the checkpoint; how the site derives its VRAM figure is not published."""
    why = (
        "shows about the size of the weights; its formula is not "
        "published, so this row is our reading"
    )
    return Estimate(
        "LLM Explorer",
        *_gib(parameters(model) * DTYPE_BYTES[model.dtype], None, None),
        why,
        "llm.extractum.io",
    )


def planner(model: ModelConfig, context: int, gpu: GPU) -> Estimate:
    """This package on one GPU: loaded weights, KV cache by kind, overheads of the profile run."""
    f = fit(prepare(model, gpu, max_model_len=min(context, model.max_position_embeddings)))
    sizes = _gib(f.weights[0], kv_bytes_for_context(model, context)[0], f.overhead[0])
    return Estimate("workshop plan", *sizes, "measured against vLLM's own log", "inference_planner")


def compare(
    names: tuple[str, ...] = ("mistral-7b-v0.2", "llama-3-8b", "falcon-40b"),
    context: int = 2048,
    gpu: str = "h200",
) -> dict[str, list[Estimate]]:
    """Return every calculator's answer for each model."""
    return {
        name: [
            f(load_model(name), context)
            for f in (hf_model_memory_usage, gpu_poor, nyxkrage, llm_explorer)
        ]
        + [planner(load_model(name), context, load_gpu(gpu))]
        for name in names
    }


# What llm-d-planner subtracts, in GiB (its capacity_planner.py; measured there with vLLM 0.19.0 on
# H100).
LLM_D_ACTIVATION = {"dense": 2.0, "moe": 2.5}
LLM_D_NON_TORCH = {"tp1_pp1": 0.27, "tp1_ppN": 0.07, "tpN": 2.10}


def llm_d_planner_tokens(
    model: ModelConfig, gpu: GPU, tp: int, pp: int, utilization: float = 0.92
) -> int:
    """Return llm-d-planner's tokens: constants for overheads, no windows, no cache dtype.

    Source: llm-d-incubation/llm-d-planner, src/planner/capacity_planner.py
    allocatable_kv_cache_memory.
    """
    world = tp * pp
    weight_bits = 8 * DTYPE_BYTES[model.dtype]
    if model.quantization:
        weight_bits = model.quantization.weight_bits
    embeddings = model.vocab_size * model.hidden_size
    if not model.tie_word_embeddings:
        embeddings *= 2
    weights = (
        (parameters(model) - embeddings) * weight_bits / 8 + embeddings * DTYPE_BYTES[model.dtype]
    ) / GIB
    activation = LLM_D_ACTIVATION["dense"]
    if model.moe:
        activation = LLM_D_ACTIVATION["moe"]
    non_torch = LLM_D_NON_TORCH["tp1_pp1"]
    if tp > 1:
        non_torch = LLM_D_NON_TORCH["tpN"]
    elif pp > 1:
        non_torch = LLM_D_NON_TORCH["tp1_ppN"]
    extra = activation + world * non_torch
    free = gpu.driver_mib / 1024 * utilization * world - weights - extra
    return max(0, int(free * GIB // kv_cache_bytes_per_token(model)))


def hf_mem_tokens(model: ModelConfig, gpu: GPU, tp: int, pp: int, utilization: float = 0.92) -> int:
    """Return tokens as hf-mem does: no overhead, no MLA, no sliding window."""
    token_bytes = (
        2
        * model.num_hidden_layers
        * model.num_key_value_heads
        * model.head_dim
        * DTYPE_BYTES[model.dtype]
    )
    weight_bytes: float = DTYPE_BYTES[model.dtype]
    if model.quantization:
        weight_bytes = model.quantization.weight_bits / 8
    free = gpu.driver_mib * MIB * utilization * tp * pp - parameters(model) * weight_bytes
    return max(0, int(free // token_bytes))


def rule_tokens(model: ModelConfig, gpu: GPU, tp: int, pp: int, utilization: float = 0.92) -> int:
    """Return tokens if M = P·4/(32/Q)·1.2, as accelerate has it, were all but KV cache."""
    bits = model.quantization.weight_bits if model.quantization else 16
    used = parameters(model) * bits / 8 * 1.2
    free = gpu.driver_mib * MIB * utilization * tp * pp - used
    return max(0, int(free // kv_cache_bytes_per_token(model)))

"""What a rank needs besides weights and KV cache, item by item, each with its reason and source.

vLLM runs the model once on max_num_batched_tokens dummy tokens before it sizes the KV cache, and keeps what that
run needed at its peak. Source: vLLM 0.25.1, v1/worker/gpu_worker.py determine_available_memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GPU, MIB
from workshop.plan.settings import Settings


@dataclass(frozen=True)
class Overhead:
    """One item: bytes on one rank, why it is there, and where the number comes from."""

    name: str
    bytes: int
    reason: str
    source: str


# Architectures with experts that run on model runner V2, which reserves nothing for CUDA graphs (config/vllm.py).
V2_MOE = {"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM"}


def runner(m: ModelConfig) -> int:
    """Return which model runner vLLM 0.25.1 takes: 2 for dense decoders and a few MoE families, 1 for the rest."""
    if m.mamba or (m.moe and m.architecture not in V2_MOE):
        return 1
    return 2


def activation_bytes(m: ModelConfig, tp: int, tokens: int) -> int:
    """Peak of the layers' activations, in 16 bit: the MLP's inputs, both halves of the gate, and their product."""
    h, t = m.hidden_size, m.traits
    attn = m.num_attention_heads * (m.mla.v_head_dim if m.mla else m.head_dim) // tp
    width = m.intermediate_size // tp * (3 if t.gated_mlp else 2)
    if m.moe:
        k, i = m.moe.experts_per_token, m.moe.intermediate_size // tp
        width = max(width if len(m.moe.layers) < m.num_hidden_layers else 0, k * (2 * i + max(i, 0) + h))
    return 2 * tokens * (2 * h + attn + width)


def overheads(m: ModelConfig, gpu: GPU, s: Settings, tp: int, pp: int, stage: int) -> list[Overhead]:
    """Return the overhead items of one rank of pipeline stage `stage`."""
    items = [
        Overhead("activations", activation_bytes(m, tp, s.max_num_batched_tokens),
                 f"the profile run of {s.max_num_batched_tokens} tokens at its peak",
                 "shapes of the MLP; gpu_worker.py determine_available_memory"),
        Overhead("kernels and workspaces", 320 * MIB, "CUDA modules loaded on first use, cuBLAS workspaces",
                 "measured, H200"),
    ]
    if tp > 1:
        items.append(Overhead("NCCL", 220 * MIB, "channels opened by the first all-reduce", "measured, H200"))
    if runner(m) == 1 and not s.enforce_eager:
        items.append(Overhead("CUDA graphs", 650 * MIB, "model runner V1 reserves an estimate",
                              "gpu_model_runner.py profile_cudagraph_memory"))
    return items

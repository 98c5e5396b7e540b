"""Peak of the profile run, from the tensors that are live at it: the layer's graph, the sampler, the compiler.

vLLM cuts the compiled model at every attention call. The graph between two of them (o_proj, norm, MLP, norm, qkv,
rope) gets the attention output and the residual as arguments, which stay alive in the caller; inside it the largest
tensors are the MLP's. Sizes below are elements a token on one rank; traced with PyTorch's memory history on an H200
(benchmarks/gpu), model runner by model runner. Source of the shapes: vLLM 0.25.1 model_executor/models/*.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from workshop.plan.catalog.config import DTYPE_BYTES, ModelConfig
from workshop.plan.catalog.gpus import GPU, MIB
from workshop.plan.settings import Settings
from workshop.plan.weights import VOCAB_PADDING

CUBLAS_WORKSPACE = 32 * MIB      # PyTorch's default on Hopper and newer; 8 MiB before (aten/src/ATen/cuda/CublasHandlePool.cpp)
MLA_PREFILL_TOKENS = 64 * 1024   # attention/mla_attention.py, determine_chunked_prefill_workspace_size


@dataclass(frozen=True)
class Peak:
    """One candidate for the peak, in bytes, with what it is made of."""

    name: str
    bytes: int
    parts: str


@dataclass(frozen=True)
class Widths:
    """Elements a token on one rank."""

    hidden: int
    attn: int          # output of attention: heads × head dim of V
    q: int             # queries
    kv: int            # keys (and as many values)
    mlp: int           # intermediate


def widths(m: ModelConfig, tp: int) -> Widths:
    heads = m.num_attention_heads // tp
    if m.mla:
        qk = m.mla.qk_nope_head_dim + m.mla.qk_rope_head_dim
        return Widths(m.hidden_size, heads * m.mla.v_head_dim, heads * qk,
                      m.mla.kv_lora_rank + m.mla.qk_rope_head_dim, m.intermediate_size // tp)
    kv = max(1, m.num_key_value_heads // tp) * m.head_dim
    return Widths(m.hidden_size, heads * m.head_dim, heads * m.head_dim, kv, m.intermediate_size // tp)


def runner(m: ModelConfig) -> int:
    """Return the model runner of 0.25.1: 2 for dense decoders and three MoE families, 1 for the rest (config/vllm.py)."""
    v2_moe = {"DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM"}
    return 1 if m.mamba or (m.moe and m.architecture not in v2_moe) else 2


def moe_workspace(m: ModelConfig, s: Settings, tp: int) -> int:
    """Bytes of the fused experts' workspaces: two buffers of [tokens, chosen experts, width], kept once made.

    gpt-oss' MXFP4 kernels on Hopper bring none. Source: fused_moe/experts/triton_moe.py workspace_shapes.
    """
    if not m.moe or m.architecture == "GptOssForCausalLM":
        return 0
    act, h = m.moe.intermediate_size // tp, m.hidden_size
    each = max(act, h) + max(2 * act, h)
    return s.max_num_batched_tokens * m.moe.experts_per_token * each * DTYPE_BYTES[m.dtype]


def _dense_mlp(m: ModelConfig, w: Widths) -> int:
    """Caller's attention output and residual, the new residual, both halves of the gate and their product."""
    if m.traits.gated_mlp:
        return 2 * w.hidden + w.attn + 3 * w.mlp
    return 2 * w.hidden + w.attn + w.mlp      # the activation works in place: its shape is that of its input


def _attention_tail(w: Widths) -> int:
    """The end of the graph: qkv beside rotated q and k, the MLP's output and the residuals."""
    return 3 * w.hidden + w.attn + 2 * w.q + 3 * w.kv


def _layers(m: ModelConfig, gpu: GPU, s: Settings, tp: int, compiled: bool) -> list[Peak]:
    w, t, e = widths(m, tp), s.max_num_batched_tokens, DTYPE_BYTES[m.dtype]
    work = moe_workspace(m, s, tp)
    out = []
    if not m.moe or len(m.moe.layers) < m.num_hidden_layers:
        extra = gpu.l2_bytes if compiled else 0      # inductor times the kernel with the L2 cache flushed
        out.append(Peak("dense MLP", t * e * _dense_mlp(m, w) + CUBLAS_WORKSPACE + extra,
                        f"{t} tokens × (2·{w.hidden} + {w.attn} + 3·{w.mlp}) elements"))
        if compiled and m.quantization and m.quantization.activation_bits == 8:
            out.append(Peak("compiling the FP8 MLP", t * (7 * w.mlp + 4 * w.hidden),
                            "example inputs of the kernels that quantise activations"))
    out.append(Peak("attention", t * e * _attention_tail(w) + work + CUBLAS_WORKSPACE,
                    "qkv, rotated q and k, residuals" + (", the experts' workspace" if work else "")))
    if m.mla:
        tokens = max(min(max(8 * s.max_model_len, 64 * s.max_num_seqs), MLA_PREFILL_TOKENS), 16 * s.max_num_seqs)
        prefill = tokens * (m.num_attention_heads // tp) * (m.mla.qk_nope_head_dim + m.mla.v_head_dim) * e
        live = t * e * (3 * w.hidden + w.q + w.attn + 2 * w.kv)
        out.append(Peak("MLA prefill", prefill + live + work + CUBLAS_WORKSPACE,
                        f"keys and values of {tokens} tokens of context, decompressed"))
    return out


def _sampler(m: ModelConfig, gpu: GPU, s: Settings, tp: int) -> Peak:
    """Logits of max_num_seqs requests, in 16 bit and again in 32; model runner V1 adds probabilities and noise."""
    r, v, t = min(s.max_num_seqs, s.max_num_batched_tokens), m.vocab_size, s.max_num_batched_tokens
    e = DTYPE_BYTES[m.dtype]
    base = t * m.hidden_size * e + r * m.hidden_size * e + CUBLAS_WORKSPACE + moe_workspace(m, s, tp)
    if runner(m) == 2:
        return Peak("sampler", base + r * v * (e + 4), f"{r} requests × {v} logits in 16 and 32 bit")
    base += r * m.hidden_size * e + gpu.sm_count * v * 4
    return Peak("sampler", base + r * v * (e + 12), f"{r} requests × {v} logits, probabilities and noise in 32 bit")


def _embedding_compile(m: ModelConfig, s: Settings, tp: int) -> Peak:
    """Inductor times the kernel that looks embeddings up on a copy of the table."""
    rows = -(-m.vocab_size // VOCAB_PADDING) * VOCAB_PADDING // tp
    e, h = DTYPE_BYTES[m.dtype], m.hidden_size
    return Peak("compiling the embedding", rows * h * e + 2 * s.max_num_batched_tokens * h * e,
                f"an example table of {rows} × {h} and its output")


def candidates(m: ModelConfig, gpu: GPU, s: Settings, tp: int, first: bool, last: bool) -> list[Peak]:
    """Return every candidate on a rank of the first or last pipeline stage; the largest is what the profile run sees."""
    compiled = not s.enforce_eager
    out = _layers(m, gpu, s, tp, compiled)
    if last:
        out.append(_sampler(m, gpu, s, tp))
    if first and compiled:
        out.append(_embedding_compile(m, s, tp))
    return out

"""The plan in plain words: the command, the reasons, and what would make it better."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from workshop.plan.capability import BFLOAT16, capability, runs_kv_cache_dtype
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.catalog.quantization import from_name
from workshop.plan.choose import Choice, executor
from workshop.plan.communication import Traffic
from workshop.plan.fit import Fit, fit, longest_context, may_fit
from workshop.plan.kv_cache import kv_dtype_bytes
from workshop.plan.ranks import partition_layers, tp_problem
from workshop.plan.settings import DEFAULT_VERSION, Settings, batch_defaults


def command(m: ModelConfig, g: GPU, s: Settings, choice: Choice, quantization: str | None) -> str:
    """Return the `vllm serve` line; over nodes it runs on each, with NODE_RANK from 0, workers with --headless."""
    f = choice.fit
    args = ["vllm", "serve", m.hub_ids[0] if m.hub_ids else m.location or m.name]
    args += ["--tensor-parallel-size", str(f.tp)]
    if f.pp > 1:
        args += ["--pipeline-parallel-size", str(f.pp)]
    if choice.nodes > 1:
        args += ["--nnodes", str(choice.nodes), "--node-rank", "$NODE_RANK", "--master-addr", "$HEAD_NODE"]
    if s.max_model_len != (m.default_model_len or m.max_position_embeddings):
        args += ["--max-model-len", str(s.max_model_len)]
    if s.gpu_memory_utilization != 0.92:
        args += ["--gpu-memory-utilization", f"{s.gpu_memory_utilization:g}"]
    tokens, seqs = batch_defaults(g, "serve", s.vllm_version)
    if s.max_num_batched_tokens != min(tokens, seqs * s.max_model_len):
        args += ["--max-num-batched-tokens", str(s.max_num_batched_tokens)]
    if s.max_num_seqs != min(seqs, s.max_num_batched_tokens):
        args += ["--max-num-seqs", str(s.max_num_seqs)]
    for flag, value in (("--dtype", s.dtype), ("--kv-cache-dtype", s.kv_cache_dtype)):
        if value != "auto":
            args += [flag, value]
    if quantization:
        args += ["--quantization", quantization]
    if s.enforce_eager:
        args.append("--enforce-eager")
    return " ".join(a if a.startswith("$") else shlex.quote(a) for a in args)


def reasons(m: ModelConfig, g: GPU, s: Settings, choice: Choice, sent: Sequence[Traffic]) -> list[str]:
    """Return why the plan is as it is: the split, what each GPU holds, what limits the context, what travels."""
    f, out = choice.fit, list(choice.reasons)
    i = f.tightest
    if s.dtype == "half" and capability(g) < BFLOAT16:
        out.append(f"{g.title} has no bfloat16: the model runs in float16 (--dtype half), which takes the same memory; "
                   "vLLM's attention kernels there are Triton's, as FlashAttention and FlashInfer begin with Ampere.")
    if f.tp > 1:
        heads, kv = m.num_attention_heads // f.tp, m.num_key_value_heads
        held = "the one latent, copied to every GPU" if m.mla else (
            f"{kv // f.tp} of {kv} KV heads" if kv >= f.tp else f"1 of {kv} KV heads, each copied {f.tp // kv} times")
        out.append(f"Each GPU computes {heads} of {m.num_attention_heads} attention heads and keeps {held}.")
    if f.pp > 1:
        sizes = [len(r) for r in partition_layers(m.num_hidden_layers, f.pp)]
        even = f"{sizes[0]} layers each" if len(set(sizes)) == 1 else "layers " + ", ".join(map(str, sizes))
        out.append(f"The {m.num_hidden_layers} layers go to {f.pp} stages: {even}.")
    left = (f"{f.available[i] / GIB:.2f} GiB are left for KV cache" if f.available[i] > 0
            else f"{-f.available[i] / GIB:.2f} GiB are missing before the first token")
    out.append(f"Of {f.requested / GIB:.1f} GiB that the engine may use on a GPU, {f.weights[i] / GIB:.2f} GiB are "
               "weights "
               f"and {f.overhead[i] / GIB:.2f} GiB overhead; {left}.")
    if f.fits:
        out.append(f"They hold {f.capacity.blocks:,} blocks of {f.layout.block_size} tokens: {f.capacity.tokens:,} "
                   "tokens, "
                   f"or {f.capacity.max_concurrency:.2f} requests of {s.max_model_len:,} tokens at once.")
    if not f.fits:
        return out
    out += [_window_reason(m)] if m.sliding else []
    for t in sent:
        out.append(f"A step of one token sends {t.count} × {t.bytes_each / 1024:.0f} KiB ({t.what}, {t.reason}) over "
                   f"{t.link}: about {t.ms:.2f} ms.")
    if f.tp * f.pp > 1:
        out.append(executor(f.tp * f.pp, choice.nodes)[1])
    if s.vllm_version != DEFAULT_VERSION:
        out.append(f"The formulas for {s.vllm_version} follow its source; on GPUs, {DEFAULT_VERSION} is the version "
                   "measured.")
    if s.usage == "llm" and batch_defaults(g, "serve", s.vllm_version)[0] != s.max_num_batched_tokens:
        out.append(f"max_num_batched_tokens is {s.max_num_batched_tokens:,}; vllm serve alone would take "
                   f"{batch_defaults(g, 'serve', s.vllm_version)[0]:,}, so the command says it.")
    return out


def _window_reason(m: ModelConfig) -> str:
    windows = [w for w in m.layer_windows if w]
    return (f"{len(windows)} of {m.num_hidden_layers} layers look back {windows[0]:,} tokens only, so a long request "
            "keeps less there.")


def advice(m: ModelConfig, g: GPU, s: Settings, choice: Choice) -> list[str]:
    """Return what would make the plan better; where it does not fit, the nearest things that would."""
    return _better(m, g, s, choice) if choice.fit.fits else _nearest(m, g, s, choice)


def _nearest(m: ModelConfig, g: GPU, s: Settings, choice: Choice) -> list[str]:
    f, out = choice.fit, []
    if f.loads:
        context = longest_context(m, g, s, f.tp, f.pp)
        if context:
            out.append(f"With --max-model-len {context} it fits on these {f.tp * f.pp} GPU(s): "
                       f"{f.available[f.tightest] / GIB:.1f} GiB of KV cache hold that much.")
    for label, other, settings in _smaller(m, g, s):
        if may_fit(other, g, settings, f.tp, f.pp) and fit(other, g, settings, f.tp, f.pp).fits:
            out.append(f"{label} fits on the same GPUs.")
            break
    more = _more_gpus(m, g, s, choice)
    if more:
        nodes = -(-more.tp * more.pp // choice.gpus_per_node)
        out.append(f"{more.tp * more.pp} × {g.title} hold it: --tensor-parallel-size {more.tp} "
                   f"--pipeline-parallel-size {more.pp} on {nodes} node(s) of {choice.gpus_per_node}.")
    return out or [f"No split over up to 32 nodes of {choice.gpus_per_node} × {g.title} holds it: choose a larger GPU."]


def _smaller(m: ModelConfig, g: GPU, s: Settings) -> list[tuple[str, ModelConfig, Settings]]:
    kv8 = replace(s, kv_cache_dtype="fp8")
    out, small_kv = [], runs_kv_cache_dtype(g, "fp8")
    if small_kv and kv_dtype_bytes(m, s.kv_cache_dtype) > 1:
        out.append(("An FP8 KV cache (--kv-cache-dtype fp8)", m, kv8))
    if m.quantization is None:
        fp8 = m.with_quantization(from_name("fp8"))
        out.append(("FP8 weights (--quantization fp8)", fp8, s))
        if small_kv:
            out.append(("FP8 weights and KV cache (--quantization fp8 --kv-cache-dtype fp8)", fp8, kv8))
    return out


def _more_gpus(m: ModelConfig, g: GPU, s: Settings, choice: Choice) -> Fit | None:
    """The fewest GPUs that hold it: tensor parallel in the node first, then pipeline over nodes."""
    node = max(choice.gpus_per_node, 1)
    sizes = [t for t in (1, 2, 4, 8, 16) if t <= node and not tp_problem(m, t)] or [1]
    splits = [(t, 1) for t in sizes] + [(sizes[-1], pp) for pp in range(2, min(32, m.num_hidden_layers) + 1)]
    for tp, pp in splits:
        if tp * pp > choice.fit.tp * choice.fit.pp and may_fit(m, g, s, tp, pp):
            f = fit(m, g, s, tp, pp)
            if f.fits:
                return f
    return None


def _better(m: ModelConfig, g: GPU, s: Settings, choice: Choice) -> list[str]:
    f, out = choice.fit, []
    if kv_dtype_bytes(m, s.kv_cache_dtype) > 1 and runs_kv_cache_dtype(g, "fp8"):
        more = fit(m, g, replace(s, kv_cache_dtype="fp8"), f.tp, f.pp).capacity
        out.append(f"--kv-cache-dtype fp8 holds {more.tokens:,} tokens ({more.tokens / max(1, f.capacity.tokens):.1f} "
                   "times), "
                   "at a small cost in precision.")
    if s.gpu_memory_utilization < 0.95:
        more = fit(m, g, replace(s, gpu_memory_utilization=0.95), f.tp, f.pp).capacity
        out.append(f"--gpu-memory-utilization 0.95 adds {more.tokens - f.capacity.tokens:,} tokens, if nothing else "
                   "runs on "
                   "the GPU.")
    if s.max_num_batched_tokens > 2048:
        less = replace(s, max_num_batched_tokens=2048, max_num_seqs=min(s.max_num_seqs, 256))
        more = fit(m, g, less, f.tp, f.pp).capacity
        if more.tokens > 1.01 * f.capacity.tokens:
            out.append(f"--max-num-batched-tokens 2048 --max-num-seqs 256 adds {more.tokens - f.capacity.tokens:,} "
                       "tokens; "
                       "long prompts are then read in more steps.")
    if f.tp > 1 and not m.mla and m.num_key_value_heads < f.tp:
        out.append(f"{f.tp} GPUs share {m.num_key_value_heads} KV heads, so every head is kept "
                   f"{f.tp // m.num_key_value_heads} times: pipeline parallelism would keep each once.")
    idle = choice.nodes * choice.gpus_per_node - f.tp * f.pp if choice.counted else 0
    if idle >= f.tp * f.pp:
        out.append(f"{idle} GPU(s) stay idle: {idle // (f.tp * f.pp)} more server(s) like this one would use them, "
                   "each with "
                   "its own requests (data parallel).")
    if f.capacity.max_concurrency < 2:
        shorter = max(1024, s.max_model_len // 4)
        out.append(f"Less than two requests of {s.max_model_len:,} tokens fit at once: --max-model-len {shorter} "
                   "admits more "
                   "requests only if they are short; more GPUs hold more.")
    return out

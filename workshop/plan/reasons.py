"""Why a plan is as it is, in plain words: the split, what each GPU holds, what limits the context, what travels."""

# d deployment, m model, s settings, f fit, i its tightest stage, t traffic
from collections.abc import Sequence

from workshop.plan.attention import main_kind
from workshop.plan.capability import BFLOAT16, capability
from workshop.plan.catalog.gpus import GIB
from workshop.plan.choose import Choice, executor
from workshop.plan.communication import Traffic
from workshop.plan.deployment import Deployment
from workshop.plan.memory import fit
from workshop.plan.ranks import partition_layers
from workshop.plan.settings import batch_defaults


def reasons(choice: Choice, sent: Sequence[Traffic]) -> list[str]:
    """Return the reasons of a choice; sent: what a step of one token sends."""
    d = choice.deployment
    m, s, f, out = d.model, d.settings, fit(d), list(choice.reasons)
    if s.dtype == "half" and capability(d.gpu) < BFLOAT16:
        out.append(
            f"{d.gpu.title} has no bfloat16: the model runs in float16 (--dtype half), which takes the same memory; vLLM's attention kernels there are Triton's, as FlashAttention and FlashInfer begin with Ampere."
        )
    out += [*_split(d), *_memory(d)]
    if not f.fits:
        return out
    if windows := [w for w in m.layer_windows if w]:
        where = f"{len(windows)} of {m.num_hidden_layers} layers look back {windows[0]:,} tokens only"
        out.append(f"{where}, so a long request keeps less there.")
    for t in sent:
        each = f"{t.count} × {t.bytes_each / 1024:.0f} KiB ({t.what}, {t.reason})"
        out.append(f"A step of one token sends {each} over {t.link}: about {t.ms:.2f} ms.")
    if d.dp > 1:
        out.append("Each replica is an engine of its own; one API server shares the requests out among them.")
    elif d.gpus > 1:
        out.append(executor(d.gpus, d.nodes)[1])
    serves = batch_defaults(d.gpu, "serve", s.vllm_version)[0]
    if s.usage == "llm" and serves != s.max_num_batched_tokens:
        out.append(
            f"max_num_batched_tokens is {s.max_num_batched_tokens:,}, as the LLM class takes it; vllm serve alone would take {serves:,}, so the command says it."
        )
    return out


def _split(d: Deployment) -> list[str]:
    m, out = d.model, []
    if d.tp > 1:
        heads, held = m.num_attention_heads // d.tp, main_kind(m).held(m, d.tp)
        out.append(f"Each GPU computes {heads} of {m.num_attention_heads} attention heads and keeps {held}.")
    if d.pp > 1:
        sizes = [len(r) for r in partition_layers(m.num_hidden_layers, d.pp)]
        even = f"{sizes[0]} layers each" if len(set(sizes)) == 1 else "layers " + ", ".join(map(str, sizes))
        out.append(f"The {m.num_hidden_layers} layers go to {d.pp} stages: {even}.")
    return out


def _memory(d: Deployment) -> list[str]:
    f = fit(d)
    i, room = f.tightest, f.available[f.tightest] / GIB
    left = (
        f"{room:.2f} GiB are left for KV cache" if room > 0 else f"{-room:.2f} GiB are missing before the first token"
    )
    parts = f"{f.weights[i] / GIB:.2f} GiB are weights and {f.overhead[i] / GIB:.2f} GiB overhead"
    out = [f"Of {f.requested / GIB:.1f} GiB that the engine may use on a GPU, {parts}; {left}."]
    if f.fits:
        tokens = f"{f.capacity.blocks:,} blocks of {f.layout.block_size} tokens: {f.capacity.tokens:,} tokens"
        at_once = f"{f.capacity.max_concurrency:.2f} requests of {d.settings.max_model_len:,} tokens at once"
        out.append(f"They hold {tokens}, or {at_once}{', in each replica' if d.dp > 1 else ''}.")
    return out

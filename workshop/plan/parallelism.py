"""The plan: how many GPUs, how the model is split over them, what fits, what vLLM will say about it, and why."""

# d deployment, m model, s settings, f fit, i its tightest stage, t traffic
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from workshop.plan import exact as exact_
from workshop.plan import kv_cache, speed
from workshop.plan.advise import advise
from workshop.plan.attention import main_kind
from workshop.plan.basis import basis
from workshop.plan.catalog.config import ModelConfig
from workshop.plan.catalog.gpus import GIB, GPU
from workshop.plan.choose import Choice, executor
from workshop.plan.command import command, stand_in
from workshop.plan.communication import Traffic, traffic
from workshop.plan.deployment import Deployment, prepare
from workshop.plan.memory import fit
from workshop.plan.overheads import Overhead
from workshop.plan.ranks import Rank, partition_layers, ranks
from workshop.plan.settings import DEFAULT_VERSION, Settings, batch_defaults
from workshop.plan.speed import Term


@dataclass(frozen=True)
class Plan:
    """One way to run a model, and what it gives. Sizes a GPU are of the tightest rank, in GiB of 2**30 bytes."""

    model: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    enable_expert_parallel: bool
    nodes: int
    gpus: int
    fits: bool
    weights_gib_per_gpu: float
    overhead_gib_per_gpu: float
    available_kv_gib_per_gpu: float
    kv_bytes_per_token: int
    kv_cache_tokens: int
    max_concurrency: float
    single_stream_tokens_per_s: float
    command: str
    reasons: list[str]
    advice: list[str]
    decode_context_parallel_size: int = 1
    learners_at_once: int = 0  # who ask 300 tokens in the same moment, and see their first token within 5 s
    num_gpu_blocks: int = 0
    block_size: int = 16
    max_model_len: int = 0
    gpus_per_node: int = 1
    executor: str = "uni"  # uni: one process; mp: vLLM's own multiprocessing, also over nodes
    vllm_version: str = DEFAULT_VERSION
    gpu_memory_gib: float = 0.0
    requested_gib_per_gpu: float = 0.0
    overheads: list[Overhead] = field(default_factory=list)
    communication: list[Traffic] = field(default_factory=list)
    decode: list[Term] = field(default_factory=list)
    basis: str = "measured"  # measured, exact, recorded or estimate: see basis.py
    exact: bool = False
    source: str = ""  # the vLLM version whose classes said it, or what an estimate rests on
    ranks: list[Rank] = field(default_factory=list)
    deployment: Deployment | None = None

    @property
    def settings(self) -> Settings:
        """vLLM's settings, defaults filled in."""
        return self.deployment.settings

    @property
    def config(self) -> ModelConfig:
        """The model as it runs."""
        return self.deployment.model

    def to_dict(self) -> dict:
        """Return plain data, as `workshop plan --json` prints it."""
        out = {k: v for k, v in self.__dict__.items() if k not in ("ranks", "deployment")}
        for key in ("overheads", "communication", "decode"):
            out[key] = [asdict(item) for item in out[key]]
        out["ranks"] = [{**r.__dict__, "layers": [r.layers.start, r.layers.stop]} for r in self.ranks]
        out["settings"] = asdict(self.settings)
        return out


def plan(
    model: str | Path | ModelConfig,
    gpu: str | GPU,
    *,
    gpus_per_node: int | None = None,
    nodes: int | None = None,
    tensor_parallel_size: int | None = None,
    pipeline_parallel_size: int | None = None,
    data_parallel_size: int | None = None,
    enable_expert_parallel: bool = False,
    decode_context_parallel_size: int | None = None,
    exact: bool | None = None,
    **asked: object,
) -> Plan:
    """Return the plan: how to split the model, what fits, what vLLM prints, and the command.

    data_parallel_size: replicas that share their experts, each with attention and KV cache of its own: tokens and
        concurrency are one replica's, as vLLM prints them. Such a plan's experts were not measured: an estimate.

    asked: vLLM's own settings, each with its default where it is left out or None: dtype, quantization,
        kv_cache_dtype, max_model_len, gpu_memory_utilization, max_num_batched_tokens, max_num_seqs, enforce_eager.
        Besides, vllm_version (whose formulas), network (between nodes), and usage: whose max_num_batched_tokens is
        taken where none is given, "serve" (vllm serve) or "llm" (the LLM class, for a batch in a script).

    decode_context_parallel_size: so many ranks share out the tokens of a KV head that each would copy.

    exact: ask vLLM's own classes for weights and KV cache (plan/exact.py); None: where there are no formulas and vLLM
        is here.

    Raises BadInput: an unknown name, a number out of range, sizes that cannot split the model, or one that vLLM cannot
    build.
    """
    d = prepare(model, gpu, **asked)
    sizes = {"gpus_per_node": gpus_per_node, "nodes": nodes, "tp": tensor_parallel_size, "pp": pipeline_parallel_size}
    sizes |= {"dp": data_parallel_size, "ep": enable_expert_parallel, "dcp": decode_context_parallel_size}
    return of_choice(exact_.choose(d, sizes, exact))


def of_choice(choice: Choice) -> Plan:
    """Return the plan of a choice that was made."""
    d = choice.deployment
    m, s, f = d.model, d.settings, fit(d)
    i, ok = f.tightest, f.fits
    terms = list(speed.decode_terms(d)) if ok else []
    sent = traffic(d)
    return Plan(
        model=m.name,
        gpu=d.gpu.name,
        tensor_parallel_size=d.tp,
        pipeline_parallel_size=d.pp,
        data_parallel_size=d.dp,
        enable_expert_parallel=d.ep,
        nodes=d.nodes,
        gpus=d.gpus,
        fits=ok,
        weights_gib_per_gpu=f.weights[i] / GIB,
        overhead_gib_per_gpu=f.overhead[i] / GIB,
        available_kv_gib_per_gpu=f.available[i] / GIB if ok else 0.0,
        kv_bytes_per_token=kv_cache.kv_cache_bytes_per_token(m, s.kv_cache_dtype),
        kv_cache_tokens=f.capacity.tokens if ok else 0,
        max_concurrency=f.capacity.max_concurrency if ok else 0.0,
        single_stream_tokens_per_s=speed.decode_tokens_per_s(d) if ok else 0.0,
        command=command(d),
        reasons=[*choice.reasons, *reasons(d, sent)],
        advice=advise(choice),
        decode_context_parallel_size=d.dcp,
        learners_at_once=speed.learners_at_once(d, f.capacity.tokens) if ok else 0,
        num_gpu_blocks=f.capacity.blocks if ok else 0,
        block_size=f.layout.block_size,
        max_model_len=s.max_model_len,
        gpus_per_node=d.gpus_per_node,
        executor=executor(d.replica_gpus, d.nodes)[0],
        vllm_version=s.vllm_version,
        gpu_memory_gib=d.gpu.engine_gib,
        requested_gib_per_gpu=f.requested / GIB,
        overheads=list(f.overheads[i]),
        communication=sent,
        decode=terms,
        basis=basis(d),
        exact=bool(m.exact and m.exact.basis == "exact" and basis(d) == "exact"),
        source=m.exact.source if m.exact else "",
        ranks=ranks(d),
        deployment=d,
    )


def reasons(d: Deployment, sent: Sequence[Traffic]) -> Iterator[str]:
    """Yield the reasons for a deployment beside those of the choice; sent: what a step of one token sends."""
    m, s, f = d.model, d.settings, fit(d)
    if s.dtype == "half" and not d.gpu.has_bfloat16:
        yield f"{d.gpu.title} has no bfloat16: the model runs in float16 (--dtype half), which takes the same memory; vLLM's attention kernels there are Triton's, as FlashAttention and FlashInfer begin with Ampere."
    if stand_in(d):
        yield f"vLLM cannot make {m.quantization.method} weights while it loads: the numbers are those of a checkpoint that is quantised so already; give it in place of {stand_in(d)}."
    yield from _split(d)
    yield from _memory(d)
    if not f.fits:
        return
    if windows := [w for w in m.layer_windows if w]:
        where = f"{len(windows)} of {m.num_hidden_layers} layers look back {windows[0]:,} tokens only"
        yield f"{where}, so a long request keeps less there."
    for t in sent:
        each = f"{t.count} × {t.bytes_each / 1024:.0f} KiB ({t.what}, {t.reason})"
        yield f"A step of one token sends {each} over {t.link}: about {t.ms:.2f} ms."
    if d.dp > 1:
        yield "Each replica is an engine of its own; one API server shares the requests out among them."
    elif d.gpus > 1:
        yield executor(d.gpus, d.nodes)[1]
    serves = batch_defaults(d.gpu, "serve", s.vllm_version)[0]
    if s.usage == "llm" and serves != s.max_num_batched_tokens:
        yield f"max_num_batched_tokens is {s.max_num_batched_tokens:,}, as the LLM class takes it; vllm serve alone would take {serves:,}, so the command says it."


def _split(d: Deployment) -> Iterator[str]:
    m = d.model
    if d.tp > 1:
        heads, held = m.num_attention_heads // d.tp, main_kind(m).held(m, d.tp)
        yield f"Each GPU computes {heads} of {m.num_attention_heads} attention heads and keeps {held}."
    if d.pp > 1:
        sizes = [len(r) for r in partition_layers(m.num_hidden_layers, d.pp)]
        even = f"{sizes[0]} layers each" if len(set(sizes)) == 1 else "layers " + ", ".join(map(str, sizes))
        yield f"The {m.num_hidden_layers} layers go to {d.pp} stages: {even}."


def _memory(d: Deployment) -> Iterator[str]:
    f = fit(d)
    i, room = f.tightest, f.available[f.tightest] / GIB
    short = "" if f.fits else f", too little for one request of {d.settings.max_model_len:,} tokens"
    left = f"are left for KV cache{short}" if room > 0 else "are missing before the first token"
    parts = f"{f.weights[i] / GIB:.2f} GiB are weights and {f.overhead[i] / GIB:.2f} GiB overhead"
    yield f"Of {f.requested / GIB:.1f} GiB that the engine may use on a GPU, {parts}; {abs(room):.2f} GiB {left}."
    if f.fits:
        tokens = f"{f.capacity.blocks:,} blocks of {f.layout.block_size} tokens: {f.capacity.tokens:,} tokens"
        at_once = f"{f.capacity.max_concurrency:.2f} requests of {d.settings.max_model_len:,} tokens at once"
        yield f"They hold {tokens}, or {at_once}{', in each replica' if d.dp > 1 else ''}."
